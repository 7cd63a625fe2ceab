"""Peak FLOP/s of accelerators by number format, for model FLOPs utilization (MFU)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from composer.precision import Precision

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["GPU_AVAILABLE_FLOPS", "find_accelerator", "get_gpu_flops_available", "peak_flops"]

_T = 1e12


def _row(fp32: float, tf32: float, fp16: float, bf16: float, fp8: float = 0.0) -> dict[str, float]:
    """Return a row in FLOP/s from values in TFLOP/s, without the formats that the accelerator lacks."""
    formats = {"fp32": fp32, "tf32": tf32, "fp16": fp16, "amp_fp16": fp16, "bf16": bf16, "amp_bf16": bf16}
    formats |= {"fp8": fp8, "amp_fp8": fp8}
    return {name: value * _T for name, value in formats.items() if value}


# From the vendors' data sheets: matrix units, dense (half of what is printed "with sparsity"). Each name is a set of
# words that must all occur in the device's name; if several rows match, the one with the most words is used.
GPU_AVAILABLE_FLOPS: dict[str, dict[str, float]] = {
    # https://resources.nvidia.com/en-us-blackwell-architecture
    "gb200": _row(80, 1250, 2500, 2500, 5000),
    "b200": _row(75, 1125, 2250, 2250, 4500),
    # https://www.nvidia.com/en-us/data-center/h200/
    "h200": _row(67, 494.7, 989.4, 989.4, 1978.9),
    "h200 nvl": _row(60, 417.5, 835.5, 835.5, 1670.5),
    # https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/
    "gh200": _row(67, 494.7, 989.4, 989.4, 1978.9),
    # https://www.nvidia.com/en-us/data-center/h100/
    "h100": _row(67, 494.7, 989.4, 989.4, 1978.9),
    "h100 pcie": _row(51, 378, 756, 756, 1513),
    "h100 nvl": _row(60, 417.5, 835.5, 835.5, 1670.5),
    "h800": _row(67, 494.7, 989.4, 989.4, 1978.9),
    # https://www.nvidia.com/en-us/data-center/a100/
    "a100": _row(19.5, 156, 312, 312),
    "a800": _row(19.5, 156, 312, 312),
    # https://www.nvidia.com/en-us/data-center/products/a30-gpu/
    "a30": _row(10.3, 82, 165, 165),
    # https://www.nvidia.com/en-us/data-center/a40/
    "a40": _row(37.4, 74.8, 149.7, 149.7),
    # https://www.nvidia.com/en-us/data-center/products/a10-gpu/
    "a10": _row(31.2, 62.5, 125, 125),
    # https://www.nvidia.com/en-us/design-visualization/rtx-a6000/
    "rtx a6000": _row(38.7, 77.4, 154.8, 154.8),
    # https://www.nvidia.com/en-us/data-center/l4/
    "l4": _row(30.3, 60, 121, 121, 242.5),
    # https://www.nvidia.com/en-us/data-center/l40/
    "l40": _row(90.5, 90.5, 181, 181, 362),
    # https://www.nvidia.com/en-us/data-center/l40s/
    "l40s": _row(91.6, 183, 362, 362, 733),
    # https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf, with float32 sums
    "rtx 3090": _row(35.6, 35.6, 71, 71),
    # https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf, with float32 sums
    "rtx 4090": _row(82.6, 82.6, 165.2, 165.2, 330.3),
    # https://www.nvidia.com/en-us/data-center/v100/
    "v100": _row(15.7, 0, 125, 0),
    "v100 pcie": _row(14, 0, 112, 0),
    "v100s": _row(16.4, 0, 130, 0),
    # https://www.nvidia.com/en-us/data-center/tesla-t4/
    "t4": _row(8.1, 0, 65, 0),
    # https://www.amd.com/en/products/accelerators/instinct.html; of the MI250X half, as each of its dies is a device
    "mi250x": _row(47.85, 0, 191.5, 191.5),
    "mi300x": _row(163.4, 653.7, 1307.4, 1307.4, 2614.9),
    "mi325x": _row(163.4, 653.7, 1307.4, 1307.4, 2614.9),
    # https://awsdocs-neuron.readthedocs-hosted.com/en/latest/general/arch/neuron-hardware/trainium.html: half a chip,
    # as each of its two cores is a device
    "trn1": _row(23.75, 95, 95, 95),
}
"""Peak FLOP/s of each accelerator by number format, for model FLOPs utilization (MFU)."""
"""Peak FLOP/s of one accelerator by name and number format."""


def find_accelerator(device_name: str) -> str | None:
    """Return the row of the table for a device, or None; MIG slices and mobile GPUs have no row.

    Args:
        device_name: The device's name as reported by its driver.

    >>> (
    ...     find_accelerator("NVIDIA H100 80GB HBM3"),
    ...     find_accelerator("NVIDIA H100 PCIe"),
    ...     find_accelerator("Abacus"),
    ... )
    ('h100', 'h100 pcie', None)
    """
    words = set(re.split(r"[^a-z0-9]+", device_name.lower()))
    if not words.isdisjoint({"mig", "laptop"}):
        return None
    matches = [name for name in GPU_AVAILABLE_FLOPS if words.issuperset(name.split())]
    return max(matches, key=lambda name: len(name.split()), default=None)


def peak_flops(device_name: str, precision: str | Precision, allow_tf32: bool = False) -> float | None:
    """Return the peak FLOP/s of an accelerator, or None if the table lacks it.

    Args:
        device_name: The device's name as reported by its driver.
        precision: The number format of the forward pass.
        allow_tf32: Whether float32 matrices are multiplied in TensorFloat-32.

    >>> peak_flops("NVIDIA A100-SXM4-80GB", "amp_bf16") / 1e12
    312.0
    """
    row = GPU_AVAILABLE_FLOPS.get(find_accelerator(device_name) or "", {})
    name = Precision(precision).value
    if name == "fp32" and allow_tf32 and "tf32" in row:
        name = "tf32"
    return row.get(name)


def get_gpu_flops_available(state: State) -> float | None:
    """Return the peak FLOP/s of a run's device, or None if unknown.

    Args:
        state: The state, whose device and precision are used.

    >>> from composer import State
    >>> get_gpu_flops_available(State(model=torch.nn.Linear(1, 1)))
    """
    device = state.device.torch_device
    if device.type == "cuda":
        allow_tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
        return peak_flops(torch.cuda.get_device_name(device), state.precision, allow_tf32)
    return peak_flops("trn1", state.precision) if state.device.name == "neuron" else None
