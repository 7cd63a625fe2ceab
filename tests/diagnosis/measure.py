"""Measure how often the verdict is right, and how well the promised gains hold in longer runs.

    python -m tests.diagnosis.measure [--set fresh|unusual] [--gains] [--remedies NAME,...|none] [NAME ...]

Prints a line for each program of ``bottlenecks`` and ``healthy``, or of a held-out set, and the totals.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from composer import Callback
from composer.diagnosis.doctor import doctor
from composer.diagnosis.recorder import DoctorProbe
from composer.diagnosis.report import Report, Tried
from composer.trials import ForkServer, Study, Target, Trial
from composer.trials.probe import Finished
from tests.diagnosis import fresh, rank_bottlenecks, unusual
from tests.diagnosis.bottlenecks import EXPECTED, PATHS, RANKS
from tests.diagnosis.healthy import HEALTHY

# Sets of programs that the doctor is not tuned to.
HELD_OUT = {"fresh": fresh, "unusual": unusual}
SETS = ["own", *HELD_OUT]


class FullRun(DoctorProbe):
    """Trains for some seconds without any instrument, and returns the steps per second after the first ones."""

    def __init__(self, folder: Path, seconds: float, **arguments: Any) -> None:
        super().__init__(folder, **arguments)
        self._seconds = seconds

    def init(self, arguments: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        restored = super().init(arguments, given)
        self._timer = _Until(self._seconds)
        restored["callbacks"] = [*restored["callbacks"], self._timer]
        return restored

    def fit(self, trainer: Any, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        super().fit(trainer, fit, arguments)
        self._timer = next(one for one in trainer.state.callbacks if isinstance(one, _Until))

    def result(self) -> Mapping[str, Any]:
        return {"step": (self._timer.last - self._timer.first) / self._timer.steps}


class _Until(Callback):
    def __init__(self, seconds: float) -> None:
        self.seconds, self.steps, self.seen = seconds, 0, 0
        self.first = self.last = 0.0

    def batch_start(self, state: Any, logger: Any) -> None:
        self.seen += 1
        now = time.perf_counter()
        if self.seen == 10:
            self.first = now
        elif self.seen > 10:
            self.steps += 1
            self.last = now
            if now - self.first > self.seconds and self.steps >= 10:
                raise Finished


def cases(chosen: str = "own") -> dict[str, tuple[str, str, str, int]]:
    """The programs of a set: import path, right cause, text of the place, ranks.

    Args:
        chosen: One of ``SETS``.
    """
    if chosen != "own":
        held_out = HELD_OUT[chosen]
        right = held_out.EXPECTED | dict.fromkeys(held_out.HEALTHY, ("none", ""))
        return {name: (f"{held_out.__name__}:{name}", *expected, 1) for name, expected in right.items()}
    assert rank_bottlenecks  # has noted its programs when it was imported
    planted = {name: (PATHS[name], *expected, RANKS[name]) for name, expected in EXPECTED.items()}
    return planted | {name: (f"tests.diagnosis.healthy:{name}", "none", "", 1) for name in HEALTHY}


def full_gain(path: str, tried: Tried, ranks: int, seconds: float) -> float:
    """The gain of runs of some seconds, the median of three pairs."""
    found: list[float] = []
    with tempfile.TemporaryDirectory() as folder, ForkServer(["composer.diagnosis.recorder"]) as server:
        for number in range(3):
            steps: list[float] = []
            for name, remedy in (("before", None), ("after", tried.remedy)):
                given: dict[str, Any] = {"seconds": seconds}
                if remedy is not None:
                    given |= {"changed": [*remedy.changed], "edits": [*remedy.edits]}
                trial = Trial(
                    f"{name}{number}",
                    Target("function", path),
                    "tests.diagnosis.measure:FullRun",
                    given,
                    () if remedy is None else remedy.changes,
                    ranks=ranks,
                )
                record = Study(Path(folder), server=server).run([trial])[trial.name]
                if not record.is_completed:
                    raise RuntimeError(f"{trial.name}: {record.error}\n{record.details}")
                steps.append(record.result["step"])
            found.append(steps[0] / steps[1] - 1)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gains", action="store_true", help="compare the best gain with longer runs")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of the longer runs")
    parser.add_argument("--remedies", help="comma-separated, or none")
    parser.add_argument("--json", type=Path, help="also write the reports here")
    parser.add_argument("--set", default="own", choices=SETS, help="the programs; the others than own are held out")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    named = None if given.remedies is None else [one for one in given.remedies.split(",") if one != "none"]
    right: list[bool] = []
    reports: dict[str, Any] = {}
    for name, (path, cause, where, ranks) in cases(given.set).items():
        if given.names and not any(one in name for one in given.names):
            continue
        remedies = ["find_unused"] if named == [] and ranks > 1 else named
        try:
            report: Report = doctor(Target("function", path), remedies=remedies, ranks=ranks)
        except RuntimeError as error:
            print(f"FAIL {name}: {error}", flush=True)
            right.append(False)
            continue
        verdict = report.verdict
        right.append(verdict.cause == cause and where in verdict.where)
        best = max((*report.paying, *([report.combined] if report.combined else [])), key=_value, default=None)
        told = "" if best is None else f" | {best.remedy.name} {best.ratio}"
        if best is not None and given.gains:
            told += f", full run {full_gain(path, best, ranks, given.seconds):+.0%}"
        mark = "ok  " if right[-1] else "BAD "
        print(f"{mark} {name:<38}{verdict.cause:<14}{verdict.text}{told} | {report.seconds:.0f} s")
        if not right[-1]:
            shares = {part: round(share, 3) for part, share in report.shares.items() if share > 0.01}
            print(f"     expected {cause} {where}; {shares}")
        sys.stdout.flush()
        reports[name] = report.to_json()
    if given.json:
        given.json.write_text(json.dumps(reports, indent=1))
    print(f"{sum(right)} of {len(right)} verdicts are right")


def _value(tried: Tried) -> float:
    return 0.0 if tried.ratio is None else tried.ratio.value


if __name__ == "__main__":
    main()
