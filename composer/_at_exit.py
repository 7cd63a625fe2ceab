"""Run a function at exit after all handlers that a script registers with ``atexit``.

``atexit`` runs handlers in reverse order, so this module registers one when composer is imported, and sets its function
later.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

__all__ = ["call_last"]

_function: Callable[[], object] | None = None


def call_last(function: Callable[[], object]) -> None:
    """Call a function at exit, after all handlers registered with ``atexit`` since composer was imported.

    There is one such function; a second call replaces it.

    Args:
        function: A function without arguments.

    >>> from composer.dist import group_exit
    >>> call_last(group_exit._end)
    """
    global _function
    _function = function


@atexit.register
def _call() -> None:
    if _function is not None:
        _function()
