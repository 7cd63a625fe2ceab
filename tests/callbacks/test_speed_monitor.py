from __future__ import annotations

import types
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer import DataSpec, Engine, State, Timestamp, callbacks, dist
from composer.callbacks import SpeedMonitor, speed_monitor
from composer.core import Event
from composer.loggers import InMemoryLogger
from composer.models import ComposerClassifier
from composer.warnings import ComposerWarning
from tests.callbacks.cases import Case, run_with
from tests.common import CLASSES, FEATURES, classifier, labeled_data

RATES = ("batches_per_sec", "samples_per_sec")
CASE = Case(
    make=lambda folder: SpeedMonitor(window_size=2),
    logs=(
        "time/train",
        "time/val",
        "time/total",
        *(f"throughput/{part}{r}" for part in ("", "device/") for r in RATES),
    ),
)


class Counts(ComposerClassifier):
    """Reports 1000 FLOPs per sample."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(FEATURES, CLASSES), num_classes=CLASSES)

    def flops_per_batch(self, batch):
        return 1000 * len(batch[0])


class Loop:
    """An engine with a clock and counters controlled by the test."""

    def __init__(self, monitor, model=None) -> None:
        self.log = InMemoryLogger()
        self.state = State(model=model or classifier(), max_duration="10ep")
        self.engine = Engine(self.state, callbacks=[monitor, self.log])
        self.engine.run_event(Event.INIT)
        self.engine.run_event(Event.FIT_START)

    def batch(self, seconds: float, samples: int = 0, tokens: int = 0) -> dict[str, float]:
        """Advance by a batch; return what was logged for it."""
        self.state.timestamp = self.state.timestamp.to_next_batch(samples, tokens, seconds)
        self.state.batch = (torch.zeros(samples, FEATURES), None)
        self.engine.run_event(Event.BATCH_END)
        now = self.log.most_recent_timestamps
        return {name: v for name, v in self.log.most_recent_values.items() if now[name] == self.state.timestamp}

    def evaluate(self, seconds: float) -> None:
        self.state.eval_phase.timestamp = Timestamp(total_wct=seconds)
        self.engine.run_event(Event.EVAL_END)


def test_rates_over_a_window():
    loop = Loop(SpeedMonitor(window_size=2))
    assert not any(name.startswith("throughput") for name in loop.batch(1.0, 8) | loop.batch(2.0, 8))
    found = loop.batch(2.0, 4)
    assert {name: value for name, value in found.items() if name.startswith("throughput")} == {
        "throughput/batches_per_sec": 0.5,
        "throughput/device/batches_per_sec": 0.5,
        "throughput/samples_per_sec": 3.0,
        "throughput/device/samples_per_sec": 3.0,
    }
    assert loop.batch(6.0, 4)["throughput/samples_per_sec"] == 1.0


@given(st.lists(st.tuples(st.floats(0.001, 100), st.integers(0, 10**6)), min_size=1, max_size=12), st.integers(1, 5))
def test_throughput_of_the_last_batches(batches, window):
    loop = Loop(SpeedMonitor(window_size=window))
    for number, (seconds, samples) in enumerate(batches, 1):
        found = loop.batch(seconds, samples).get("throughput/samples_per_sec")
        assert (found is not None) == (number > window)
        if found is not None:
            last = batches[number - window : number]
            assert found == pytest.approx(sum(n for _, n in last) / sum(s for s, _ in last), rel=1e-2)


def test_tokens_if_counted():
    loop = Loop(SpeedMonitor(window_size=1))
    loop.batch(1.0, 4, 100)
    assert loop.batch(2.0, 4, 300)["throughput/device/tokens_per_sec"] == 150.0


def test_device_throughput_is_divided_by_the_world_size(monkeypatch):
    loop = Loop(SpeedMonitor(window_size=1, gpu_flops_available=1e6), model=Counts())
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor.mul_(4))  # as if all did the same
    loop.batch(1.0, 8)
    found = loop.batch(2.0, 8)
    assert found["throughput/samples_per_sec"] == 4 * found["throughput/device/samples_per_sec"] == 4.0
    assert found["throughput/flops_per_sec"] == 4 * found["throughput/device/flops_per_sec"] == 16e3
    assert found["throughput/device/mfu"] == pytest.approx(4e-3)


def test_flops_and_mfu():
    loop = Loop(SpeedMonitor(window_size=2, gpu_flops_available=1e4), model=Counts())
    loop.batch(5.0, 100)
    loop.batch(1.0, 2)
    found = loop.batch(1.0, 4)
    assert found["throughput/flops_per_sec"] == found["throughput/device/flops_per_sec"] == 3000.0
    assert found["throughput/device/mfu"] == pytest.approx(0.3)


@pytest.mark.parametrize("size", [None, 1])
def test_flops_of_the_full_batch(size):
    seen = []

    class Remembers(Counts):
        def flops_per_batch(self, batch):
            seen.append(len(batch[0]))
            return 1

    run = run_with(SpeedMonitor(window_size=1), model=Remembers(), device_train_microbatch_size=size)
    run.trainer.fit()
    assert seen == [2] * 4
    assert "throughput/flops_per_sec" in run.names
    assert "throughput/device/mfu" not in run.names  # of a CPU nobody knows


@pytest.mark.parametrize("known", [True, False])
def test_mfu_on_an_accelerator_uses_the_table(known, monkeypatch):
    monkeypatch.setattr(speed_monitor, "get_gpu_flops_available", lambda state: 1e6 if known else None)
    state = State(model=Counts())
    state.device = types.SimpleNamespace(name="gpu", torch_device=torch.device("cuda", 0))
    engine = Engine(state, callbacks=[SpeedMonitor(window_size=1), log := InMemoryLogger()])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.run_event(Event.FIT_START)
    for seconds in (1, 2):
        state.timestamp = Timestamp(batch=seconds, total_wct=seconds)
        state.batch = (torch.zeros(2, FEATURES), None)
        engine.run_event(Event.BATCH_END)
    if known:
        assert not caught
        assert log.most_recent_values["throughput/device/mfu"] == pytest.approx(2e-3)
    else:
        assert "Pass SpeedMonitor(gpu_flops_available=...)" in str(caught[0].message)
        assert caught[0].category is ComposerWarning
        assert "throughput/device/mfu" not in log.data


def test_the_model_may_be_wrapped():
    wrapper = torch.nn.DataParallel(Counts())
    loop = Loop(SpeedMonitor(window_size=1), model=wrapper)
    loop.batch(1.0, 2)
    assert loop.batch(1.0, 2)["throughput/flops_per_sec"] == 2000


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (5, "flops_per_batch must be a method that takes a batch"),
        (lambda batch: torch.tensor(5), "flops_per_batch must return a number, not a Tensor"),
    ],
)
def test_a_wrong_count_of_operations(count, message):
    model = classifier()
    model.flops_per_batch = count
    with pytest.raises(TypeError, match=message):
        Loop(SpeedMonitor(), model=model).batch(1.0, 2)


def test_any_number_type_is_accepted():
    model = classifier()
    model.flops_per_batch = lambda batch: np.int64(7)
    loop = Loop(SpeedMonitor(window_size=1), model=model)
    loop.batch(1.0, 2)
    assert loop.batch(1.0, 2)["throughput/flops_per_sec"] == 7


@pytest.mark.parametrize(("unit", "seconds"), [("seconds", 1), ("minutes", 60), ("hours", 3600), ("days", 86400)])
def test_times(unit, seconds):
    loop = Loop(SpeedMonitor(time_unit=unit))
    loop.batch(30.0)
    loop.evaluate(12.0)
    loop.evaluate(3.0)
    found = loop.batch(20.0)
    expected = {"time/train": 50.0, "time/val": 15.0, "time/total": 65.0}
    assert found == pytest.approx({name: value / seconds for name, value in expected.items()})


def test_time_of_evaluation_survives_a_checkpoint_and_not_the_next_run():
    first, second = SpeedMonitor(), SpeedMonitor(time_unit="seconds")
    Loop(first).evaluate(12.0)
    loop = Loop(second)
    second.load_state_dict(first.state_dict())
    assert loop.batch(1.0)["time/val"] == 12.0
    loop.engine.close()
    assert Loop(second).batch(1.0)["time/val"] == 0.0


def test_a_second_fit_fills_a_new_window():
    loop = Loop(SpeedMonitor(window_size=1))
    loop.batch(1.0, 2)
    loop.state.timestamp = Timestamp()  # reset_time
    loop.engine.run_event(Event.FIT_START)
    assert "throughput/samples_per_sec" not in loop.batch(1.0, 2)
    assert loop.batch(1.0, 2)["throughput/samples_per_sec"] == 2.0


def test_a_clock_that_stands_still():
    loop = Loop(SpeedMonitor(window_size=1))
    loop.batch(0.0, 2)
    assert np.isnan(loop.batch(0.0, 2)["throughput/samples_per_sec"])


def test_in_a_trainer_with_evaluation_and_tokens():
    data = DataSpec(labeled_data(), get_num_tokens_in_batch=lambda batch: 10)
    monitor = SpeedMonitor(window_size=2, time_unit="seconds")
    run = run_with(monitor, data=data, eval_dataloader=labeled_data(), max_duration="2ep")
    run.trainer.fit()
    assert run.steps("throughput/tokens_per_sec") == [3, 4, 5, 6, 7, 8]
    tokens, batches = run.values("throughput/tokens_per_sec"), run.values("throughput/batches_per_sec")
    assert tokens == pytest.approx([10 * rate for rate in batches])
    assert run.values("time/val")[-1] == pytest.approx(run.values("time/total")[-1] - run.values("time/train")[-1])
    assert run.values("time/val")[-1] > 0
    assert run.values("time/val")[:4] == [0] * 4


def test_old_import_path_of_the_table():
    assert speed_monitor.GPU_AVAILABLE_FLOPS is callbacks.peak_flops.GPU_AVAILABLE_FLOPS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window_size": 0}, "window_size must be greater than 0"),
        ({"gpu_flops_available": -1.0}, "gpu_flops_available must be greater than 0"),
        ({"time_unit": "hour"}, "time_unit must be one of .*Did you mean 'hours'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        SpeedMonitor(**arguments)
