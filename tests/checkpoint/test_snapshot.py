"""Copies in host memory."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from composer.checkpoint.snapshot import Snapshot
from tests.checkpoint.content import same
from tests.streams import FakeCuda, side_stream

shapes = st.lists(st.integers(0, 3), max_size=3)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
tensors = st.builds(lambda shape, dtype: (torch.rand(shape) * 9).to(dtype), shapes, dtypes)
trees = st.recursive(
    tensors | st.none() | st.integers() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("ab/", max_size=2) | st.integers(0, 2), inner, max_size=3)
    ),
    max_leaves=8,
)


def leaves(node: Any) -> list[Tensor]:
    if isinstance(node, Tensor):
        return [node]
    values = node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ()
    return [leaf for value in values for leaf in leaves(value)]


@given(st.lists(trees, min_size=1, max_size=3))
def test_a_copy_is_equal_and_a_copy(contents) -> None:
    snapshot = Snapshot()
    for content in contents:
        copy = snapshot.take({"root": content})
        assert same(copy, {"root": content})
        mine = {leaf.data_ptr() for leaf in leaves(content) if leaf.numel()}
        assert not mine & {leaf.data_ptr() for leaf in leaves(copy) if leaf.numel()}
        before = [leaf.clone() for leaf in leaves(copy)]
        for leaf in leaves(content):
            leaf.zero_()
        assert same(leaves(copy), before)


def test_memory_is_used_again() -> None:
    snapshot, weight = Snapshot(), torch.ones(3)
    first = snapshot.take({"a": weight})["a"]
    weight.fill_(2.0)
    second = snapshot.take({"a": weight})["a"]
    assert second.data_ptr() == first.data_ptr()
    assert second.tolist() == [2.0, 2.0, 2.0]
    assert snapshot.take({"a": torch.ones(4)})["a"].tolist() == [1.0] * 4
    assert snapshot.take({"a": torch.ones(4, dtype=torch.int64)})["a"].dtype == torch.int64


def test_tied_weights_stay_tied_until_they_are_not() -> None:
    snapshot, weight = Snapshot(), torch.ones(2)
    copy = snapshot.take({"a": weight, "b": weight})
    assert copy["a"] is copy["b"]
    copy = snapshot.take({"a": weight, "b": torch.zeros(2)})
    assert (copy["a"].tolist(), copy["b"].tolist()) == ([1.0, 1.0], [0.0, 0.0])
    copy = snapshot.take({"a": weight, "b": weight})
    assert copy["a"] is copy["b"]


def test_views_and_strides() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    content = {
        "whole": whole,
        "turned": whole.t(),
        "column": whole[:, 1],
        "images": torch.rand(1, 2, 3, 3).to(memory_format=torch.channels_last),
    }
    copy = Snapshot().take(content)
    assert same(copy, content)
    assert copy["images"].is_contiguous(memory_format=torch.channels_last)
    assert copy["column"].untyped_storage().nbytes() == 12


def test_parameters_lose_their_gradients() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    copy = Snapshot().take({"a": parameter})["a"]
    assert type(copy) is Tensor
    assert not copy.requires_grad


def test_what_is_let_go_of_is_forgotten() -> None:
    snapshot = Snapshot()
    memory = [weakref.ref(tensor) for tensor in snapshot.take({"a": torch.ones(2), "b": torch.ones(3)}).values()]
    snapshot.take({"a": torch.ones(2)})
    assert [one() is None for one in memory] == [False, True]


def test_copies_from_a_device_are_complete_when_take_returns() -> None:
    with FakeCuda() as device:
        weight = torch.ones(3).to("cuda")
        with side_stream() as side:
            side.wait_stream(device.streams[0])
            copy = Snapshot().take({"weight": weight, "again": [weight], "bias": torch.zeros(2)})
        assert side.clock[side.name] <= device.host[side.name], "the host did not wait for the copies"
        weight.add_(1)  # as the next step does: it may not write what is still being read
        assert (weight.sum().item(), copy["weight"].sum().item()) == (6, 3)
        assert not copy["weight"].is_cuda
        weight.record_stream(side)


@pytest.mark.parametrize(("kind", "pins"), [("cuda", True), ("xpu", True), ("mps", False)])
def test_every_accelerator_is_waited_for(kind: str, pins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    waited, made, empty_like = [], [], torch.empty_like

    class There(torch.Tensor):
        """A tensor that says that it lies on the accelerator."""

        device = torch.device(kind, 0)

    def noted(like: Tensor, *, device: str, pin_memory: bool) -> Tensor:
        made.append(pin_memory)
        return empty_like(like.as_subclass(Tensor), device=device)

    monkeypatch.setattr(torch, "empty_like", noted)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    Snapshot().take({"a": torch.ones(2).as_subclass(There)})
    assert (waited, made) == ([torch.device(kind, 0)], [pins])
