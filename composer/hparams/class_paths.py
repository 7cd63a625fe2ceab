"""Resolve ``class_path`` in configurations: short names of composer and torch classes, script names, import paths."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from composer._text import did_you_mean

__all__ = ["find", "full_path", "short_names"]

# Earlier packages take precedence.
_PACKAGES = (
    "composer.algorithms",
    "composer.callbacks",
    "composer.loggers",
    "composer.models",
    "composer.datasets",
    "composer.optim",
    "composer.profiler",
    "composer.core",
    "torch.optim",
    "torch.optim.lr_scheduler",
    "torch.utils.data",
)


@functools.cache
def short_names() -> dict[str, str]:
    """Return the import paths of short names: public classes of composer, and torch's optimizers and data classes.

    >>> names = short_names()
    >>> names["MixUp"], names["SGD"]
    ('composer.algorithms.MixUp', 'torch.optim.SGD')
    """
    found: dict[str, str] = {}
    for package in _PACKAGES:
        for name in importlib.import_module(package).__all__:
            if not name.startswith("_") and "." not in name:
                found.setdefault(name, f"{package}.{name}")
    return found


def full_path(name: str) -> str:
    """Return the import path of a name; a name that the script defines is returned unchanged.

    Args:
        name: A name of :func:`short_names`, a name that the script defines, or an import path.

    Raises:
        ValueError: It is none of these.

    >>> full_path("EMA"), full_path("torch.nn.Linear")
    ('composer.algorithms.EMA', 'torch.nn.Linear')
    """
    if not all(name.split(".")):
        raise ValueError(f"{name!r} is not an import path such as package.module.Name.")
    if "." in name or hasattr(sys.modules["__main__"], name):
        return name
    names = short_names()
    if name not in names:
        raise ValueError(
            f"unknown class {name!r}.{did_you_mean(name, names)} Pass custom classes by their import path, such as "
            f"package.module.{name}."
        )
    return names[name]


def find(path: str) -> Callable[..., Any]:
    """Import the class or function of an import path, or of a name that the script defines.

    Args:
        path: The result of :func:`full_path`.

    Raises:
        ValueError: It does not exist, or is not callable.

    >>> find("torch.nn.Linear")
    <class 'torch.nn.modules.linear.Linear'>
    """
    parts = path.split(".") if "." in path else ["__main__", path]
    # The longest prefix of the path that is a module; the rest are classes and their methods.
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        try:
            found: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module exists, but one of its imports does not
    else:
        raise ValueError(f"no module named {parts[0]!r}, in {path!r}.")
    for part in parts[length:]:
        if not hasattr(found, part):
            raise ValueError(f"{path!r} does not exist.{did_you_mean(part, dir(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{path!r} is neither a class nor a function.")
    return found
