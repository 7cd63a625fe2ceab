"""Training methods (algorithms): one module per method, with a class for the trainer and a function for custom loops.

Import both from here. ``__all__`` lists only the classes, because scripts iterate over it; the functions are listed in
:mod:`composer.functional`.
"""

from __future__ import annotations

from composer._lazy import attach
from composer.algorithms._exports import MODULES

__getattr__, __dir__, _names = attach(__name__, MODULES)
# Classes and functions are distinguished by spelling, so that building the list imports nothing.
__all__ = [name for name in _names if not name.islower()]  # pyright: ignore[reportUnsupportedDunderAll]
