"""Readback: scalars are returned once their asynchronous copy is complete, and not read before."""

from __future__ import annotations

import pytest
import torch

from composer.callbacks._async_readback import Readback
from tests.streams import Event, FakeCuda, RaceError, side_stream


def test_values_are_returned_once_their_copy_is_complete() -> None:
    with FakeCuda() as device:
        readback, total = Readback(), torch.zeros(()).to("cuda")
        for step in range(3):
            readback.put(step, total * 2)  # whose memory is used again
            total.add_(1)
            assert readback.arrived() == []
        device.synchronize()
        assert readback.arrived() == [(0, 0.0), (1, 2.0), (2, 4.0)]
        readback.put("last", total)
        assert readback.arrived(wait=True) == [("last", 3.0)]


def test_a_value_of_another_stream() -> None:
    with FakeCuda() as device:
        readback = Readback()
        with side_stream():
            value = torch.ones(()).to("cuda") + 1
            readback.put("side", value)
            value.add_(1)
        device.streams[0].synchronize()  # says nothing of the other
        assert readback.arrived() == []
        assert readback.arrived(wait=True) == [("side", 2.0)]


@pytest.mark.parametrize("without", ["query", "synchronize", "record"])
def test_the_fake_device_detects_missing_synchronization(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"query": lambda self: True, "synchronize": lambda self: None, "record": lambda self, stream=None: None}
    monkeypatch.setattr(Event, without, changed[without])
    with FakeCuda(), pytest.raises(RaceError, match="'host' uses what stream 'default' may not have finished"):
        readback = Readback()
        readback.put("step", torch.ones(()).to("cuda"))
        readback.arrived(wait=without != "query")
