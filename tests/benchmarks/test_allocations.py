"""What is given out is counted to the byte, between marks."""

from __future__ import annotations

import pytest
import torch

from benchmarks.allocations import Allocations, Stretch


def block(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def test_a_peak_is_that_of_what_lives_at_once() -> None:
    with Allocations("cpu") as allocations:
        kept = block(1000)
        block(5000)
        block(3000)
        allocations.mark("one")
        other = block(200)
        del kept
        allocations.mark("two")
    assert allocations["one"] == Stretch(peak=6000, end=1000)
    assert allocations["two"] == Stretch(peak=1200, end=200)
    assert allocations.whole == Stretch(peak=6000, end=200)
    assert len(other) == 200


def test_stretches_of_one_name_are_added_up() -> None:
    with Allocations("cpu") as allocations:
        for size in (300, 500, 100):
            kept = block(size)
            allocations.mark("step")
            del kept
    assert [stretch.peak for stretch in allocations.all("step")] == [300, 500, 500]  # what a stretch begins with
    assert allocations["step"] == Stretch(peak=500, end=100)
    with pytest.raises(KeyError):
        allocations["another"]


def test_what_kernels_and_the_backward_pass_take_counts() -> None:
    x = torch.ones(256, requires_grad=True)
    with Allocations("cpu") as allocations:
        loss = (x.exp() * 2).sum()
        loss.backward()
        allocations.mark("both")
    # The exponentials, twice them, and the sum; then gradients, of which one stays.
    assert allocations["both"].peak >= 3 * 1024
    assert allocations["both"].end == 1024 + 4  # the gradient and the loss
