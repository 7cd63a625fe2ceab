"""Handlers: what an engine calls at an event, and whose they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["Handler", "owned", "owner_of"]

Handler: TypeAlias = "Callable[[State, Logger], object]"
"""What is called at an event: a method of an algorithm, callback or logger, or a function that stands in for one."""


def owned(handler: Handler, owner: object) -> Handler:
    """Return a function marked with whose handler it is, which the note on an exception and timings go by.

    Args:
        handler: The function; a method knows its owner by itself.
        owner: The algorithm, callback or logger. None leaves the handler without one.

    >>> handler = owned(lambda state, logger: None, "me")
    >>> owner_of(handler)
    'me'
    """
    handler.__owner__ = owner  # pyright: ignore[reportFunctionMemberAccess]
    return handler


def owner_of(handler: Handler | None) -> Any:
    """Return the algorithm, callback or logger that a handler belongs to, or None where it is nobody's.

    Args:
        handler: A handler as :meth:`.Callback.__wrap_handlers__` gets it.

    >>> owner_of([1].append)
    [1]
    """
    return getattr(handler, "__self__", getattr(handler, "__owner__", None))
