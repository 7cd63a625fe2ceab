"""FSDP mixed precision: the dtypes in which parameters are all-gathered and gradients are reduced."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from composer._text import one_of
from composer.parallel.fsdp_units import has_fsdp_units
from composer.parallel.wrapping import is_norm_or_embedding
from composer.precision import Precision

if TYPE_CHECKING:
    from composer.parallel.config import FSDPConfig
    from composer.parallel.wrapping import Unit

__all__ = ["autocast_cache_enabled", "mixed_precision_policy"]

_DTYPES = {
    "amp_bf16": torch.bfloat16, "amp_fp16": torch.float16, "amp_fp8": torch.bfloat16, "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64,
    "fp16": torch.float16, "fp32": torch.float32,
}  # fmt: skip
_POLICY_KEYS = ("param_dtype", "reduce_dtype", "output_dtype", "cast_forward_inputs", "buffer_dtype")


def mixed_precision_policy(
    mixed_precision: str | Mapping[str, Any], precision: str | Precision | None = None
) -> MixedPrecisionPolicy:
    """Return the ``MixedPrecisionPolicy`` of ``fully_shard``.

    Autocast stays active: with ``"DEFAULT"``, weights are already in the dtype to which it would cast them, which
    halves the all-gathered bytes. Weights of normalizations and embeddings, which it would not cast, are all-gathered
    in float32, see :func:`.float32_units`, so residual streams are float32 as with data parallelism. Inputs of blocks
    are cast only in precisions without autocast.

    Args:
        mixed_precision: ``"DEFAULT"``, ``"PURE"``, ``"FULL"`` or a mapping, see :class:`.FSDPConfig`.
        precision: The training precision.

    Raises:
        ValueError: A key or a dtype is unknown.

    >>> mixed_precision_policy("DEFAULT", "amp_bf16").param_dtype
    torch.bfloat16
    """
    precision = Precision.FP32 if precision is None else Precision(precision)
    low = None if precision is Precision.FP32 else _DTYPES[precision.value]
    if isinstance(mixed_precision, str):
        if low is None or mixed_precision == "FULL":
            return MixedPrecisionPolicy(cast_forward_inputs=False)
        reduce = torch.float32 if mixed_precision == "DEFAULT" else low
        return MixedPrecisionPolicy(param_dtype=low, reduce_dtype=reduce, cast_forward_inputs=False)
    values: dict[str, Any] = {"cast_forward_inputs": low is None}
    for key, value in mixed_precision.items():
        one_of("fsdp: the key of mixed_precision", key, _POLICY_KEYS)
        values[key] = _as_dtype(key, value) if key.endswith("_dtype") else bool(value)
    if values.pop("buffer_dtype", None) not in (None, torch.float32):
        raise ValueError("fsdp: buffer_dtype is not supported, since buffers keep their dtype; leave it out.")
    return MixedPrecisionPolicy(**values)


def autocast_cache_enabled(
    model: nn.Module, units: Sequence[Unit], config: FSDPConfig, precision: str | Precision | None = None
) -> bool:
    """Return whether autocast may cache cast weights until the end of the forward pass.

    Not where a block's weights are resharded after its forward pass and are cast by autocast rather than all-gathered
    in the low-precision dtype: without gradients, or with activation checkpointing, the casts of all blocks would be in
    memory together. Elsewhere a block that runs several times is cast once. Autocast does not cast normalizations and
    embeddings.

    Args:
        model: The model, before it is sharded here.
        units: The FSDP units, with their settings.
        config: The configuration, for everything without such settings.
        precision: The training precision.

    >>> from composer.parallel.config import FSDPConfig
    >>> from composer.parallel.wrapping import Unit
    >>> model = nn.Sequential(nn.Linear(1, 1))
    >>> [
    ...     autocast_cache_enabled(model, [Unit(model[0])], FSDPConfig(mixed_precision=mixed), "amp_bf16")
    ...     for mixed in ("DEFAULT", "FULL")
    ... ]
    [True, False]
    """
    if has_fsdp_units(model):
        return False  # sharded by the user, with unknown settings
    casting = [unit for unit in units if not is_norm_or_embedding(unit.module)]
    settings = [dataclasses.replace(config, **unit.settings, device_mesh=None) for unit in casting]
    resharded = [one.mixed_precision for one in settings if one.reshards is not False]
    float32 = (None, torch.float32)
    return not any(mixed_precision_policy(mixed, precision).param_dtype in float32 for mixed in resharded)


def _as_dtype(key: str, value: Any) -> torch.dtype | None:
    if value is None or isinstance(value, torch.dtype):
        return value
    return _DTYPES[one_of(f"fsdp: {key}", str(value).lower().removeprefix("torch."), _DTYPES)]
