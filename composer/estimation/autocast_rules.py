"""CUDA's rules of automatic mixed precision, in place of the CPU's, for the operators of a trial.

On CUDA, autocast runs normalization, softmax, losses and sums in float32, which the CPU runs in the lower precision;
the activations that are saved differ by as much. The lists are those of PyTorch's documentation ("Automatic Mixed
Precision package: autocast op reference") and of ``ATen/autocast_mode.h``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

__all__ = ["cuda_autocast_rules"]

_FLOAT32 = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "_upsample_nearest_exact1d",
    "upsample_nearest2d",
    "_upsample_nearest_exact2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
]
# Sums and the like read the lower precision and return float32; there is no copy of their input.
_FLOAT32_RESULT = [
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
]
_WIDEST = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
]
# Those that the CPU leaves alone; the other operators of the list, such as matmul, have the same rule on both.
_LOWER = ["prelu", "addmv", "addr", "mv"]
# Of the CPU alone, and with the same outcome on CUDA, where they are made of operators with a rule.
_KEPT = ("conv1d.padding", "conv2d.padding", "conv3d.padding", "mkldnn_rnn_layer")
_NORMS = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}

Kernel = Callable[..., Any]


@contextmanager
def cuda_autocast_rules() -> Generator[None]:
    """Let autocast on the CPU choose dtypes as on CUDA, in a ``with`` block. It holds for the whole process.

    >>> x = torch.ones(2, 2, dtype=torch.bfloat16)
    >>> with cuda_autocast_rules(), torch.autocast("cpu", torch.bfloat16):
    ...     torch.nn.functional.layer_norm(x, (2,)).dtype
    torch.float32
    """
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="[^Z]*Overriding a previously registered kernel")
            for name, kernel in _kernels().items():
                library.impl(name, kernel, "AutocastCPU", allow_override=True)
        yield
    finally:
        library._destroy()


def _kernels() -> dict[str, Kernel]:
    """Return what replaces the CPU's autocast, by the name of the operator."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key
    cuda = set(registered("AutocastCUDA"))
    kept = cuda | {f"aten::{name}" for name in _KEPT}
    only_cpu = {name for name in registered("AutocastCPU") if name.startswith("aten::") and name not in kept}
    kernels: dict[str, Kernel] = {name.removeprefix("aten::"): torch.library.fallthrough_kernel for name in only_cpu}
    kernels |= {name: _casting(_operator(name), _to_float32) for name in _FLOAT32}
    kernels |= {name: _with_result(_operator(name)) for name in _FLOAT32_RESULT}
    kernels |= {name: _casting(_operator(name), _to_widest) for name in _WIDEST}
    kernels |= {name: _casting(_operator(name), _to_lower) for name in _LOWER}
    for name, overload in _NORMS.items():
        kernels[name] = _norm(_operator(name), getattr(torch.ops.aten.norm, overload))
    return kernels


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def _is_eligible(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _to_float32(values: Any) -> Any:
    return tree_map(lambda each: each.float() if _is_eligible(each) else each, values)


def _to_lower(values: Any) -> Any:
    dtype = torch.get_autocast_dtype("cpu")
    return tree_map(lambda each: each.to(dtype) if _is_eligible(each) else each, values)


def _to_widest(values: Any) -> Any:
    found: list[torch.dtype] = []
    tree_map(lambda each: found.append(each.dtype) if _is_eligible(each) else None, values)
    dtype = torch.float32 if torch.float32 in found else torch.get_autocast_dtype("cpu")
    return tree_map(lambda each: each.to(dtype) if _is_eligible(each) else each, values)


def _casting(operator: Any, cast: Callable[[Any], Any]) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            args, kwargs = cast((args, kwargs))
            return operator(*args, **kwargs)

    return kernel


def _with_result(operator: Any) -> Kernel:
    """Compute in float32, unless the caller names a dtype."""
    position = [argument.name for argument in operator._schema.arguments].index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            given = args[position] if len(args) > position else kwargs.get("dtype")
            if given is None and _is_eligible(args[0]):
                args, kwargs = args[:position], {**kwargs, "dtype": torch.float32}
                if not operator._schema.arguments[position].kwarg_only:
                    defaults = [argument.default_value for argument in operator._schema.arguments[len(args) : position]]
                    args = (*args, *defaults, kwargs.pop("dtype"))
            return operator(*args, **kwargs)

    return kernel


def _norm(operator: Any, with_dtype: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            if not _is_eligible(args[0]):
                return operator(*args, **kwargs)
            defaults = [argument.default_value for argument in operator._schema.arguments[len(args) :]]
            return with_dtype(*args, *defaults, dtype=torch.float32)

    return kernel
