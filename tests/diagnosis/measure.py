"""Measure how often the verdict is right, and how well the promised gains hold in full runs.

    python -m tests.diagnosis.measure [--set fresh|unusual] [--remedies NAME,...|none] [NAME ...]
    python -m tests.diagnosis.measure --gains [NAME ...]

The first prints the verdict for each program of ``bottlenecks`` and ``healthy``, or of a held-out set, and the totals.
The second compares, for each program with a paying remedy, the gain that the doctor promises with that of the full run,
on a quiet computer.

The promised gain is that of what the report says to write: the combination if it pays, or else the best remedy. The
full run is the unchanged program with and without this change, without any instrument of the doctor: ``--seconds`` long
after the first epoch and ten steps, in whole epochs where these are short, and ``--repetitions`` times in alternation.
Its gain is the ratio of the medians of the seconds of a step; a step has its share of evaluations, checkpoints and
starts of epochs. A promise is within 15 % if the promised ratio of speeds, divided by that of the full run, is in
[1 / 1.15, 1.15].
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer.diagnosis.doctor import doctor
from composer.diagnosis.report import Report
from composer.trials import Target
from tests.diagnosis import fresh, rank_bottlenecks, unusual
from tests.diagnosis.bottlenecks import EXPECTED, PATHS, RANKS
from tests.diagnosis.full_run import full_gain
from tests.diagnosis.healthy import HEALTHY

# Factor between a promised and a full ratio of speeds.
WITHIN = 1.15
# Programs with a remedy that pays, on two cores.
PAYING = (
    "sleeping_dataset",
    "decoding_images",
    "tokenizing",
    "decompressing",
    "collating_in_python",
    "parsing_json",
    "workers_that_start_every_epoch",
    "many_microbatches",
    "optimizer_that_is_not_fused",
    "needless_search_for_unused_parameters",
    "transforming_in_the_collate_function",
    "quickstart",
)


# Sets of programs; the doctor is not tuned to the held-out ones.
HELD_OUT = {"fresh": fresh, "unusual": unusual}
SETS = ["own", *HELD_OUT]


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


def programs(names: Sequence[str], chosen: str = "own") -> dict[str, tuple[Target, str, str, int]]:
    """The programs of a set whose name has one of some texts, or all."""
    found = {name: (Target("function", path), *others) for name, (path, *others) in cases(chosen).items()}
    found["quickstart"] = (Target("script", str(Path("examples/quickstart.py").absolute())), "evaluation", "", 1)
    if not names:
        return {name: each for name, each in found.items() if name != "quickstart"}
    return {name: each for name, each in found.items() if any(one in name for one in names)}


def check_gains(names: Sequence[str], seconds: float, repetitions: int) -> bool:
    """Compare the gain that pays best with that of the full run, program by program; return whether all agree.

    Two ratios agree if they differ by at most a factor of 1.15. A combination is a promise too.
    """
    found: list[float] = []
    missing: list[str] = []
    began = time.monotonic()
    for name, (target, _, _, ranks) in programs(names or PAYING).items():
        try:
            report = doctor(target, remedies=["find_unused"] if ranks > 1 else None, ranks=ranks)
            best = report.best
            if best is None or best.ratio is None:
                missing.append(name)
                print(f"-    {name:<38}no remedy pays | {report.seconds:.0f} s", flush=True)
                continue
            full = full_gain(target, best, ranks, seconds, repetitions)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            missing.append(name)
            print(f"FAIL {name}: {error}", flush=True)
            continue
        found.append(best.ratio.value / full.ratio)
        spread = f"[{full.low - 1:+.0%}, {full.high - 1:+.0%}]"
        print(
            f"{'ok  ' if agrees(found[-1]) else 'BAD '} {name:<38}{best.remedy.name:<28}promised {best.ratio!s:<22}"
            f"full run {full.ratio - 1:+.0%} {spread:<16}in {full.steps} steps, ratio {found[-1]:.2f} "
            f"| doctor {report.seconds:.0f} s",
            flush=True,
        )
    right = sum(map(agrees, found))
    print(f"{right} of {len(found)} promised gains are within 15 % | {time.monotonic() - began:.0f} s")
    if found:
        print(f"median deviation {statistics.median(abs(math.log(one)) for one in found):.1%}")
    if missing:
        print(f"without a promise: {', '.join(missing)}")
    return right == len(found)


def agrees(ratio: float) -> bool:
    """Whether a promised ratio of speeds, divided by that of the full run, is within 15 %."""
    return 1 / WITHIN <= ratio <= WITHIN


def check_verdicts(names: Sequence[str], chosen: str, named: Sequence[str] | None, file: Path | None) -> None:
    """Print the verdict of each program, and whether it is right."""
    right: list[bool] = []
    reports: dict[str, Any] = {}
    for name, (target, cause, where, ranks) in programs(names, chosen).items():
        remedies = ["find_unused"] if named == [] and ranks > 1 else named
        try:
            report: Report = doctor(target, remedies=remedies, ranks=ranks)
        except RuntimeError as error:
            print(f"FAIL {name}: {error}", flush=True)
            right.append(False)
            continue
        verdict = report.verdict
        right.append(verdict.cause == cause and where in verdict.where)
        best = report.best
        told = "" if best is None else f" | {best.remedy.name} {best.ratio}"
        mark = "ok  " if right[-1] else "BAD "
        print(f"{mark} {name:<38}{verdict.cause:<14}{verdict.text}{told} | {report.seconds:.0f} s")
        if not right[-1]:
            shares = {part: round(share, 3) for part, share in report.shares.items() if share > 0.01}
            print(f"     expected {cause} {where}; {shares}")
        sys.stdout.flush()
        reports[name] = report.to_json()
    if file:
        file.write_text(json.dumps(reports, indent=1))
    print(f"{sum(right)} of {len(right)} verdicts are right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gains", action="store_true", help="compare the promised gains with full runs")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a full run (default 4)")
    parser.add_argument("--repetitions", type=int, default=3, help="number of pairs of full runs (default 3)")
    parser.add_argument("--remedies", help="for the verdicts: comma-separated, or none")
    parser.add_argument("--json", type=Path, help="also write the reports of the verdicts here")
    parser.add_argument("--set", default="own", choices=SETS, help="the programs; the others than own are held out")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    if given.gains:
        sys.exit(not check_gains(given.names, given.seconds, given.repetitions))
    named = None if given.remedies is None else [one for one in given.remedies.split(",") if one != "none"]
    check_verdicts(given.names, given.set, named, given.json)


if __name__ == "__main__":
    main()
