"""Keep the forward and backward passes of exact mode in float64, also where the program asks for a narrower dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State

__all__ = ["InFloat64", "WideFunctions"]

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_OPERATORS = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__ipow__", "__setitem__")
# Functions that write to a tensor that they get, which must not be a copy of it. A tuple, since the compiler traces a
# look-up in it, but neither one in a set nor a method of a name.
_WRITING = tuple(
    getattr(Tensor, name)
    for name in dir(Tensor)
    if (name.endswith("_") and not name.endswith("__")) or name in _OPERATORS
)


class WideFunctions(TorchFunctionMode):
    """Calls functions of torch with float64 in place of narrower dtypes, and with float64 tensors if any tensor is one.

    ``x.float()``, ``x.to(torch.float32)`` and ``torch.zeros(2, dtype=torch.float32)`` give float64, and a float32
    constant that meets a float64 tensor is converted, where torch would raise an error or round.

    >>> with WideFunctions():
    ...     x = torch.ones(2, dtype=torch.float64).float() @ torch.ones(2, dtype=torch.float32)
    >>> x.dtype
    torch.float64
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function with wide arguments."""
        kwargs = {} if kwargs is None else kwargs
        if func in (Tensor.float, Tensor.half, Tensor.bfloat16):
            func = Tensor.double
        wide = (
            func not in _WRITING
            and "out" not in kwargs
            and any(_has_float64(value) for value in [*args, *kwargs.values()])
        )
        return func(
            *[_widened(value, wide) for value in args],
            **{key: _widened(value, wide) for key, value in kwargs.items()},
        )


def _has_float64(value: Any) -> bool:
    """Return whether an argument is a float64 tensor, or a list of some."""
    if type(value) in (list, tuple):
        return any(_has_float64(each) for each in value)
    return isinstance(value, Tensor) and value.dtype is torch.float64


def _widened(value: Any, wide: bool) -> Any:
    """Return an argument with float64 in place of narrower dtypes.

    Args:
        value: The argument.
        wide: Whether to convert tensors too.
    """
    if type(value) in (list, tuple):
        return type(value)([_widened(each, wide) for each in value])
    if isinstance(value, Tensor):
        return value.double() if wide and value.dtype in _NARROW else value
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value


class InFloat64(Callback):
    """Runs the forward pass, the loss and the backward pass of each microbatch with :class:`WideFunctions`.

    >>> InFloat64().writes_output
    False
    """

    def __init__(self) -> None:
        self._mode: WideFunctions | None = None

    def before_forward(self, state: State, logger: Logger) -> None:
        """Begin."""
        self._mode = WideFunctions()
        self._mode.__enter__()

    def after_backward(self, state: State, logger: Logger) -> None:
        """End."""
        assert self._mode is not None
        self._mode.__exit__(None, None, None)
        self._mode = None
