"""SlowRankMonitor: with a single rank, with two ranks and fake clocks, and with device events."""

from __future__ import annotations

import socket
import time
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from composer import State, Timestamp, dist
from composer.callbacks import SlowRankMonitor, slow_rank_monitor
from composer.core.logger import Logger
from composer.loggers import InMemoryLogger
from composer.warnings import ComposerWarning
from tests.callbacks.cases import Case
from tests.ranks import Ranks

# Random differences between ranks in other tests must not warn.
CASE = Case(make=lambda folder: SlowRankMonitor(batch_log_interval=2, threshold=1e9))

NAMES = ("rank", "slowdown", "seconds", "median_seconds")


class Clock:
    """A clock that only moves when set."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def train(
    monitor: SlowRankMonitor, clock: Clock, data: float, forward: float, steps: int = 4, step_seconds: float = 1.0
) -> dict[str, list[Any]]:
    """Fire the events of some steps with two microbatches each; return what was logged, by name."""
    log = InMemoryLogger()
    state = State(model=torch.nn.Linear(1, 1), callbacks=[log])
    logger = Logger(state, [log])
    monitor.fit_start(state, logger)
    for step in range(1, steps + 1):
        monitor.before_dataloader(state, logger)
        clock.now += data
        monitor.after_dataloader(state, logger)
        for _ in range(2):
            clock.now += 100  # of what does not count: callbacks, the backward pass
            monitor.before_forward(state, logger)
            clock.now += forward / 2
            monitor.before_backward(state, logger)
        state.timestamp = Timestamp(batch=step, total_wct=step * step_seconds)
        monitor.batch_end(state, logger)
    return {name.partition("/")[2]: [value for _, value in entries] for name, entries in log.data.items()}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(slow_rank_monitor, "time", clock)
    return clock


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float, str]]:
    """The times of the other ranks; this rank is rank 0."""
    times: list[tuple[float, float, str]] = []
    monkeypatch.setattr(dist, "get_world_size", lambda: 1 + len(times))
    monkeypatch.setattr(dist, "all_gather_object", lambda local: [local, *times])
    return times


def test_logs_nothing_with_a_single_rank(clock) -> None:
    assert train(SlowRankMonitor(1), clock, 0.1, 0.1) == {}


def test_the_slowest_rank_is_logged(clock, others) -> None:
    others += [(0.1, 0.2, "b"), (0.0, 0.4, "c"), (0.15, 0.5, "d")]
    with pytest.warns(ComposerWarning, match="Rank 3 on d is 1.62 times as slow as the others"):
        found = train(SlowRankMonitor(2), clock, data=0.25, forward=0.25)
    assert found["rank"] == [3, 3]
    assert found["slowdown"] == pytest.approx([1.625, 1.625])
    assert found["seconds"] == pytest.approx([0.65, 0.65])
    assert found["median_seconds"] == pytest.approx([0.4, 0.4])
    assert tuple(found) == NAMES


def test_warns_once_and_names_the_slow_phase(clock, others) -> None:
    others += [(0.1, 0.1, "b")]
    monitor = SlowRankMonitor(1, threshold=1.2)
    expected = (
        f"Rank 0 on {socket.gethostname()} is 2.50 times as slow as the others, which wait for it: per step it takes "
        "0.5 s (0.3 s waiting for data, 0.2 s forward); the median of the others is 0.2 s."
    )
    with pytest.warns(ComposerWarning) as caught:
        train(monitor, clock, data=0.3, forward=0.2)
        others[0] = (2.0, 0.0, "b")
        train(monitor, clock, data=0.3, forward=0.2)
    messages = [str(warning.message) for warning in caught]
    assert messages[0] == expected
    assert len(messages) == 2
    assert messages[1].startswith("Rank 1 on b is 4.00 times")


@pytest.mark.parametrize(
    ("other", "step_seconds"), [((0.0, 0.41, "b"), 1.0), ((0.0, 0.3, "b"), 5.0)], ids=["below", "of no weight"]
)
def test_no_warning_for_insignificant_delays(clock, others, other, step_seconds) -> None:
    others += [other]
    found = train(SlowRankMonitor(2), clock, 0.2, 0.4 if other[1] == 0.41 else 0.3, step_seconds=step_seconds)
    assert found["rank"] == [0, 0]


def test_only_rank_0_warns(clock, others, monkeypatch) -> None:
    monkeypatch.setattr(dist, "get_global_rank", lambda: 1)
    others += [(5.0, 0.0, "b")]
    assert train(SlowRankMonitor(2), clock, 0.1, 0.1)["rank"] == [1, 1]


def test_median_of_zero(clock, others) -> None:
    others += [(0.0, 0.0, "b")]
    with pytest.warns(ComposerWarning, match="is inf times as slow"):
        assert train(SlowRankMonitor(4), clock, 0.1, 0.1)["slowdown"] == [float("inf")]


class Event:
    """A device event that takes one second, and completes one event behind the host."""

    made: list[Event]

    def __init__(self, device: torch.device, enable_timing: bool) -> None:
        assert (device.type, enable_timing) == ("cuda", True)
        self.at = len(Event.made)
        Event.made.append(self)

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return self.at < len(Event.made) - 1

    def elapsed_time(self, end: Event) -> float:
        return 1000.0 * (end.at - self.at)


def test_device_events_without_synchronization(others, monkeypatch) -> None:
    others += [(0.0, 1.0, "b")]
    Event.made = []
    monkeypatch.setattr(torch, "Event", Event)
    log = InMemoryLogger()
    state = State(model=torch.nn.Linear(1, 1), callbacks=[log])
    state.device = SimpleNamespace(torch_device=torch.device("cuda", 0))
    logger, monitor = Logger(state, [log]), SlowRankMonitor(2, threshold=9)
    monitor.fit_start(state, logger)
    for step in range(1, 5):
        monitor.before_forward(state, logger)
        monitor.before_backward(state, logger)
        state.timestamp = Timestamp(batch=step, total_wct=step)
        monitor.batch_end(state, logger)
    # The last pair of two steps is incomplete at the comparison, and counts in the next.
    assert [value for _, value in log.data["slow_rank/median_seconds"]] == [0.5, 1.0]
    assert [value for _, value in log.data["slow_rank/seconds"]] == [1.0, 1.0]
    assert len(monitor._pending) == 1


def both_train() -> Any:
    """Rank 1 waits four times as long for its data."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            clock = Clock()
            slow_rank_monitor.time = clock
            found = train(SlowRankMonitor(2), clock, 0.1 + 0.3 * dist.get_global_rank(), 0.1)
    finally:
        slow_rank_monitor.time = time
    return found, [str(warning.message) for warning in caught]


def test_two_ranks(two_ranks: Ranks) -> None:
    (found, messages), (same, nothing) = two_ranks.run(both_train)
    assert found == same
    assert found["rank"] == [1, 1]
    assert found["slowdown"] == pytest.approx([2.5, 2.5])
    assert (len(messages), nothing) == (1, [])
    assert messages[0].startswith("Rank 1 on ")


@pytest.mark.parametrize("name", ["batch_log_interval", "threshold"])
def test_refuses_invalid_arguments(name) -> None:
    with pytest.raises(ValueError, match=f"{name} must be greater than 0"):
        SlowRankMonitor(**{name: 0})
