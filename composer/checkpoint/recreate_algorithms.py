"""Recreate the algorithms that a saved model needs, from their descriptions, without running code of a checkpoint."""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from composer._secrets.masking import mask_text
from composer._text import one_of
from composer.checkpoint.named_states import as_named, class_of
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import AlgorithmPass, arrange
from composer.core.event import Event
from composer.core.time import Time, TimeUnit
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["algorithm_from", "recreate_algorithms"]

_LONGEST = 10_000


def algorithm_from(description: str, kind: type[Algorithm]) -> Algorithm:
    """Make an algorithm of its ``repr``.

    Only plain values are understood: numbers, text, None, and containers of them, :class:`.Time` and :class:`.Event`.

    Args:
        description: Such as ``"BlurPool(replace_convs=True, min_channels=16)"``.
        kind: Its class.

    Raises:
        ValueError: It is anything else.

    >>> class Scale(Algorithm):
    ...     def __init__(self, factor):
    ...         self.factor = factor
    >>> algorithm_from("Scale(factor=0.5)", Scale)
    Scale(factor=0.5)
    """
    try:
        call = ast.parse(description[:_LONGEST], mode="eval").body if isinstance(description, str) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two of what is nested too deeply
        call = None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != kind.__name__:
        raise ValueError(f"{description!r} is no description of {kind.__name__} that it can be made of.")
    try:
        positional = [_value(argument) for argument in call.args]
        named = {cast(str, keyword.arg): _value(keyword.value) for keyword in call.keywords}
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{description!r} cannot be made again: {error} Give the algorithm to the Trainer instead."
        ) from None
    # Arguments that a later version has dropped would otherwise keep old checkpoints from loading.
    known = inspect.signature(kind).parameters
    return kind(*positional, **{name: value for name, value in named.items() if name in known})


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Time":
        return Time(*[_value(argument) for argument in node.args])
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "TimeUnit" and node.attr in TimeUnit.__members__:
        return TimeUnit[node.attr]
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Event" and node.attr in Event.__members__:
        return Event[node.attr]
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [_value(element) for element in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {_value(cast(ast.expr, key)): _value(value) for key, value in zip(node.keys, node.values, strict=True)}
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)!r} is not a plain value.") from None


def recreate_algorithms(
    state: State, logger: Logger, saved: Any, exclude: Sequence[str], passes: Sequence[AlgorithmPass]
) -> None:
    """Add the algorithms that the saved model needs and the run lacks, and apply them to the model.

    One that cannot be recreated, as its arguments are others by now, is a warning; if the weights need it, they do not
    fit, which loading them reports.

    Args:
        state: The state of the run.
        logger: Passed to the algorithms.
        saved: The algorithms of the checkpoint, pairs of class name and state.
        exclude: Class names of those to leave out.
        passes: Reorder the algorithms.

    Raises:
        ValueError: A name in ``exclude`` is unknown.

    >>> from composer import Logger, State
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> recreate_algorithms(state, Logger(state), [("EMA", {"repr": "EMA()"})], (), ())
    >>> state.algorithms
    []
    """
    described = {name: _repr_in(value) for name, value in as_named(saved).items()}
    for name in exclude:
        one_of("load_exclude_algorithms", name, [class_of(one) for one in described] or (name,))
    made = [] if not described else list(_missing(state, described, exclude))
    for algorithm in made:
        name = type(algorithm).__qualname__
        message = (
            f"Automatically adding required_on_load algorithm {algorithm!r}, with which the checkpoint was saved. To "
            f"load without it, although some weights may not fit then, give load_exclude_algorithms=[{name!r}]."
        )
        warnings.warn(message, ComposerWarning, stacklevel=4)
    if made:
        state.algorithms = [*state.algorithms, *made]
    for event in (Event.INIT, Event.BEFORE_LOAD):  # both are over in the run; AFTER_LOAD is to come
        for algorithm in arrange(made, event, passes):
            if algorithm.match(event, state):
                algorithm.apply(event, state, logger)


def _missing(state: State, described: dict[str, str], exclude: Sequence[str]) -> Iterator[Algorithm]:
    """Make the algorithms that the run lacks; warn of those with other arguments and those that cannot be made."""
    present: dict[str, list[str]] = {}
    for algorithm in state.algorithms:
        present.setdefault(type(algorithm).__qualname__, []).append(mask_text(repr(algorithm)))
    for key, description in described.items():
        name = class_of(key)
        kind = state.find_algorithm(name)
        if kind is None or not kind.required_on_load() or name in exclude or description in present.get(name, ()):
            continue
        message = f"The checkpoint was saved with the required_on_load algorithm {description}"
        beside = f", and is loaded with {', '.join(present.get(name, ()))}: weights may not fit, or do something else."
        try:
            algorithm = algorithm_from(description, kind)
        except (TypeError, ValueError) as error:
            reason = f", which cannot be recreated: {error} Without it, weights may not fit, or do something else."
            warnings.warn(message + (beside if name in present else reason), ComposerWarning, stacklevel=6)
            continue
        if name not in present:
            yield algorithm
        elif mask_text(repr(algorithm)) not in present[name]:  # an older version wrote the same in other words
            warnings.warn(message + beside, ComposerWarning, stacklevel=6)


def _repr_in(state: Any) -> str:
    found = cast("dict[str, Any]", state).get("repr", "") if isinstance(state, dict) else ""
    return found if isinstance(found, str) else ""
