"""What is to run at exit after all that a script registers there.

``atexit`` calls last what was registered first: so this is registered when composer is imported, which imports nothing
for it, and told later what to call.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

__all__ = ["call_last"]

_function: Callable[[], object] | None = None


def call_last(function: Callable[[], object]) -> None:
    """Have a function called at exit after whatever was registered with ``atexit`` since composer was imported.

    There is one such function; another takes its place.

    Args:
        function: Gets nothing.

    >>> from composer.dist import group_exit
    >>> call_last(group_exit._end)
    """
    global _function
    _function = function


@atexit.register
def _call() -> None:
    if _function is not None:
        _function()
