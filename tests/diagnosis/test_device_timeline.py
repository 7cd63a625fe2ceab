"""The time line of an accelerator, on a simulated one: a queue of kernels that the host fills."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer.diagnosis.device_timeline import DeviceTimeline
from composer.diagnosis.step_clock import StepClock
from composer.diagnosis.verdict import judge

FACTS: dict[str, Any] = {"data": {"workers": 0}, "float64": False, "anomaly": False, "optimizers": []}


class Simulated:
    """A host and a device with one stream; both have a time in seconds."""

    def __init__(self) -> None:
        self.host = self.device = 0.0

    def works(self, seconds: float) -> None:
        """The host computes."""
        self.host += seconds

    def launches(self, seconds: float, kernels: int = 1, overhead: float = 1e-5) -> None:
        """The host queues kernels, which the device computes after those before."""
        for _ in range(kernels):
            self.host += overhead
            self.device = max(self.device, self.host) + seconds / kernels

    def synchronize(self) -> None:
        """The host waits until the device has no more work."""
        self.host = max(self.host, self.device)

    def event(self) -> _Event:
        return _Event(self)


class _Event:
    def __init__(self, simulated: Simulated) -> None:
        self.simulated = simulated

    def record(self) -> None:
        self.time = max(self.simulated.host, self.simulated.device)

    def elapsed_time(self, other: _Event) -> float:
        assert self.simulated.host >= other.time, "the device has not reached the event"
        return (other.time - self.time) * 1e3


class Run:
    """A run of some steps of a simulated device, as the recorder measures it."""

    def __init__(self) -> None:
        self.simulated = Simulated()
        self.clock = StepClock(lambda: self.simulated.host)
        self.clock.timeline = DeviceTimeline(
            self.simulated.event, self.simulated.synchronize, lambda: self.simulated.host
        )

    def part(self, name: str, *actions: Any) -> None:
        self.clock.enter(name)
        for action, *values in actions:
            getattr(self.simulated, action)(*values)
        self.clock.leave()

    def steps(self, *parts: Any, count: int = 20) -> dict[str, Any]:
        timeline = self.clock.timeline
        assert timeline is not None
        for number in range(count + 3):
            if number == 3:
                timeline.restart()
                self.clock.restart()
                self.clock.steps.clear()
                began = self.simulated.host
            for name, *actions in parts:
                self.part(name, *actions)
            self.clock.end_step()
        split, starved = timeline.split_of_steps()
        wall = self.simulated.host - began
        assert sum(sum(step.values()) for step in split) == pytest.approx(wall, rel=0.02)
        return {"steps": split, "starved": starved, "host_steps": self.clock.steps, "facts": FACTS}


def test_a_device_that_is_always_busy_has_no_part_that_waits() -> None:
    loads = ("data", ("works", 0.003))
    computes = (("forward", ("launches", 0.01)), ("backward", ("launches", 0.02)))
    result = Run().steps(loads, *computes, ("callback Slow", ("works", 0.002)))
    later = result["steps"][5:]
    # The host is ahead: its data and callbacks delay nothing, though they take most of its time.
    assert all(step.get("data", 0) < 0.0005 and step["backward"] == pytest.approx(0.02, rel=0.05) for step in later)
    assert sum(result["host_steps"][-1].get(part, 0) for part in ("data", "callback Slow")) > 0.004
    assert not any(result["starved"][5:])
    assert judge(result).cause == "none"


def test_data_that_the_device_waits_for() -> None:
    result = Run().steps(("data", ("works", 0.05)), ("forward", ("launches", 0.01)), ("backward", ("launches", 0.02)))
    assert judge(result).cause == "data"
    assert judge(result).share > 0.3


def synchronizing(work: float) -> dict[str, Any]:
    """A callback reads a number in each step, and then the host works."""
    result = Run().steps(
        ("forward", ("launches", 0.004)),
        ("backward", ("launches", 0.006)),
        ("callback Reads", ("synchronize",)),
        ("optimizer", ("works", work), ("launches", 0.001)),
    )
    line = {"part": "callback Reads", "file": "train.py", "line": 7, "in": "Reads.batch_end"}
    waits = [{**line, "why": "reads a number (item, float, if)", "count": 1.0}]
    lines = [{**line, "seconds": 4.0}, {"part": "optimizer", "file": None, "line": None, "in": None, "seconds": 6.0}]
    return {**result, "operators": {"parts": {}, "lines": [], "waits": waits}, "lines": lines, "sampled_seconds": 10.0}


def test_a_synchronization_after_which_the_device_waits() -> None:
    # On the time line of the device the callback takes no time; what follows it does.
    verdict = judge(synchronizing(work=0.004))
    assert (verdict.cause, verdict.where) == ("synchronization", "train.py:7 (Reads.batch_end)")
    assert 0.2 < verdict.share < 0.6
    assert "reads a number" in verdict.evidence[0]


def test_a_synchronization_that_costs_nothing() -> None:
    assert judge(synchronizing(work=0.0)).cause != "synchronization"


def test_a_host_that_launches_too_slowly_is_no_synchronization() -> None:
    kernels = ("launches", 0.001, 100, 1e-4)
    result = Run().steps(("forward", kernels), ("backward", kernels))
    assert sum(result["starved"][-1].values()) == pytest.approx(sum(result["steps"][-1].values()), rel=0.1)
    assert judge(result).cause == "none"  # no line waits; small operators are found by their number


def test_the_end_of_backward_after_the_last_gradient_is_communication() -> None:
    run = Run()
    timeline = run.clock.timeline
    assert timeline is not None
    for _ in range(3):
        run.clock.enter("backward")
        run.simulated.launches(0.01)
        last = run.clock.now()
        timeline.remember()
        run.simulated.launches(0.02)  # the all-reduce, for which the stream waits
        run.clock.split("communication", last)
        run.clock.leave()
        run.clock.end_step()
    split, _ = timeline.split_of_steps()
    assert split[-1]["backward"] == pytest.approx(0.01, rel=0.01)
    assert split[-1]["communication"] == pytest.approx(0.02, rel=0.01)


def test_only_cuda_has_a_time_line() -> None:
    assert DeviceTimeline.of(torch.device("cpu")) is None
    assert DeviceTimeline.of(torch.device("mps")) is None
