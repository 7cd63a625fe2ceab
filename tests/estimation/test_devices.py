"""Accelerators by their names."""

from __future__ import annotations

import pytest

from composer.callbacks.peak_flops import GPU_AVAILABLE_FLOPS
from composer.estimation.devices import ACCELERATOR_MARGIN, SAFETY_MARGIN, Device, find_device, known_devices

GIB = 2**30


@pytest.mark.parametrize(
    "name, found",
    [
        ("H100-80GB", "H100-80GB"),
        ("h100", "H100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIE-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("a100 80gb", "A100-80GB"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090-24GB"),
    ],
)
def test_names(name: str, found: str) -> None:
    assert find_device(name).name == found


@pytest.mark.parametrize("name", known_devices())
def test_each_known_device_is_found_by_its_name(name: str) -> None:
    device = find_device(name)
    assert device.name == name and device.bandwidth > 1e11
    nominal = int(name.rsplit("-", 1)[1].removesuffix("GB"))
    # Printed sizes are powers of two or 10**9; what is usable is a little less.
    assert 0.9 * nominal * 1e9 < device.memory <= nominal * GIB
    assert 0 < device.available < device.memory
    peak = device.peak_flops("fp32")
    assert peak is not None and peak > 1e12


def test_the_margin_covers_the_errors_that_were_measured() -> None:
    """What needs more than its estimate, by the worst error, is never said to fit if it does not."""
    device = find_device("H200")
    too_low = 0.1322
    least = round((1 - too_low) * (device.capacity + 1))
    assert device.outcome(least) == "may not fit"
    assert device.outcome(device.capacity) == "may not fit" and device.outcome(device.capacity + 1) == "does not fit"
    assert device.outcome(device.available) == "fits" and device.outcome(device.available + 1) == "may not fit"
    assert (
        device.safety_margin,
        Device("CPU", 2, is_accelerator=False).safety_margin,
    ) == (ACCELERATOR_MARGIN, SAFETY_MARGIN)


def test_every_device_with_known_flops_has_a_size() -> None:
    words = {name.lower().rsplit("-", 1)[0].replace("-", " ") for name in known_devices()}
    assert words == set(GPU_AVAILABLE_FLOPS)


def test_a_size_alone() -> None:
    assert find_device("80GB").memory == 80 * 10**9
    device = find_device(" 1.5 GiB ")
    assert device.memory == 1.5 * GIB
    assert device.peak_flops("fp32") is None and device.bandwidth == 0


def test_workspaces_of_cublas_are_larger_since_hopper() -> None:
    assert find_device("A100-40GB").overhead == GIB // 2 + 2 * 8_519_680
    assert find_device("H100").overhead == GIB // 2 + 2 * 32 * 2**20


@pytest.mark.parametrize(
    "name, message",
    [
        ("H1000-80GB", "Did you mean 'H100-80GB'"),
        ("A100", "several sizes of memory; use A100-40GB or A100-80GB"),
        ("A100-60GB", "has no 60 GB of memory; use A100-40GB or A100-80GB"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "but got"),
        ("100MB", "larger size"),
        ("", "but got ''"),
    ],
)
def test_errors(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_device(name)
