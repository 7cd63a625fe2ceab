"""Making algorithms again from how a checkpoint describes them, without running what it says."""

from __future__ import annotations

import ast
import inspect
from typing import Any, cast

from composer.core.algorithm import Algorithm
from composer.core.time import Time, TimeUnit

__all__ = ["algorithm_from"]

_LONGEST = 10_000


def algorithm_from(description: str, kind: type[Algorithm]) -> Algorithm:
    """Make an algorithm of its ``repr``.

    Only plain values are understood: numbers, text, None, and containers of them, and :class:`.Time`.

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
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [_value(element) for element in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {_value(cast(ast.expr, key)): _value(value) for key, value in zip(node.keys, node.values, strict=True)}
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)!r} is not a plain value.") from None
