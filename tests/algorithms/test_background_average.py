"""Averages in the background: their order, their errors, and copies to the CPU and back."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from composer import dist
from composer.algorithms import _background_average
from composer.algorithms._background_average import BackgroundAverages, PendingAverage, side_stream
from composer.algorithms._pseudo_gradients import replicas_of
from composer.core.replicas import Replicas
from composer.trainer.auto_microbatch.undo import ObjectSnapshot
from tests.ranks import Ranks
from tests.streams import FakeCuda, RaceError

CPU = torch.device("cpu")


def pending_of(value: float) -> PendingAverage:
    return PendingAverage({"weight": torch.full((3,), value)}, {"mean": torch.full((2,), value)}, {})


def many() -> list[list[Tensor]]:
    """Start several averages at once, and wait for the last ones first."""
    rank = dist.get_global_rank()
    background = BackgroundAverages(replicas_of())
    started = [pending_of(10.0 * index + rank) for index in range(5)]
    for one in started:
        background.start(one, None, CPU)
    found = [[one.wait()[0]["weight"], one.wait()[1]["mean"]] for one in reversed(started)]
    background.close()
    return found


def test_averages_are_computed_one_after_another(two_ranks: Ranks) -> None:
    for found in two_ranks.run(many):
        for index, (weight, mean) in zip(reversed(range(5)), found, strict=True):
            assert weight.tolist() == [10 * index + 0.5] * 3
            assert mean.tolist() == [10 * index + 0.5] * 2


def test_an_average_waits_for_the_one_before() -> None:
    pending, previous = pending_of(1.0), Future[None]()
    thread = threading.Thread(target=pending.run, args=(Replicas(), None, None, previous))
    thread.start()
    assert not pending.done.done()
    previous.set_exception(OSError("of another one"))
    assert pending.wait()[0]["weight"].tolist() == [1.0] * 3
    thread.join()


def test_an_error_is_raised_with_its_cause_each_time() -> None:
    pending = pending_of(1.0)
    with mock.patch.object(_background_average, "average_over_replicas", side_effect=OSError("no route to host")):
        pending.run(Replicas(), None, None, None)
    for wait in (pending.wait, pending.state_dict):
        with pytest.raises(OSError, match="no route to host") as caught:
            wait()
        assert len(caught.value.__notes__) == 1
        assert "restart all ranks from the last checkpoint" in caught.value.__notes__[0]


def test_saved_averages_are_complete() -> None:
    pending = pending_of(2.0)
    BackgroundAverages(Replicas()).start(pending, None, CPU)
    saved = pending.state_dict()
    loaded = PendingAverage.completed(saved)
    assert loaded.wait()[0]["weight"].tolist() == [2.0] * 3
    saved["outer"]["weight"].zero_()
    assert loaded.wait()[0]["weight"].tolist() == [2.0] * 3


def test_a_run_that_is_restored_leaves_it_alone() -> None:
    pending = pending_of(1.0)
    snapshot = ObjectSnapshot([[pending]])
    BackgroundAverages(Replicas()).start(pending, None, CPU)
    pending.wait()[0]["weight"].fill_(5.0)
    snapshot.restore()
    assert pending.wait()[0]["weight"].tolist() == [5.0] * 3


def on_side_stream(*, waits: bool) -> list[float]:
    """Average a tensor that the default stream computes, and use the result there."""
    with FakeCuda():
        if not waits:
            mock.patch.object(torch.cuda.Stream, "wait_stream", lambda *_: None).start()
        weight = torch.ones(3).to("cuda") * 2
        pending = PendingAverage({"weight": weight}, {}, {})
        pending.run(Replicas(), None, side_stream(torch.device("cuda")), None)
        return (pending.wait()[0]["weight"] + 1).tolist()


def doubled(tensors: list[Tensor], replicas: Any, compression: Any) -> None:
    for one in tensors:
        assert one.is_cpu
        one.mul_(2)


def test_tensors_of_a_gpu_are_copied_on_a_side_stream_without_a_race() -> None:
    with mock.patch.object(_background_average, "average_over_replicas", doubled):
        assert on_side_stream(waits=True) == [5.0] * 3
        with pytest.raises(RaceError):
            try:
                on_side_stream(waits=False)
            finally:
                mock.patch.stopall()
