"""Check hooks of algorithms, callbacks and loggers on registration: wrong signatures, and misspelled names."""

from __future__ import annotations

import inspect
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from composer.core.algorithm import Algorithm
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.hook_names import is_like_a_hook, is_misspelled, meant_event
from composer.core.logger_destination import LoggerDestination
from composer.core.unused_methods import added_attributes, added_methods, parameters_of
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.hooks import Hooks

__all__ = ["can_listen", "check_listener"]

_EVENTS: Final = {event.value for event in Event}
_HOOK: Final = ("state", "logger")
# Other methods that are called with positional arguments.
_CALLED_WITH: Final = {
    "run_event": ("event", "state", "logger"),
    "__wrap_handlers__": ("event", "handlers"),
    "close": ("state", "logger"),
    "post_close": (),
    "__due__": ("state",),
    "__receive__": ("metrics", "step", "timestamp"),
    "log_metrics": ("metrics", "step"),
    "log_hyperparameters": ("hyperparameters",),
    "log_traces": ("traces",),
    "state_dict": (),
    "load_state_dict": ("state",),
}
# Method names in loggers of other libraries.
_LOGGER_NAMES: Final = {
    "log_hyperparams": "log_hyperparameters",
    "log_hparams": "log_hyperparameters",
    "log_params": "log_hyperparameters",
    "log_scalar": "log_metrics",
    "log_scalars": "log_metrics",
    "log_dict": "log_metrics",
}
_REMEDY: Final = "If other code calls it, let its name begin with an underscore, or filter this warning."

# Classes that were already checked.
_done: weakref.WeakSet[type] = weakref.WeakSet()


def can_listen(listener: Any, cls: type) -> bool:
    """Return whether an object can be an algorithm, callback or logger: one of the class, or a test double.

    Args:
        listener: The object.
        cls: The class. A double has the methods by which events reach it.

    >>> from unittest.mock import Mock
    >>> can_listen(Mock(), Callback), can_listen(Callback, Callback)
    (True, False)
    """
    methods = {Callback: ("run_event",), Algorithm: ("match", "apply")}.get(cls)
    is_double = methods is not None and all(callable(getattr(listener, name, None)) for name in methods)
    return isinstance(listener, cls) or (is_double and not isinstance(listener, type))


def check_listener(listener: Hooks) -> None:
    """Raise on hooks that cannot be called; warn once per class of methods that look like hooks but are never called.

    Args:
        listener: An algorithm, a callback or a logger.

    Raises:
        TypeError: A hook has wrong parameters, or is a coroutine, a generator, or not callable.

    >>> class Mistaken(Callback):
    ...     def epoch_end(self, state): ...
    >>> check_listener(Mistaken())
    Traceback (most recent call last):
    ...
    TypeError: Mistaken.epoch_end(state) cannot be called: write it as epoch_end(self, state, logger).
    """
    cls = type(listener)
    base = next((b for b in (LoggerDestination, Callback, Algorithm) if issubclass(cls, b)), None)
    if base is None:  # for example a mock, which has every method
        return
    is_known = cls in _done
    for name, arguments in _called(listener, base):
        if name in vars(listener) or not is_known:
            _check_call(listener, name, arguments)
    if not is_known:
        for message in _never_called(cls, base):
            warnings.warn(message, ComposerWarning, stacklevel=5)
        _done.add(cls)
    there = {event.value for event in Event if listener.__listens__(event)}
    for name, value in list(vars(listener).items()):
        if isinstance(value, types.FunctionType) and _is_lost(name, value, there):
            warnings.warn(_of_hook(cls, name), ComposerWarning, stacklevel=5)


def _called(listener: Hooks, base: type[Hooks]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the names of the overridden methods, each with the arguments that it will be called with."""
    cls = type(listener)
    dispatches = ("run_event",) if issubclass(cls, Callback) else ("match", "apply")
    overridden = [
        name for name in (*_CALLED_WITH, *dispatches) if hasattr(base, name) and _replaces(listener, base, name)
    ]
    if not any(name in overridden for name in dispatches):
        yield from ((event.value, _HOOK) for event in Event if listener.__listens__(event))
    yield from ((name, _CALLED_WITH[name]) for name in overridden if name in _CALLED_WITH)


def _replaces(listener: Hooks, base: type[Hooks], name: str) -> bool:
    return name in vars(listener) or getattr(type(listener), name) is not getattr(base, name)


def _check_call(listener: Hooks, name: str, arguments: tuple[str, ...]) -> None:
    method, cls = getattr(listener, name), type(listener)
    form = f"{name}({', '.join(('self', *arguments))})"
    if not callable(method):
        raise TypeError(f"{cls.__name__}.{name} is {method!r}, but it must be a method: {form}. Rename the attribute.")
    for predicate, what in (
        (inspect.iscoroutinefunction, "a coroutine (async def)"),
        (inspect.isasyncgenfunction, "an asynchronous generator"),
        (inspect.isgeneratorfunction, "a generator (it has a yield)"),
    ):
        if arguments and predicate(method):
            raise TypeError(f"{cls.__name__}.{name} is {what}, so calling it would do nothing: write a plain {form}.")
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # not written in Python
        return
    names = [p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    is_swapped = any(got != expected and got in arguments for got, expected in zip(names, arguments, strict=False))
    try:
        signature.bind(*arguments)
    except TypeError:
        is_swapped = True
    if is_swapped:
        raise TypeError(f"{cls.__name__}.{name}{signature} cannot be called: write it as {form}.")


def _never_called(cls: type[Hooks], base: type[Hooks]) -> Iterator[str]:
    """Yield a warning for each method or attribute of a class that has no effect."""
    known = [name for name in dir(base) if not name.startswith("_") and name not in _EVENTS]
    methods = [name for name in known if callable(getattr(base, name))]
    for name, function, classes in added_methods(cls, base):
        there = {name for owner in classes for name in vars(owner)}
        meant = next((method for method in methods if is_misspelled(name, method)), None)
        if base is LoggerDestination:
            meant = _LOGGER_NAMES.get(name, meant)
        if meant is not None and meant not in there:
            form = f"{meant}({', '.join(inspect.signature(getattr(base, meant)).parameters)})"
            yield f"{cls.__name__}.{name} is never called. Did you mean {form}? {_REMEDY}"
        elif _is_lost(name, function, there):
            yield _of_hook(cls, name)
    attributes = [name for name in known if name not in methods]
    for name in added_attributes(cls, base):
        meant = next((attribute for attribute in attributes if is_misspelled(name, attribute)), None)
        if meant is not None:
            yield f"{cls.__name__}.{name} has no effect. Did you mean {meant!r}?"


def _is_lost(name: str, function: Callable[..., Any], there: Any) -> bool:
    """Return whether a method looks like a hook for an event that has no other hook."""
    if name in _EVENTS or name.startswith("_"):
        return False
    meant = meant_event(name)
    return is_like_a_hook(name, parameters_of(function)) and (meant is None or meant.value not in there)


def _of_hook(cls: type, name: str) -> str:
    meant = meant_event(name)
    if meant is None:
        remedy = "Hooks are named after composer.Event, such as epoch_end(self, state, logger)."
    else:
        remedy = f"Composer's event is {meant.value}: write {meant.value}(self, state, logger)."
    return f"{cls.__name__}.{name} is never called. {remedy} {_REMEDY}"
