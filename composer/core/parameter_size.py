"""Number of elements and bytes of a parameter: sharded (global size), quantized, uninitialized, on the meta device."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

__all__ = ["format_bytes", "format_count", "num_bytes", "num_elements"]

_PLAIN = frozenset({Tensor, torch.nn.Parameter})


def num_elements(parameter: Any) -> int | None:
    """Return the number of elements of the full parameter; None if it is not initialized yet.

    Sharded parameters (``DTensor``, DeepSpeed) count with their global shape. Nothing is communicated or read.

    Args:
        parameter: A parameter or buffer.

    >>> num_elements(torch.nn.Parameter(torch.zeros(2, 3)))
    6
    >>> num_elements(torch.nn.LazyLinear(2).weight) is None
    True
    """
    if type(parameter) in _PLAIN:
        return parameter.numel()
    if is_lazy(parameter):
        return None
    if hasattr(parameter, "ds_numel"):  # DeepSpeed leaves an empty tensor
        return int(parameter.ds_numel)
    shape = getattr(getattr(parameter, "quant_state", None), "shape", None)
    if shape is not None:  # bitsandbytes packs two elements into a byte
        return math.prod(shape)
    return parameter.numel()


def num_bytes(parameter: Any) -> int:
    """Return the memory of the full parameter in bytes, 0 if it is not initialized yet.

    Of quantized tensors it is that of the tensors that they are made of.

    Args:
        parameter: A parameter or buffer.

    >>> num_bytes(torch.zeros(3, dtype=torch.bfloat16))
    6
    """
    number = num_elements(parameter)
    if number is None:
        return 0
    if type(parameter) not in _PLAIN:
        if getattr(getattr(parameter, "quant_state", None), "shape", None) is not None:
            return parameter.numel() * parameter.element_size()
        # DTensor is made of a shard only, whose global size is that of its elements.
        if hasattr(parameter, "__tensor_flatten__") and not hasattr(parameter, "device_mesh"):
            names, _ = parameter.__tensor_flatten__()
            return sum(num_bytes(getattr(parameter, name)) for name in names)
    return number * parameter.element_size()


def format_count(number: int) -> str:
    """Return a large number in a few characters.

    Args:
        number: The number.

    >>> format_count(11_689_512), format_count(999_960), format_count(640)
    ('11.7M', '1.0M', '640')
    """
    value = float(number)
    for unit in ("", "K", "M", "B"):
        if abs(round(value, 1)) < 1000:
            return f"{value:.1f}{unit}" if unit else str(number)
        value /= 1000
    return f"{value:.1f}T"


def format_bytes(number: int) -> str:
    """Return an amount of memory in a few characters.

    Args:
        number: Number of bytes.

    >>> format_bytes(46_758_048), format_bytes(12)
    ('46.8 MB', '12 B')
    """
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if round(value, 1) < 1000:
            return f"{value:.1f} {unit}" if unit != "B" else f"{number} B"
        value /= 1000
    return f"{value:.1f} TB"
