"""Measure the cost of the ledger of a run per training step."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.report import Goal, Report, spread

Step = Callable[[], object]

WRITTEN = "the ledger, written twice a second"


class Empty:
    """A clock that does nothing, called as the one of a trainer is."""

    def wait(self) -> None:
        pass

    def train(self) -> None:
        pass


class Readings:
    """A clock that only reads the time."""

    def wait(self) -> None:
        time.perf_counter()

    def train(self) -> None:
        time.perf_counter()


def subjects(folder: Path) -> tuple[dict[str, Any], Step]:
    """Return clocks by name, and a function that writes the ledger of the last one to a file in a folder.

    Args:
        folder: The folder.
    """
    from composer.checkpoint.ledger_file import LocalLedgerFile
    from composer.ledger import Category, LedgerClock, Segment

    file = LocalLedgerFile(folder)

    def write() -> None:
        file.write(Segment(writing.segment, writing.started, writing.seconds(), folder=file.folder).line())

    clock, writing = LedgerClock(), LedgerClock()
    writing.write_by(write, file.interval)
    for one in (clock, writing):
        one.enter(Category.TRAINING)
    clocks = {
        "empty methods": Empty(),
        "two readings of the time": Readings(),
        "the ledger in memory": clock,
        WRITTEN: writing,
    }
    return clocks, write


def time_steps(rounds: int, steps: int) -> tuple[dict[str, list[float]], list[float]]:
    """Time the steps in turn; return microseconds a step for each round, and microseconds of each write.

    Args:
        rounds: Number of times that each is timed.
        steps: Number of steps each time.
    """
    with tempfile.TemporaryDirectory() as folder:
        clocks, write = subjects(Path(folder))
        times: dict[str, list[float]] = {name: [] for name in clocks}
        writes: list[float] = []
        write()  # the first one appends a line
        for _ in range(rounds):
            for name, clock in clocks.items():
                repeat = range(steps)
                begin = time.perf_counter()
                for _ in repeat:
                    clock.wait()
                    clock.train()
                times[name].append((time.perf_counter() - begin) / steps * 1e6)
            begin = time.perf_counter()
            write()
            writes.append((time.perf_counter() - begin) * 1e6)
    return times, writes


def measure(rounds: int = 51, steps: int = 20_000) -> Report:
    """Compare the clock of a trainer with an empty one.

    Args:
        rounds: Number of times that each is timed.
        steps: Number of steps each time.
    """
    times, writes = time_steps(rounds, steps)
    empty = times["empty methods"]
    rows: list[list[Any]] = []
    over: dict[str, float] = {}
    for name, values in times.items():
        # Interleave rounds, so that a temporary slowdown affects both.
        over[name] = statistics.median(value - base for value, base in zip(values, empty, strict=True))
        rows.append([name, statistics.median(values), spread(values), min(values), over[name]])
    rows.append(["one write of the file", statistics.median(writes), spread(writes), min(writes), ""])
    share = statistics.median(writes) * 2 / 1e6 * 100
    # A step of a millisecond, with its part of two writes a second.
    in_all = over["the ledger in memory"] + statistics.median(writes) * 2 / 1000
    goals = [
        Goal("the ledger in memory, over empty methods", over["the ledger in memory"], 1.0, "us a step"),
        Goal("the same, with the writes, in steps of 1 ms", in_all, 1.0, "us a step"),
        Goal("two writes a second, of the time", share, 0.1, "%"),
    ]
    notes = [
        f"{rounds} rounds of {steps} steps of each, in turn, in one process; median and half the interquartile range.",
        "A step is one call of `wait` and one of `train`, as in the training loop, which does nothing else for the "
        "ledger in a step. A slow file system is written to more rarely, so that writing takes at most 0.05 % of "
        "the time.",
    ]
    columns = ["microseconds a step", "median", "spread", "least", "over empty methods"]
    samples = {**times, "one write of the file": writes}
    title = "Cost of the ledger of a run"
    return Report("ledger_cost", title, columns, rows, goals, notes, samples, environment.describe())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=51)
    report = measure(parser.parse_args().rounds)
    print(report.text())
    report.write()


if __name__ == "__main__":
    main()
