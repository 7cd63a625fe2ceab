"""Measure the cost of an event without handlers."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import environment
from benchmarks.report import Goal, Report, spread

_OUTSIDE = ", outside of looping()"


class Empty:
    """A method that does nothing, called as the engine's is."""

    def run_event(self, event: Any) -> dict[str, Any]:
        return {}


def time_calls(rounds: int, calls: int) -> dict[str, list[float]]:
    """Time the calls in turn, in a loop of the engine and outside; return microseconds a call for each round.

    Args:
        rounds: Number of times that each is timed.
        calls: Number of calls each time.
    """
    from composer import Algorithm, Callback, Engine, Event, State

    class Idle(Algorithm):
        def batch_end(self, state: Any, logger: Any) -> None:
            pass

    class Watch(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            pass

    empty = Empty()
    engine = Engine(State(model=torch.nn.Linear(1, 1)), algorithms=[Idle()], callbacks=[Watch()])
    subjects: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "empty call": (empty.run_event, Event.BATCH_START),
        "run_event, no listener": (engine.run_event, Event.BATCH_START),
        "run_event by name, no listener": (engine.run_event, "batch_start"),
        "run_event, two listeners": (engine.run_event, Event.BATCH_END),
    }
    times: dict[str, list[float]] = {}

    def time_each(suffix: str, calls: int) -> None:
        for name, (function, event) in subjects.items():
            repeat = range(calls)
            begin = time.perf_counter()
            for _ in repeat:
                function(event)
            times.setdefault(name + suffix, []).append((time.perf_counter() - begin) / calls * 1e6)

    for _ in range(rounds):
        with engine.looping():
            time_each("", calls)
        time_each(_OUTSIDE, max(1, calls // 100))
    engine.close()
    return {name: found for name, found in times.items() if name != "empty call" + _OUTSIDE}


def measure(rounds: int = 51, calls: int = 20_000) -> Report:
    """Compare the engine with an empty call.

    Args:
        rounds: Number of times that each is timed.
        calls: Number of calls each time.
    """
    times = time_calls(rounds, calls)
    empty = times["empty call"]
    rows: list[list[Any]] = []
    over: dict[str, float] = {}
    for name, values in times.items():
        # Interleave rounds, so that a temporary slowdown affects both.
        over[name] = statistics.median(value - base for value, base in zip(values, empty, strict=True))
        ratio = statistics.median(value / base for value, base in zip(values, empty, strict=True))
        rows.append([name, statistics.median(values), spread(values), min(values), over[name], ratio])
    goals = [Goal("run_event with no listener, over an empty call", over["run_event, no listener"], 0.3, "us")]
    notes = [
        f"{rounds} rounds of {calls} calls of each, in turn, in one process; median and half the interquartile range.",
        "The engine has an algorithm and a callback that listen to another event.",
        "The trainer runs events in `engine.looping()`. Outside of it, what listens is looked up each time, so that "
        "changed methods take effect.",
    ]
    columns = ["microseconds a call", "median", "spread", "least", "over an empty call", "times an empty call"]
    title = "Cost of an event"
    return Report("engine_cost", title, columns, rows, goals, notes, dict(times), environment.describe())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=51)
    report = measure(parser.parse_args().rounds)
    print(report.text())
    report.write()


if __name__ == "__main__":
    main()
