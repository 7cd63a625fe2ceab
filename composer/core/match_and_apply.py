"""Call ``match`` and ``apply`` of custom algorithms, whose parameters may have any order and names."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from composer.core.event import Event

if TYPE_CHECKING:
    from composer.core.algorithm import Algorithm
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["bind"]

_NAMES = ("event", "state", "logger")
_FORMS = {
    "match": "match(self, event, state), match(self, state, event, logger)",
    "apply": "apply(self, event, state, logger), apply(self, state, event, logger)",
}
_POSITIONAL = {"match": 2, "apply": 3}


def bind(algorithm: Algorithm, method: str) -> Callable[[Event, State, Logger], Any]:
    """Return a function ``(event, state, logger)`` that calls a method with the arguments that its parameters name.

    Args:
        algorithm: The object that has the method.
        method: ``"match"`` or ``"apply"``. Parameters with other names receive the remaining ones of event, state and
            logger, in this order.

    Raises:
        TypeError: The method takes too many or too few parameters.

    >>> from composer import Algorithm
    >>> class Swapped(Algorithm):
    ...     def match(self, state, event):
    ...         return state == "a state" and event is Event.INIT
    >>> bind(Swapped(), "match")(Event.INIT, "a state", None)
    True
    """
    function = getattr(algorithm, method)
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keyword_only = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)

    named = {p.name for p in (*positional, *keyword_only) if p.name in _NAMES}
    left = [name for name in _NAMES[: _POSITIONAL[method]] if name not in named]
    unnamed = [p for p in positional if p.name not in named]
    required = sum(p.default is p.empty for p in unnamed)
    too_many = required > len(left) or any(p.default is p.empty and p.name not in named for p in keyword_only)
    too_few = required and not takes_any and len(unnamed) < len(left)
    if too_many or too_few:
        raise TypeError(
            f"{type(algorithm).__name__}.{method}{signature} cannot be called: write it as {_FORMS[method]}, or with "
            f"another subset and order of these names."
        )

    order: list[str] = []
    by_name = [p.name for p in keyword_only if p.name in named]
    for index, parameter in enumerate(positional):
        if parameter.name in named:
            order.append(parameter.name)
        elif required and left:
            order.append(left.pop(0))
        else:  # It keeps its default, so the parameters after it cannot be passed by position.
            by_name += [p.name for p in positional[index:] if p.name in named and p.kind is not p.POSITIONAL_ONLY]
            break
    else:
        order += left if takes_any else ()
    if takes_any_name and not takes_any and not required:
        by_name += [name for name in _NAMES if name not in named]
    return _caller(function, order, by_name)


def _caller(
    function: Callable[..., Any], order: list[str], by_name: list[str]
) -> Callable[[Event, State, Logger], Any]:
    """Build the call, so that in the usual cases nothing is looked up by name when an event fires."""
    if not by_name:
        if order == ["event", "state"]:
            return lambda event, state, logger: function(event, state)
        if order == ["event", "state", "logger"]:
            return function
        if len(order) > 1:
            pick = operator.itemgetter(*(_NAMES.index(name) for name in order))
            return lambda *given: function(*pick(given))

    def call(event: Event, state: State, logger: Logger) -> Any:
        given = {"event": event, "state": state, "logger": logger}
        return function(*[given[name] for name in order], **{name: given[name] for name in by_name})

    return call
