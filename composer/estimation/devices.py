"""Known accelerators: usable memory, memory bandwidth, peak FLOP/s, and what the CUDA context and libraries take.

Peak FLOP/s are those of :mod:`composer.callbacks.peak_flops`. Usable memory is what the driver reports as the total,
which is less than the printed size because of ECC and reserved pages, rounded down to 0.1 GiB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from composer._text import did_you_mean
from composer.callbacks.peak_flops import GPU_AVAILABLE_FLOPS, find_accelerator, peak_flops
from composer.precision import Precision

__all__ = ["Accelerator", "find_device", "known_devices"]

_GIB = 2**30
_GB_S = 1e9


@dataclass(frozen=True)
class Accelerator:
    """A device that trains, as far as its memory and speed are known.

    Args:
        name: Its name with the size of the memory, such as "H100-80GB".
        memory: Memory that the driver reports in total, in bytes.
        bandwidth: Memory bandwidth in bytes per second; 0 if unknown.
        context: Memory in bytes that the context of the driver, the kernels' code and libraries take in each process.
        workspace: Memory in bytes that cuBLAS takes for each thread that multiplies matrices.
        row: Name in the table of peak FLOP/s; empty if unknown.

    >>> find_device("H100-80GB").available / 2**30 < 79
    True
    """

    name: str
    memory: int
    bandwidth: float = 0.0
    context: int = _GIB // 2
    workspace: int = 8_519_680
    row: str = ""

    @property
    def available(self) -> int:
        """Memory in bytes that remains for the allocator of torch."""
        return self.memory - self.context

    @property
    def workspaces(self) -> int:
        """Memory in bytes of cuBLAS: the forward and the backward pass run on a thread each."""
        return 2 * self.workspace

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
_LARGE_WORKSPACE = frozenset({"gb200", "b200", "h200", "h200 nvl", "gh200", "h100", "h100 pcie", "h100 nvl", "h800"})
_UNITS = {"gb": 10**9, "gib": 2**30, "mb": 10**6, "mib": 2**20}
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*(gb|gib|mb|mib)$", re.IGNORECASE)


def known_devices() -> tuple[str, ...]:
    """Return the names of the known devices.

    >>> known_devices()[:3]
    ('GB200-186GB', 'B200-180GB', 'H200-141GB')
    """
    return tuple(_name(row, size) for row, sizes in _MEMORY.items() for size in sizes)


def find_device(name: str) -> Accelerator:
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
        if nbytes <= Accelerator("", 0).context:
            raise ValueError(
                f"device={name!r} is smaller than what the context of the driver takes; name a larger size."
            )
        return Accelerator(name.strip(), nbytes)
    row = find_accelerator(name)
    if row is None:
        raise ValueError(
            f"The device {name!r} is not known.{did_you_mean(name, known_devices())} Known are "
            f"{', '.join(known_devices())}; or give the size of its memory, such as '80GB'."
        )
    sizes = _MEMORY[row]
    given = [int(n) for n in re.findall(r"(?<![0-9a-z])(\d+)\s*gb", name.lower())]
    found = [n for n in given if n in sizes] or (list(sizes) if not given else [])
    if len(found) != 1:
        problem = "has several sizes of memory" if not given else f"has no {given[0]} GB of memory"
        names = " or ".join(_name(row, n) for n in sizes)
        raise ValueError(f"The device {name!r} {problem}; use {names}.")
    usable, bandwidth = sizes[found[0]]
    large = row in _LARGE_WORKSPACE
    return Accelerator(
        _name(row, found[0]),
        int(usable * _GIB),
        bandwidth * _GB_S,
        workspace=32 * 2**20 if large else Accelerator("", 0).workspace,
        row=row,
    )


def _name(row: str, size: int) -> str:
    return f"{row.upper().replace(' ', '-')}-{size}GB"


assert _MEMORY.keys() == GPU_AVAILABLE_FLOPS.keys()
