"""Quantization to int8 for inference, as transforms of ``export_for_inference``: torchao, or torch's eager mode."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from composer._lazy import import_extra

__all__ = ["quantize_dynamic", "quantize_int8"]


def quantize_int8(
    model: nn.Module,
    *,
    activations: bool = False,
    choose: Callable[[nn.Module, str], bool] | None = None,
    inplace: bool = False,
) -> nn.Module:
    """Quantize the weights of linear layers to 8 bits for inference with torchao; optionally activations too.

        w = s q          q: 8 bits, from -127 to 127; s: one per output

    A layer needs a quarter of the memory. Use as ``export_for_inference(..., transforms=quantize_int8)`` with the
    format ``torch_export``, or ``onnx`` if activations are not quantized.

    Args:
        model: The model, in evaluation mode.
        activations: Whether to quantize inputs dynamically too, with one scale per row, for integer matrix products.
            Loading the exported model then requires torchao.
        choose: ``(module, name) -> bool``, which modules to quantize; None quantizes every ``torch.nn.Linear``.
        inplace: Whether to change the model itself rather than a copy.

    Raises:
        MissingConditionalImportError: torchao is not installed.

    >>> import functools
    >>> quantize_all = functools.partial(quantize_int8, activations=True)
    >>> net = nn.Sequential(nn.Linear(16, 4)).eval()
    >>> x = torch.randn(2, 16)
    >>> bool((quantize_int8(net)(x) - net(x)).abs().max() < 0.02)
    True

    Paper: https://arxiv.org/abs/2208.07339 (Dettmers et al. 2022)
    """
    torchao = import_extra("torchao.quantization", "quantize", "quantize_int8")
    made = model if inplace else copy.deepcopy(model)
    config = torchao.Int8DynamicActivationInt8WeightConfig() if activations else torchao.Int8WeightOnlyConfig()
    torchao.quantize_(made, config, **({} if choose is None else {"filter_fn": choose}))
    if not activations:
        # As plain tensors, so that the exported model loads without torchao.
        made = import_extra("torchao.utils", "quantize", "quantize_int8").unwrap_tensor_subclass(made)
    return made


def quantize_dynamic(
    model: nn.Module,
    *,
    qconfig_spec: set[type[nn.Module]] | dict[Any, Any] | None = None,
    dtype: torch.dtype = torch.qint8,
    mapping: dict[Any, Any] | None = None,
    inplace: bool = False,
) -> nn.Module:
    """Quantize the weights of linear layers for inference on the CPU; activations are quantized dynamically.

        w = s (q - z)          q: 8 bits, s and z: one of each per tensor

    Use as ``export_for_inference(..., transforms=quantize_dynamic)`` with the format ``torchscript``. This is torch's
    eager mode quantization, which torch has deprecated.

    Args:
        model: The model, in evaluation mode, with float32 weights.
        qconfig_spec: Classes of the layers to quantize, or a dict from names or classes to configurations; None is
            ``{torch.nn.Linear}``.
        dtype: ``torch.qint8`` or ``torch.float16``.
        mapping: Dict from classes to their quantized classes; None uses torch's defaults.
        inplace: Whether to change the model itself rather than a copy.

    >>> small = quantize_dynamic(nn.Sequential(nn.Linear(4, 2)).eval())
    >>> small[0].weight().dtype
    torch.qint8

    Paper: https://arxiv.org/abs/1712.05877 (Jacob et al. 2017)
    """
    with warnings.catch_warnings():
        # Deprecations of the module, and of the dtypes of its tensors.
        warnings.filterwarnings("ignore", category=DeprecationWarning, message="torch.ao.quantization is deprecated")
        warnings.filterwarnings("ignore", category=UserWarning, message="torch.quantize_per_tensor")
        return torch.ao.quantization.quantize_dynamic(  # pyright: ignore[reportDeprecated]
            model, {nn.Linear} if qconfig_spec is None else qconfig_spec, dtype=dtype, mapping=mapping, inplace=inplace
        )
