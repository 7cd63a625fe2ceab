"""Devices by name, such as "H100-80GB": how much memory a training program can use."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import torch

from composer._text import did_you_mean

__all__ = ["DEVICES", "Device", "find_device", "present_device"]

_UNITS = {"MB": 10**6, "MIB": 2**20, "GB": 10**9, "GIB": 2**30, "TB": 10**12, "TIB": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)", re.IGNORECASE)


@dataclass(frozen=True)
class Device:
    """A device to train on.

    Args:
        name: Its name.
        memory: Its memory in bytes.
        context: Bytes of it that the driver and libraries take.
        is_accelerator: Whether it is something other than the CPU.

    >>> Device("H100-80GB", 80 * 10**9, context=2**29).available
    79463129088
    """

    name: str
    memory: int
    context: int = 0
    is_accelerator: bool = True

    @property
    def available(self) -> int:
        """Bytes that remain for the tensors of a program."""
        return self.memory - self.context


DEVICES = {
    name: Device(name, int(name.rpartition("-")[2].removesuffix("GB")) * 10**9)
    for name in (
        *("T4-16GB", "L4-24GB", "A10-24GB", "V100-32GB", "L40S-48GB", "A100-40GB", "A100-80GB"),
        *("H100-80GB", "H200-141GB", "B200-192GB"),
    )
}


def find_device(name: str) -> Device:
    """Return a device by its name, or one with a size of memory.

    Args:
        name: A name of :data:`DEVICES`, or a size such as "80GB" or "16GiB".

    Raises:
        ValueError: It is neither.

    >>> find_device("h100-80gb"), find_device("2GiB").memory
    (Device(name='H100-80GB', memory=80000000000, context=0, is_accelerator=True), 2147483648)
    >>> find_device("H100-80G")
    Traceback (most recent call last):
    ValueError: device must be a size such as '80GB', or one of ..., but got 'H100-80G'. Did you mean 'H100-80GB'?
    """
    known = {each.upper(): device for each, device in DEVICES.items()}
    if name.upper() in known:
        return known[name.upper()]
    match = _SIZE.fullmatch(name.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(
            f"device must be a size such as '80GB', or one of {', '.join(map(repr, DEVICES))}, but got {name!r}."
            f"{did_you_mean(name, DEVICES)}"
        )
    return Device(name.strip(), int(float(match[1]) * _UNITS[match[2].upper()]))


def present_device() -> Device:
    """Return the accelerator of this machine, or its CPU.

    >>> present_device().memory > 0
    True
    """
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return Device(properties.name, properties.total_memory)
    return Device("CPU", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), is_accelerator=False)
