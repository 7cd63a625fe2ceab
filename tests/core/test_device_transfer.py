"""Transfer batches to a device."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from composer import trees
from composer.core import device_transfer
from composer.core.device_transfer import Transfer, start_transfer
from tests.streams import FakeCuda, RaceError

Pair = collections.namedtuple("Pair", "x y")
CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def new_streams() -> None:
    device_transfer._side_stream.cache_clear()


class Graph:
    """A batch of its own kind, as libraries for graphs have them."""

    def __init__(self, edges: torch.Tensor) -> None:
        self.edges = edges

    def to(self, device: torch.device) -> Graph:
        return Graph(self.edges.to(device, non_blocking=True))


def move(batch: Any) -> Any:
    return trees.map_leaves(lambda leaf: leaf.to(CUDA) if callable(getattr(leaf, "to", None)) else leaf, batch)


def test_on_cpu_the_batch_is_available_immediately() -> None:
    batch = [torch.ones(2), "text"]
    sent = start_transfer(batch, torch.device("cpu"), lambda batch: [*batch, 1])
    assert sent.wait()[0] is batch[0]
    assert sent.wait()[1:] == ["text", 1]
    assert Transfer(batch, torch.device("cpu")).wait() is batch


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(2),
        Pair(torch.ones(2), {"y": [torch.zeros(1), "text", 3, None, int]}),
        [torch.nn.Parameter(torch.ones(2))],
    ],
    ids=["tensor", "nested", "parameter"],
)
def test_dense_tensors_are_copied_on_a_side_stream_without_a_race(batch: Any) -> None:
    with FakeCuda() as device:
        for _ in range(3):
            received = start_transfer(batch, CUDA, move).wait()
            total = sum((leaf * 2).sum() for leaf in trees.leaves(received) if isinstance(leaf, torch.Tensor))
            del received
        assert total.item() > 0
        assert [stream.name for stream in device.streams] == ["default", "side 1"]
        assert device.streams[1].clock["side 1"] > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Graph(torch.ones(2)),
        lambda: [torch.ones(2), Graph(torch.ones(2))],
        lambda: {"x": pack_sequence([torch.ones(3), torch.ones(2)])},
        lambda: [torch.ones(2).to_sparse()],
        lambda: [torch.ones(2, 2).to_sparse_csr()],
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: [torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {}))],
    ],
    ids=["object", "object beside a tensor", "packed sequence", "COO", "CSR", "nested", "subclass"],
)
@pytest.mark.filterwarnings("ignore:.*(Sparse|nested tensors):UserWarning")
def test_unsupported_tensors_are_copied_on_the_current_stream(make: Any) -> None:
    batch = make()
    with FakeCuda() as device:
        on = []
        sent = start_transfer(batch, CUDA, lambda batch: on.append(device.current[-1].name) or batch)
        assert on == ["default"]
        assert sent.wait() is batch
        assert len(device.streams) == 1


def test_a_custom_object_can_be_used_immediately() -> None:
    with FakeCuda():
        assert (start_transfer(Graph(torch.ones(2)), CUDA, move).wait().edges + 1).sum().item() == 4


def test_tensors_on_device_are_not_read_by_the_side_stream() -> None:
    with FakeCuda():
        made_there = torch.ones(2).to(CUDA) + 1
        received = start_transfer(
            [made_there, torch.ones(2)], CUDA, lambda batch: [batch[0] * 1, batch[1].to(CUDA)]
        ).wait()
        assert (received[0] + received[1]).sum().item() == 6


def test_fake_streams_detect_missing_synchronization() -> None:
    with FakeCuda(), pytest.raises(RaceError):
        sent = start_transfer(torch.ones(2), CUDA, move)
        sent._batch + 1


@pytest.mark.gpu
def test_copies_are_complete_when_they_are_received() -> None:
    device = torch.device("cuda", 0)
    hosts = [torch.full((4096, 1024), float(i)).pin_memory() for i in range(8)]
    sent = [start_transfer(host, device, lambda host: host.to(device, non_blocking=True)) for host in hosts]
    sums = [each.wait().sum(dtype=torch.float64) for each in sent]
    assert [total.item() for total in sums] == [4096 * 1024.0 * i for i in range(8)]
