"""Run all benchmarks, print their results and goals, and write them to benchmarks/results/."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator

import torch

from benchmarks import (
    auto_microbatch,
    batch_size_warmup,
    callback_cost,
    checkpoints,
    data_loading,
    doctor_tools,
    engine_cost,
    estimate_memory,
    estimate_processes,
    import_time,
    ledger_cost,
    low_communication,
    many_ranks,
    methods,
    packing,
    peak_memory,
    scaling,
    schedule_cost,
    step_overhead,
    time_to_target,
)
from benchmarks.report import Goal, Report
from benchmarks.tasks import TASKS
from benchmarks.torch_allocations import can_preload

BENCHMARKS = (
    "import_time",
    "engine_cost",
    "schedule_cost",
    "step_overhead",
    "callback_cost",
    "ledger_cost",
    "auto_microbatch",
    "peak_memory",
    "estimate_memory",
    "estimate_processes",
    "scaling",
    "low_communication",
    "many_ranks",
    "checkpoints",
    "data_loading",
    "doctor_tools",
    "methods",
    "packing",
    "batch_size_warmup",
    "time_to_target",
)
ONLY_CPU = (
    "doctor_tools",
    "estimate_memory",
    "estimate_processes",
    "scaling",
    "low_communication",
    "many_ranks",
    "methods",
    "packing",
    "batch_size_warmup",
    "time_to_target",
)  # their cases and tasks are of a size for it
QUICK_PROGRAMS = ("sleeping_dataset", "slow_callback", "plain")


def reports(names: list[str], quick: bool, device: str, failed: list[str]) -> Iterator[Report]:
    """Yield the outcome of each benchmark in turn. The others go on if one fails.

    Args:
        names: Which.
        quick: Whether to take fewer measurements.
        device: "cpu" or "cuda"; imports and the engine do not use it.
        failed: The names of those that fail are added to it.
    """
    todo: dict[str, Callable[[], Report]] = {
        "import_time": lambda: import_time.measure(rounds=3 if quick else 9),
        "engine_cost": lambda: engine_cost.measure(rounds=11 if quick else 51),
        "schedule_cost": lambda: schedule_cost.measure(rounds=11 if quick else 51),
        "step_overhead": lambda: step_overhead.measure(
            rounds=1 if quick else 5, repeats=2 if quick else 1, device=device
        ),
        "callback_cost": lambda: callback_cost.measure(rounds=3 if quick else 15, device=device),
        "ledger_cost": lambda: ledger_cost.measure(rounds=11 if quick else 51),
        "auto_microbatch": lambda: auto_microbatch.measure(rounds=3 if quick else 31, device=device),
        "peak_memory": lambda: peak_memory.measure(rounds=1 if quick else 3, device=device),
        "estimate_memory": lambda: estimate_memory.measure(estimate_memory.CONFIGURATIONS[: 3 if quick else None]),
        "estimate_processes": lambda: estimate_processes.measure(
            estimate_processes.CONFIGURATIONS[: 1 if quick else None]
        ),
        "scaling": lambda: scaling.measure(rounds=1 if quick else 5),
        "low_communication": lambda: low_communication.measure(seeds=range(2 if quick else 5)),
        "many_ranks": lambda: many_ranks.measure(rounds=1 if quick else 5),
        "checkpoints": lambda: checkpoints.measure(rounds=2 if quick else 7, device=device),
        "data_loading": lambda: data_loading.measure(rounds=3 if quick else 15, device=device),
        "doctor_tools": lambda: doctor_tools.measure(doctor_tools.cases(names=QUICK_PROGRAMS if quick else ())),
        "methods": lambda: methods.measure(processes=1 if quick else 3),
        "packing": lambda: packing.measure(rounds=3 if quick else 15),
        "batch_size_warmup": lambda: batch_size_warmup.measure(seeds=2 if quick else batch_size_warmup.SEEDS),
        "time_to_target": lambda: time_to_target.measure(
            ("vision",) if quick else tuple(TASKS), 6 if quick else time_to_target.PAIRS, is_tuned=not quick
        ),
    }
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            report = todo[name]()
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        yield report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmarks", nargs="*", choices=[[], *BENCHMARKS], help="which; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer measurements, and nothing is written")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here")
    begin = time.perf_counter()
    goals: list[Goal] = []
    failed: list[str] = []
    chosen = given.benchmarks or [name for name in BENCHMARKS if given.device == "cpu" or name not in ONLY_CPU]
    if not given.benchmarks and "estimate_processes" in chosen and not can_preload():
        print("estimate_processes is left out: it needs Linux and the compiler g++.", file=sys.stderr)
        chosen.remove("estimate_processes")
    for report in reports(chosen, given.quick, given.device, failed):
        print(f"\n{report.text()}\n", flush=True)
        goals += report.goals
        if not given.quick:
            report.write()
    minutes = (time.perf_counter() - begin) / 60
    for goal in goals:
        print(goal)
    print(f"{sum(goal.met for goal in goals)} of {len(goals)} goals met, in {minutes:.0f} minutes")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
