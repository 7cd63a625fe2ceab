"""Mark a function with the algorithm or callback it acts for, for notes on exceptions and timings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["Handler", "owned", "owner_of"]

Handler: TypeAlias = "Callable[[State, Logger], object]"
"""A function that the engine calls at an event: a method of an algorithm, callback or logger, or a wrapper of one."""


def owned(handler: Handler, owner: object) -> Handler:
    """Mark a function with its owner, which notes on exceptions and timings report; return the function.

    Args:
        handler: The function; a method has its owner already.
        owner: The algorithm, callback or logger; None for no owner.

    >>> handler = owned(lambda state, logger: None, "me")
    >>> owner_of(handler)
    'me'
    """
    handler.__owner__ = owner  # pyright: ignore[reportFunctionMemberAccess]
    return handler


def owner_of(handler: Handler | None) -> Any:
    """Return the algorithm, callback or logger that a handler belongs to, or None.

    Args:
        handler: A handler, as passed to :meth:`.Callback.__wrap_handlers__`.

    >>> owner_of([1].append)
    [1]
    """
    return getattr(handler, "__self__", getattr(handler, "__owner__", None))
