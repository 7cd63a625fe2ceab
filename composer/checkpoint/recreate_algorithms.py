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


def algorithm_from(description: str, cls: type[Algorithm]) -> Algorithm:
    """Create an algorithm from its ``repr``.

    Only plain values are parsed: numbers, text, None, and containers of them, :class:`.Time` and :class:`.Event`.

    Args:
        description: Such as ``"BlurPool(replace_convs=True, min_channels=16)"``.
        cls: Its class.

    Raises:
        ValueError: The description is anything else.

    >>> class Scale(Algorithm):
    ...     def __init__(self, factor):
    ...         self.factor = factor
    >>> algorithm_from("Scale(factor=0.5)", Scale)
    Scale(factor=0.5)
    """
    try:
        call = ast.parse(description[:_LONGEST], mode="eval").body if isinstance(description, str) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two for deeply nested code
        call = None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != cls.__name__:
        raise ValueError(f"{description!r} is not a description from which {cls.__name__} can be recreated.")
    try:
        positional = [_value(argument) for argument in call.args]
        named = {cast(str, keyword.arg): _value(keyword.value) for keyword in call.keywords}
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{description!r} cannot be recreated: {error} Pass the algorithm to the Trainer instead."
        ) from None
    # Drop arguments that no longer exist, so that old checkpoints load.
    known = inspect.signature(cls).parameters
    return cls(*positional, **{name: value for name, value in named.items() if name in known})


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

    An algorithm that cannot be recreated, because its arguments have changed, gives a warning. If the weights need it,
    loading them reports the mismatch.

    Args:
        state: The state of the run.
        logger: Passed to the algorithms.
        saved: The algorithms of the checkpoint, pairs of class name and state.
        exclude: Class names of algorithms that are not recreated.
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
            f"load without it, although some weights may not match then, use load_exclude_algorithms=[{name!r}]."
        )
        warnings.warn(message, ComposerWarning, stacklevel=4)
    if made:
        state.algorithms = [*state.algorithms, *made]
    for event in (Event.INIT, Event.BEFORE_LOAD):  # both have passed in this run; AFTER_LOAD is still to come
        for algorithm in arrange(made, event, passes):
            if algorithm.match(event, state):
                algorithm.apply(event, state, logger)


def _missing(state: State, described: dict[str, str], exclude: Sequence[str]) -> Iterator[Algorithm]:
    """Create the algorithms that the run lacks; warn about different arguments and those that cannot be created."""
    present: dict[str, list[str]] = {}
    for algorithm in state.algorithms:
        present.setdefault(type(algorithm).__qualname__, []).append(mask_text(repr(algorithm)))
    for key, description in described.items():
        name = class_of(key)
        cls = state.find_algorithm(name)
        if cls is None or not cls.required_on_load() or name in exclude or description in present.get(name, ()):
            continue
        message = f"The checkpoint was saved with the required_on_load algorithm {description}"
        mismatch = (
            f", and is loaded with {', '.join(present.get(name, ()))}: weights may not match, or behave differently."
        )
        try:
            algorithm = algorithm_from(description, cls)
        except (TypeError, ValueError) as error:
            reason = f", which cannot be recreated: {error} Without it, weights may not match, or behave differently."
            warnings.warn(message + (mismatch if name in present else reason), ComposerWarning, stacklevel=6)
            continue
        if name not in present:
            yield algorithm
        elif mask_text(repr(algorithm)) not in present[name]:  # an older version had another repr
            warnings.warn(message + mismatch, ComposerWarning, stacklevel=6)


def _repr_in(state: Any) -> str:
    found = cast("dict[str, Any]", state).get("repr", "") if isinstance(state, dict) else ""
    return found if isinstance(found, str) else ""
