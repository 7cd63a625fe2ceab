"""The methods: each a class for the trainer and a function for loops of one's own, in a file of its name.

Both can be imported from here. ``__all__`` has the classes, as scripts that go through it expect; the functions are
those of :mod:`composer.functional`.
"""

from __future__ import annotations

from composer._lazy import attach
from composer.algorithms._exports import HOMES

__getattr__, __dir__, _names = attach(__name__, HOMES)
# Told by their spelling, so that nothing has to be imported to make the list.
__all__ = [name for name in _names if not name.islower()]  # pyright: ignore[reportUnsupportedDunderAll]
