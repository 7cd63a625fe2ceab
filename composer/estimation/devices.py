"""Devices to train on: usable memory, memory bandwidth, peak FLOP/s, and what the CUDA context and libraries take.

Peak FLOP/s are those of :mod:`composer.callbacks.peak_flops`. Usable memory is what the driver reports as the total,
which is less than the printed size because of ECC and reserved pages, rounded down to 0.1 GiB.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Literal

import torch

from composer._text import did_you_mean
from composer.callbacks.peak_flops import GPU_AVAILABLE_FLOPS, find_accelerator, peak_flops
from composer.precision import Precision

__all__ = [
    "ACCELERATOR_MARGIN",
    "COMMON_DEVICES",
    "SAFETY_MARGIN",
    "Device",
    "Outcome",
    "find_device",
    "known_devices",
    "present_device",
]

# Shares of the memory that stay free, so that what is said to fit does. Estimates on the CPU are at most 0.3 % too low.
# On an H200, that of the worst of six models of 0.1 to 1.5 GiB was 13.2 % too low (benchmarks/results/gpu). Whether the
# error of larger ones is the same share, or the same number of MiB, is not known.
SAFETY_MARGIN = 0.02
"""Share of the memory of a CPU that is kept free for errors of the estimate."""
ACCELERATOR_MARGIN = 0.15
"""Share of the memory of an accelerator that is kept free for errors of the estimate."""
COMMON_DEVICES = (
    *("T4-16GB", "L4-24GB", "A10-24GB", "V100-32GB", "A100-40GB", "L40S-48GB", "A100-80GB", "H100-80GB"),
    *("H200-141GB", "B200-180GB"),
)
"""Names of the devices of a table for which none are given, those with the least memory first."""

Outcome = Literal["fits", "may not fit", "does not fit"]
"""What is said of a run and a device."""

_GIB = 2**30
_GB_S = 1e9
_CONTEXT = _GIB // 2
_WORKSPACE = 8_519_680


@dataclass(frozen=True)
class Device:
    """A device to train on, as far as its memory and speed are known.

    Args:
        name: Its name with the size of the memory, such as "H100-80GB".
        memory: Memory that the driver reports in total, in bytes.
        bandwidth: Memory bandwidth in bytes per second; 0 if unknown.
        context: Memory in bytes that the context of the driver, the kernels' code and libraries take in each process.
        workspace: Memory in bytes that cuBLAS takes for each thread that multiplies matrices.
        row: Name in the table of peak FLOP/s; empty if unknown.
        is_accelerator: Whether it is something other than the CPU.

    >>> device = Device("one", 110, context=10)
    >>> device.available, device.capacity
    (85, 100)
    >>> [device.outcome(needed) for needed in (85, 86, 101)]
    ['fits', 'may not fit', 'does not fit']
    """

    name: str
    memory: int
    bandwidth: float = 0.0
    context: int = 0
    workspace: int = 0
    row: str = ""
    is_accelerator: bool = True

    @property
    def overhead(self) -> int:
        """Memory in bytes of the context and of cuBLAS: the forward and the backward pass run on a thread each."""
        return self.context + 2 * self.workspace

    @property
    def available(self) -> int:
        """Memory in bytes up to which an estimate surely fits: a share of the capacity is kept free for its errors."""
        return round((1 - self.safety_margin) * (self.memory - self.overhead))

    @property
    def capacity(self) -> int:
        """Memory in bytes that remains for tensors."""
        return self.memory - self.overhead

    @property
    def safety_margin(self) -> float:
        """Share of the capacity that is kept free for errors of the estimate, which are larger on accelerators."""
        return ACCELERATOR_MARGIN if self.is_accelerator else SAFETY_MARGIN

    def outcome(self, needed: int) -> Outcome:
        """Return whether a run fits, as far as the error of estimates allows to tell.

        Args:
            needed: Estimated bytes that must be available for tensors.

        Returns:
            "fits"; "may not fit" if it does so only if the estimate is better than those that were measured on a GPU;
            or "does not fit". Estimates for the CPU are exact enough for the first and the last only.
        """
        if needed <= self.available:
            return "fits"
        return "may not fit" if self.is_accelerator and needed <= self.capacity else "does not fit"

    def peak_flops(self, precision: str | Precision, *, allow_tf32: bool = False) -> float | None:
        """Return the peak FLOP/s in a precision, or None if unknown.

        Args:
            precision: The precision of the forward pass.
            allow_tf32: Whether float32 matrices are multiplied in TensorFloat-32.

        >>> find_device("A100-40GB").peak_flops("amp_bf16") / 1e12
        312.0
        """
        return peak_flops(self.row, precision, allow_tf32) if self.row else None


# By the name of a row of the table of peak FLOP/s: for each size in GB the usable GiB, and the bandwidth in GB/s. Sizes
# and bandwidths are from the vendors' data sheets, whose addresses stand in that table.
_MEMORY: dict[str, dict[int, tuple[float, float]]] = {
    "gb200": {186: (183.9, 8000)},
    "b200": {180: (178.3, 8000)},
    "h200": {141: (139.7, 4800)},
    "h200 nvl": {141: (139.7, 4800)},
    "gh200": {96: (94.5, 4000), 144: (141.0, 4900)},
    "h100": {80: (79.1, 3350)},
    "h100 pcie": {80: (79.1, 2000)},
    "h100 nvl": {94: (93.0, 3900)},
    "h800": {80: (79.1, 3350)},
    "a100": {40: (39.3, 1555), 80: (79.1, 2039)},
    "a800": {40: (39.3, 1555), 80: (79.1, 2039)},
    "a30": {24: (23.5, 933)},
    "a40": {48: (44.3, 696)},
    "a10": {24: (22.0, 600)},
    "rtx a6000": {48: (47.5, 768)},
    "l4": {24: (21.9, 300)},
    "l40": {48: (44.3, 864)},
    "l40s": {48: (44.3, 864)},
    "rtx 3090": {24: (23.6, 936)},
    "rtx 4090": {24: (23.5, 1008)},
    "v100": {16: (15.7, 900), 32: (31.7, 900)},
    "v100 pcie": {16: (15.7, 900), 32: (31.7, 900)},
    "v100s": {32: (31.7, 1134)},
    "t4": {16: (14.5, 320)},
    "mi250x": {64: (63.9, 1638)},
    "mi300x": {192: (191.6, 5300)},
    "mi325x": {256: (255.9, 6000)},
    "trn1": {16: (16.0, 410)},
}
# Compute capability 9.0 and later: torch gives cuBLAS 32 MiB there, else 8.125 MiB.
_LARGE_WORKSPACE = 32 * 2**20
_LARGE_WORKSPACES = frozenset({"gb200", "b200", "h200", "h200 nvl", "gh200", "h100", "h100 pcie", "h100 nvl", "h800"})
_UNITS = {"gb": 10**9, "gib": 2**30, "mb": 10**6, "mib": 2**20, "tb": 10**12, "tib": 2**40}
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*([gmt]i?b)$", re.IGNORECASE)


def known_devices() -> tuple[str, ...]:
    """Return the names of the known devices.

    >>> known_devices()[:3]
    ('GB200-186GB', 'B200-180GB', 'H200-141GB')
    """
    return tuple(_name(row, size) for row, sizes in _MEMORY.items() for size in sizes)


def find_device(name: str) -> Device:
    """Return a device by its name, or one of a stated size whose speed is unknown.

    Args:
        name: A name such as "H100-80GB", "a100-40gb" or "NVIDIA H100 80GB HBM3", as a driver reports it; or the size of
            the memory alone: "80GB" is 80 * 10**9 bytes, "80GiB" is 80 * 2**30 bytes.

    Raises:
        ValueError: No device has this name, or devices of several sizes have it.

    >>> find_device("NVIDIA A100-SXM4-80GB").name, find_device("24GiB").memory == 24 * 2**30
    ('A100-80GB', True)
    """
    size = _SIZE.match(name.strip())
    if size is not None:
        nbytes = int(float(size[1]) * _UNITS[size[2].lower()])
        if nbytes <= _CONTEXT:
            raise ValueError(
                f"device={name!r} is smaller than what the context of the driver takes; name a larger size."
            )
        return Device(name.strip(), nbytes, context=_CONTEXT, workspace=_WORKSPACE)
    row = find_accelerator(name)
    if row is None:
        raise ValueError(
            f"device must be a size of memory such as '80GB', or one of {', '.join(known_devices())}, but got {name!r}."
            f"{did_you_mean(name, known_devices())}"
        )
    sizes = _MEMORY[row]
    given = [int(n) for n in re.findall(r"(?<![0-9a-z])(\d+)\s*gb", name.lower())]
    found = [n for n in given if n in sizes] or (list(sizes) if not given else [])
    if len(found) != 1:
        problem = "has several sizes of memory" if not given else f"has no {given[0]} GB of memory"
        names = " or ".join(_name(row, n) for n in sizes)
        raise ValueError(f"The device {name!r} {problem}; use {names}.")
    usable, bandwidth = sizes[found[0]]
    workspace = _LARGE_WORKSPACE if row in _LARGE_WORKSPACES else _WORKSPACE
    return Device(_name(row, found[0]), int(usable * _GIB), bandwidth * _GB_S, _CONTEXT, workspace, row)


def present_device() -> Device:
    """Return the accelerator of this machine, or its CPU.

    >>> present_device().memory > 0
    True
    """
    if not torch.cuda.is_available():
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Device("CPU", memory, context=_CONTEXT, is_accelerator=False)  # Python, torch and the program's modules
    properties = torch.cuda.get_device_properties(0)
    try:
        known = find_device(properties.name)
    except ValueError:  # such as a slice of a device
        workspace = _LARGE_WORKSPACE if properties.major >= 9 else _WORKSPACE
        known = Device(properties.name, 0, context=_CONTEXT, workspace=workspace)
    return replace(known, memory=properties.total_memory)


def _name(row: str, size: int) -> str:
    return f"{row.upper().replace(' ', '-')}-{size}GB"


assert _MEMORY.keys() == GPU_AVAILABLE_FLOPS.keys()
