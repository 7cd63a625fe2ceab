"""Smaller weights for inference."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

__all__ = ["quantize_dynamic"]


def quantize_dynamic(
    model: nn.Module,
    *,
    qconfig_spec: set[type[nn.Module]] | dict[Any, Any] | None = None,
    dtype: torch.dtype = torch.qint8,
    mapping: dict[Any, Any] | None = None,
    inplace: bool = False,
) -> nn.Module:
    """Quantise the weights of linear layers, for inference on the CPU; activations are quantised as they come.

        w = s (q - z)          q: 8 bits, s and z: one of each for a tensor

    To be given to ``export_for_inference(..., transforms=quantize_dynamic)`` with the format ``torchscript``. It is
    torch's eager quantisation, which torch calls deprecated.

    Args:
        model: The model, in evaluation mode, with weights of float32.
        qconfig_spec: Classes of the layers to quantise, or a dict from names or classes to configurations; None is
            ``{torch.nn.Linear}``.
        dtype: ``torch.qint8`` or ``torch.float16``.
        mapping: Which quantised class stands in for a class; None is torch's table.
        inplace: Whether to change the model itself rather than a copy.

    >>> small = quantize_dynamic(nn.Sequential(nn.Linear(4, 2)).eval())
    >>> small[0].weight().dtype
    torch.qint8

    Paper: https://arxiv.org/abs/1712.05877 (Jacob et al. 2017)
    """
    with warnings.catch_warnings():
        # The deprecation of the whole, and of the dtypes of its tensors.
        warnings.filterwarnings("ignore", category=DeprecationWarning, message="torch.ao.quantization is deprecated")
        warnings.filterwarnings("ignore", category=UserWarning, message="torch.quantize_per_tensor")
        return torch.ao.quantization.quantize_dynamic(  # pyright: ignore[reportDeprecated]
            model, {nn.Linear} if qconfig_spec is None else qconfig_spec, dtype=dtype, mapping=mapping, inplace=inplace
        )
