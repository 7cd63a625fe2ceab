"""Create algorithms, callbacks and loggers from short names such as "mixup", "lr_monitor", "csv"."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from composer import trees
from composer._secrets.masking import mask_text
from composer._text import did_you_mean
from composer.core.algorithm import Algorithm
from composer.core.callback import Callback
from composer.core.evaluator import Evaluator
from composer.core.listener_check import can_listen
from composer.core.logger_destination import LoggerDestination
from composer.optim.schedule import ComposerScheduler
from composer.profiler.profiler import Profiler

__all__ = ["instances"]

T = TypeVar("T")

# Packages whose classes an argument accepts by short name; loggers are callbacks, too.
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "algorithms": ("composer.algorithms",),
    "loggers": ("composer.loggers",),  # before callbacks, which accept loggers too
    "callbacks": ("composer.callbacks", "composer.loggers"),
}
# Class -> its noun and the argument it belongs to, for objects passed to the wrong argument; the first match is used.
_ARGUMENTS: tuple[tuple[type, str, str], ...] = (
    (Algorithm, "an algorithm", "algorithms"),
    (LoggerDestination, "a logger", "loggers"),
    (Callback, "a callback", "callbacks"),
    (Optimizer, "an optimizer", "optimizers"),
    (ComposerScheduler, "a schedule", "schedulers"),
    (LRScheduler, "a schedule", "schedulers"),
    (Evaluator, "an evaluator", "eval_dataloader"),
    (DataLoader, "a data loader", "train_dataloader or eval_dataloader"),
    (Profiler, "a profiler", "profiler"),
    (nn.Module, "a module", "model"),
)


def instances(argument: str, value: Any, base: type[T]) -> list[T]:
    """Return the entries of an argument as a list of objects of one class; create objects for short names.

    Args:
        argument: Name of the argument: "algorithms", "callbacks" or "loggers".
        value: One entry, a sequence of entries or None.
        base: The required base class.

    Raises:
        TypeError: An entry is not of the class, or a short name is that of a class with required arguments.
        ValueError: A short name does not exist.

    >>> instances("algorithms", ["blurpool"], Algorithm)
    [BlurPool(...)]
    """
    return [_instance(argument, entry, base) for entry in trees.ensure_tuple(value)]


def _instance(argument: str, entry: Any, base: type[T]) -> T:
    if isinstance(entry, str):
        entry = _of_name(argument, entry, base)
    if can_listen(entry, base):
        return entry
    if isinstance(entry, type):
        raise TypeError(f"{argument}: got the class {entry.__name__}; give an object of it: {entry.__name__}(...).")
    shown = mask_text(repr(entry))
    for cls, noun, there in _ARGUMENTS:
        if isinstance(entry, cls):
            raise TypeError(f"{argument}: {type(entry).__name__} is {noun}; give it as {there}=. Got {shown}.")
    message = f"{argument}: every entry must be of type {base.__name__}; got {shown}."
    raise TypeError(message + _instead(argument, type(entry)))


def _instead(argument: str, cls: type) -> str:
    """Return a hint with the equivalent of another library's class, or an empty string."""
    if cls.__module__ == "builtins":
        return ""
    from composer._compat.name_hints import class_hint

    homes = {name: package for package in _PACKAGES["callbacks"] + _PACKAGES["algorithms"] for name in _names(package)}
    return class_hint(cls.__name__, homes)


def _of_name(argument: str, name: str, base: type) -> Any:
    """Create the object of a short name."""
    found = _find(_PACKAGES[argument], name)
    if found is None:
        for other, packages in _PACKAGES.items():
            if (there := _find(packages, name)) is not None:
                raise ValueError(
                    f"{argument}={name!r}: {there.__name__} belongs to another argument: {other}={name!r}."
                )
        names = [_snake(one) for package in _PACKAGES[argument] for one in _names(package)]
        short = [one.removesuffix("_logger") for one in names]
        hint = did_you_mean(name, [*short, *names]) or f" Available: {', '.join(sorted(set(short)))}."
        raise ValueError(f"{argument}: no {base.__name__} has the name {mask_text(name)!r}.{hint}")
    needed = [
        parameter.name
        for parameter in inspect.signature(found).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        call = f"{found.__name__}({', '.join(f'{one}=...' for one in needed)})"
        raise TypeError(f"{argument}={name!r}: {found.__name__} requires arguments; pass an object: {call}.")
    return found()


def _find(packages: tuple[str, ...], name: str) -> Any:
    """Return the class of a short name, or None."""
    from composer._compat.name_hints import class_meant

    for package in packages:
        if (meant := class_meant(name, _names(package))) is not None:
            return getattr(importlib.import_module(package), meant)
    return None


@functools.cache
def _names(package: str) -> tuple[str, ...]:
    """Return the names of the algorithms, callbacks or loggers of a package, without abstract classes."""
    module = importlib.import_module(package)
    takes = (Algorithm, Callback)
    found = {name: getattr(module, name) for name in module.__all__ if name[0].isupper()}
    return tuple(
        name
        for name, one in found.items()
        if isinstance(one, type) and issubclass(one, takes) and one.__module__.startswith(package)
    )


def _snake(name: str) -> str:
    """Return a class name in snake case: "lr_monitor"."""
    return re.sub(r"(?<=[A-Za-z0-9])(?=[A-Z][a-z])", "_", name).lower()
