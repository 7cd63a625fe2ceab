"""Mixed precision: the :class:`Precision` names, and the autocast context of each (fp32, fp16, bf16, fp8)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from composer._lazy import import_extra
from composer._text import member_of

if TYPE_CHECKING:
    from composer.devices import Device

__all__ = [
    "STR_TO_DTYPE",
    "Precision",
    "default_precision",
    "get_precision_context",
    "require_float8",
    "widest_dtype",
]

STR_TO_DTYPE = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""Dtypes by the short names used in configurations."""

_ALIASES = {
    "16": "amp_fp16",
    "16-mixed": "amp_fp16",
    "32": "fp32",
    "32-true": "fp32",
    "amp": "amp_fp16",
    "bf16-mixed": "amp_bf16",
    "bf16": "amp_bf16",
    "bfloat16": "amp_bf16",
    "float16": "amp_fp16",
    "float32": "fp32",
    "fp16": "amp_fp16",
    "fp8": "amp_fp8",
}


class Precision(StrEnum):
    """Precision of the forward pass and the loss; parameters and optimizer states keep their dtype.

    ``AMP_*`` are mixed precision: autocast runs each operation in the low-precision dtype or in float32. Members can be
    looked up by value or name in any case, by the short names ``amp``, ``fp16``, ``bf16``, ``fp8`` and ``float32``, and
    by the names of other libraries: ``bf16-mixed``, ``16-mixed``, ``32-true``, 16, 32 and dtypes of PyTorch.

    Raises:
        ValueError: For an unknown name.

    >>> Precision("AMP_BF16"), Precision("bf16") is Precision.AMP_BF16, Precision.FP32 == "fp32"
    (<Precision.AMP_BF16: 'amp_bf16'>, True, True)

    Paper: Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740
    """

    FP32 = "fp32"
    AMP_FP16 = "amp_fp16"
    AMP_BF16 = "amp_bf16"
    AMP_FP8 = "amp_fp8"
    AMP = AMP_FP16  # older names
    BF16 = AMP_BF16

    @classmethod
    def _missing_(cls, value: object) -> Precision:
        if isinstance(value, torch.dtype) or type(value) is int:
            value = str(value).removeprefix("torch.")
        return member_of(cls, "precision", value, _ALIASES)


class _NoAutocast:
    """Disables autocast if it is enabled; otherwise it only checks a flag."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._entered: list[torch.autocast | None] = []

    def __enter__(self) -> None:
        off = None
        if torch.is_autocast_enabled(self._device_type):
            off = torch.autocast(self._device_type, enabled=False)
            off.__enter__()
        self._entered.append(off)

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        off = self._entered.pop()
        if off is not None:
            off.__exit__(error_type, error, trace)


def get_precision_context(
    precision: str | Precision,
    precision_config: Mapping[str, Any] | None = None,
    fp8_autocast_enabled: bool = True,
    device_type: str | None = None,
    cache_enabled: bool = True,
) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which the forward pass and the loss run at a precision.

    Args:
        precision: ``fp32`` disables autocast, ``amp_fp16`` and ``amp_bf16`` enable it with that dtype; ``amp_fp8`` runs
            the layers of TransformerEngine in 8 bits and all others as ``amp_bf16``. (The ``Trainer`` converts the
            linear layers of other models with torchao.)
        precision_config: Keyword arguments of TransformerEngine's ``DelayedScaling``; with ``amp_fp8`` only.
        fp8_autocast_enabled: Whether those layers use 8 bits; ``False`` for evaluation in 16 bits.
        device_type: As in ``torch.device(...).type``; ``None`` is the current accelerator, else ``"cpu"``.
        cache_enabled: Whether autocast caches cast weights until the context ends; ``False`` if weights are resharded
            earlier, since a low-precision copy of all weights would stay in memory.

    Raises:
        ValueError: Float16 or 8 bits on the CPU, or ``precision_config`` with another precision.
        MissingConditionalImportError: TransformerEngine is not installed.
        RuntimeError: The GPU has no 8-bit arithmetic.

    >>> with get_precision_context("amp_bf16", device_type="cpu"):
    ...     torch.ones(2, 2).mm(torch.ones(2, 2)).dtype
    torch.bfloat16
    """
    precision = Precision(precision)
    device_type = _current_device_type() if device_type is None else device_type
    if precision is not Precision.AMP_FP8 and precision_config:
        raise ValueError(
            f"precision_config applies to precision amp_fp8 only, but precision is {precision.value}. "
            "Remove it, or use precision='amp_fp8'."
        )
    if precision is Precision.FP32:
        return _NoAutocast(device_type)
    if precision is Precision.AMP_BF16:
        return torch.autocast(device_type, torch.bfloat16, cache_enabled=cache_enabled)
    if precision is Precision.AMP_FP16:
        _require_accelerator(precision, device_type)
        return torch.autocast(device_type, torch.float16, cache_enabled=cache_enabled)
    return _fp8_context(device_type, precision_config or {}, fp8_autocast_enabled, cache_enabled)


