"""Operators by part and line, and where an accelerator would be waited for."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch
from torch import nn

from composer.diagnosis.operator_counter import OperatorCounter


def counted(function: Any, part: str = "forward") -> OperatorCounter:
    with OperatorCounter(lambda: part) as counter:
        function()
    return counter


def line_of(function: Any, offset: int) -> tuple[str, int, str]:
    """The line of a function that many lines below its definition."""
    return __file__, function.__code__.co_firstlineno + offset, function.__qualname__


def test_flops_elements_and_small_operators() -> None:
    one, large = torch.ones(4, 8), torch.ones(256, 256)
    work = counted(lambda: (one @ one.T, large @ large)).parts["forward"]
    assert work.flops == 2 * 4 * 8 * 4 + 2 * 256**3
    assert work.elements >= 3 * 256**2
    assert 0 < work.small < work.count


def test_a_view_of_a_large_tensor_is_a_small_operator() -> None:
    large = torch.ones(512, 512)

    def loops() -> None:
        for row in range(32):
            large[row].t()

    work = counted(loops).parts["forward"]
    assert (work.count, work.small, work.elements) == (64, 64, 0)


def test_lines_are_those_of_the_user() -> None:
    values = torch.ones(3)

    def compute() -> None:
        values.add(1)
        for _ in range(4):
            values.mul(2)

    lines = counted(compute).lines
    counts = {key[1]: work.count for key, work in lines.items()}
    assert counts[line_of(compute, 1)] == 1
    assert counts[line_of(compute, 3)] == 4


def test_reading_a_number_is_a_wait() -> None:
    values = torch.ones(3)

    def reads() -> None:
        values.sum().item()
        if values[0] > 0:
            values.nonzero()
        values[values > 0]

    waits = counted(reads).waits
    told = {line[1]: why for (part, line, why) in waits}
    first = reads.__code__.co_firstlineno
    assert told[first + 1] == told[first + 2] == "reads a number (item, float, if)"
    assert told[first + 3] == "nonzero"
    assert first + 4 in told


def test_what_does_not_wait() -> None:
    values = torch.ones(3)
    counter = counted(lambda: (values + 1, values.to(torch.float64), values[1:], values[torch.tensor([0])]))
    assert not counter.waits
    assert not counted(lambda: values.sum().item(), "data").waits  # tensors of the host
    assert not counted(lambda: values.sum().item(), "logger Mine").waits


def test_copies_of_a_device_to_the_host_wait_unless_asynchronous() -> None:
    values = torch.ones(3, device="meta")

    def copies() -> None:
        # A meta tensor has no values: its copy is counted, and then refused.
        for asynchronous in (False, True):
            with contextlib.suppress(NotImplementedError):
                values.to("cpu", non_blocking=asynchronous)

    assert [(why, count) for (_, _, why), count in counted(copies).waits.items()] == [("copies to the host", 1)]


def test_lines_of_backward_are_none_of_the_users() -> None:
    model = nn.Linear(2, 2)
    loss = model(torch.ones(1, 2)).sum()
    counter = counted(lambda: loss.backward(), "backward")
    assert counter.parts["backward"].count > 0
    assert not counter.lines


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def doubled(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 2


def increment(weight: torch.Tensor) -> None:
    assert weight.grad is not None
    weight.grad.add_(1)


def test_hooks_and_custom_functions_of_the_backward_pass_have_lines() -> None:
    weight = torch.ones(2, requires_grad=True)
    loss = Doubled.apply(weight).sum()
    hidden = weight * 3
    hidden.register_hook(doubled)
    weight.register_post_accumulate_grad_hook(increment)
    counter = counted((loss + hidden.sum()).backward, "backward")
    names = [function for _, (_, _, function) in counter.lines]
    assert sorted(name.rpartition(".")[2] for name in names) == ["backward", "doubled", "increment"]


def test_a_hook_in_the_thread_of_an_accelerator_has_a_line() -> None:
    """Autograd's thread has frames of the hook only."""
    found: list[Any] = []

    def hook() -> None:
        counter = OperatorCounter(lambda: "backward")
        with counter:
            torch.ones(2) * 2
        found.extend(counter.lines)

    thread = threading.Thread(target=hook)
    thread.start()
    thread.join()
    assert {function for _, (_, _, function) in found} == {hook.__qualname__}


def test_counts_are_those_of_one_step() -> None:
    values = torch.ones(3)
    counter = counted(lambda: [values.add(1) for _ in range(6)])
    told = counter.to_json(steps=2)
    assert told["parts"]["forward"]["count"] == 3
    assert told["lines"][0]["count"] == 3
    assert told["lines"][0]["file"] == __file__
    assert told["waits"] == []
