"""Objects of a run: the names that reports have for them, and whether the program or a library defines them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["is_of_library", "is_own", "name_of", "shortened"]

# Top-level packages whose code is not that of the program.
_LIBRARIES = frozenset(
    {"builtins", "collections", "composer", "functools", "numpy", "random", "transformers"}
    | {"torch", "torchaudio", "torchdata", "torchmetrics", "torchvision"}
)


def is_of_library(module: str | None) -> bool:
    """Return whether a module is part of Python or a library, rather than of the program.

    Args:
        module: The dotted name of the module.

    >>> is_of_library("torch.nn.modules.linear"), is_of_library("random_crops")
    (True, False)
    """
    return f"{module}".partition(".")[0] in _LIBRARIES


def is_own(part: Any) -> bool:
    """Return whether the program defines a function, or the class of an object.

    Args:
        part: The function or the object.

    >>> is_own([1, 2]), is_own(len)
    (False, False)
    """
    is_function = callable(part) and hasattr(part, "__qualname__")
    return not is_of_library(getattr(part, "__module__", None) if is_function else type(part).__module__)


def name_of(part: Any) -> str:
    """Return the name of a function or a class, or of the class of an object, without the function that it is in.

    Args:
        part: The function, the class or the object.

    >>> name_of(len), name_of([1, 2])
    ('len', 'list')
    """
    name: str = getattr(part, "__qualname__", None) or type(part).__qualname__
    return name.rpartition("<locals>.")[2]


def shortened(names: Sequence[str], most: int = 5) -> list[str]:
    """Return the first names of a list, and how many more there are: a large model has hundreds of modules.

    Args:
        names: The names; each counts once.
        most: Number of names to return.

    >>> shortened(["net.0", "net.1", "net.2", "net.2"], most=2)
    ['net.0', 'net.1', '1 more']
    """
    names = list(dict.fromkeys(names))
    return [*names[:most], f"{len(names) - most} more"] if len(names) > most else names