def require_float8(device_type: str) -> None:
    """Raise if a device has no 8-bit floating-point arithmetic.

    Args:
        device_type: As in ``torch.device(...).type``.

    Raises:
        ValueError: It is the CPU.
        RuntimeError: It is another device, or a GPU of compute capability below 8.9.

    >>> try:
    ...     require_float8("cpu")
    ... except ValueError as error:
    ...     print(error)
    precision amp_fp8 requires an accelerator; on the CPU use 'amp_bf16' or 'fp32'.
    """
    _require_accelerator(Precision.AMP_FP8, device_type)
    if device_type != "cuda" or torch.cuda.get_device_capability() < (8, 9):
        found = (
            f"compute capability {'.'.join(map(str, torch.cuda.get_device_capability()))}"
            if device_type == "cuda"
            else f"device type {device_type!r}"
        )
        raise RuntimeError(
            f"precision amp_fp8 requires a GPU of compute capability 8.9 or higher, but found {found}; use 'amp_bf16'."
        )


def default_precision(device: Device) -> Precision:
    """Return the default precision of a device.

    It is ``amp_bf16`` on an accelerator that supports bfloat16, ``amp_fp16`` on one that does not, and ``fp32`` on the
    CPU.

    Args:
        device: The device of the model.

    >>> from composer.devices import DeviceCPU
    >>> default_precision(DeviceCPU())
    <Precision.FP32: 'fp32'>
    """
    device_type = device.torch_device.type
    if device_type == "cpu":
        return Precision.FP32
    if device_type == "cuda":
        # Old GPUs accept bfloat16 but emulate it, slower than float32.
        return Precision.AMP_BF16 if torch.cuda.is_bf16_supported(including_emulation=False) else Precision.AMP_FP16
    if device_type == "mps":
        return Precision.AMP_BF16 if torch.backends.mps.is_macos_or_newer(14, 0) else Precision.AMP_FP16
    return Precision.AMP_BF16


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return the most precise floating-point dtype of a device: float32 on MPS and on XPUs without float64.

    Args:
        device: The device.

    >>> widest_dtype(torch.device("cpu")), widest_dtype(torch.device("mps"))
    (torch.float64, torch.float32)
    """
    if device.type == "mps" or (device.type == "xpu" and not torch.xpu.get_device_properties(device).has_fp64):
        return torch.float32
    return torch.float64


def _require_accelerator(precision: Precision, device_type: str) -> None:
    if device_type == "cpu":
        raise ValueError(f"precision {precision.value} requires an accelerator; on the CPU use 'amp_bf16' or 'fp32'.")


def _current_device_type() -> str:
    """Return the type of the current accelerator, or ``cpu``."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else accelerator.type


@contextlib.contextmanager
def _fp8(engine: Any, recipe: Any, enabled: bool, autocast: torch.autocast) -> Any:
    """Enter both contexts of fp8 training: TransformerEngine's for its layers, autocast for the others."""
    with autocast, engine.fp8_autocast(enabled=enabled, fp8_recipe=recipe):
        yield


def _fp8_context(
    device_type: str, config: Mapping[str, Any], enabled: bool, cache_enabled: bool
) -> contextlib.AbstractContextManager[Any]:
    """Return the context for ``amp_fp8``, after checking the GPU and the package."""
    require_float8(device_type)
    purpose, install = "precision amp_fp8", "transformer-engine[pytorch]"
    engine: Any = import_extra("transformer_engine.pytorch", "fp8", purpose, install)
    recipes: Any = import_extra("transformer_engine.common.recipe", "fp8", purpose, install)
    settings = {"fp8_format": recipes.Format.HYBRID, "amax_history_len": 16, "amax_compute_algo": "max", **config}
    autocast = torch.autocast(device_type, torch.bfloat16, cache_enabled=cache_enabled)
    return _fp8(engine, recipes.DelayedScaling(**settings), enabled, autocast)
