"""Validate checkpoint files with a custom function before they are read (``CHECKPOINT_VALIDATION_FUNCTION``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from composer._lazy import import_object

__all__ = ["ensure_valid", "validation_function"]

AnyPath = TypeVar("AnyPath", str, Path)

_VARIABLE = "CHECKPOINT_VALIDATION_FUNCTION"


def validation_function() -> Callable[..., Any] | None:
    """Import the function that ``CHECKPOINT_VALIDATION_FUNCTION`` names (``module.function``); None if it is not set.

    Raises:
        ValueError: The variable does not have this form.
        ImportError: The module does not exist.
        AttributeError: The module has no such function.

    >>> validation_function() is None
    True
    """
    name = os.environ.get(_VARIABLE)
    if name is None:
        return None
    module, _, function = name.rpartition(".")
    if not module or not function:
        raise ValueError(f"{_VARIABLE}={name!r} must name a function as 'module.function'.")
    return import_object(f"{module}:{function}")


def ensure_valid(path: AnyPath, specs: Sequence[tuple[int, int]] | None = None) -> AnyPath:
    """Return the path of a checkpoint file after the custom function, if there is one, has accepted it.

    Args:
        path: The file.
        specs: Offsets and lengths of the byte ranges to read; None is the entire file.

    Raises:
        ValueError: The function returned False.

    >>> ensure_valid("ep1.pt")
    'ep1.pt'
    """
    validate = validation_function()
    if validate is not None and not validate(path, specs):
        raise ValueError(f"The checkpoint {str(path)!r} is invalid: {os.environ[_VARIABLE]} returned False.")
    return path
