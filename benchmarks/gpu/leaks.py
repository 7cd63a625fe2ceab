"""Memory that stays: after trainers that were closed, and from step to step."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import torch

from benchmarks import environment
from benchmarks.allocations import Allocations
from benchmarks.gpu import gpt2
from benchmarks.gpu.contenders import composer_trainer
from benchmarks.gpu.options import Options
from benchmarks.gpu.peaks import MIB, REST, job_of, marked
from benchmarks.gpu.training import prepare
from benchmarks.gpu.workloads import Workload, gpt2_workload
from benchmarks.report import Goal, Report

_SHAPE = gpt2.Shape(vocabulary=8192, sequence=256, width=256, num_layers=4, num_heads=4)
_TINY = replace(gpt2.TINY, num_layers=1)  # compiled for each trainer, which takes longer the deeper it is
_SETTLED = 2  # trainers, or evaluations, after which nothing may be new


def measure(options: Options) -> Report:
    """Make trainers in one process, train, evaluate and close them; then train one for long.

    Args:
        options: Device and size.
    """
    prepare(options.device)
    torch.backends.cudnn.benchmark = False
    work = gpt2_workload(_TINY, 4) if options.tiny else gpt2_workload(_SHAPE, 16)
    number, steps = (4, 12) if options.tiny else (20, 200)
    modes: dict[str, dict[str, Any]] = {"eager": {}}
    if options.device == "cuda":
        modes["reduce-overhead"] = {"compile_config": {"mode": "reduce-overhead"}}
    else:
        modes["compiled"] = {"compile_config": {"backend": "eager"}}
    rows: list[list[Any]] = []
    goals: list[Goal] = []
    samples: dict[str, Any] = {}
    for mode, arguments in modes.items():
        # Fewer with graphs, each of which is compiled anew.
        many = number if mode == "eager" else _SETTLED + 2
        after = _after_trainers(work, options, many, arguments)
        held = _after_steps(work, options, steps, arguments)
        samples[mode] = {"trainers": after, "steps": held}
        grown = after[-1] - after[_SETTLED - 1]
        settled = held[len(held) // 4 :]
        rows.append(
            [mode, many, after[0] / MIB, grown / MIB, steps, settled[-1] / MIB, (max(settled) - settled[0]) / MIB]
        )
        goals.append(Goal(f"{mode}: more held after {many} closed trainers than after {_SETTLED}", grown, 0, "bytes"))
        goals.append(
            Goal(f"{mode}: growth over the last three quarters of the steps", max(settled) - settled[0], 0, "bytes")
        )
    notes = [
        f"{work.title}; each trainer trains 4 steps with an evaluation after every second, and is closed and dropped. "
        "after one: what stays of the first, such as workspaces of libraries.",
        f"Then one trainer takes {steps} steps, with evaluations; held: at the end of each step of the optimizer.",
    ]
    columns = ["MiB", "trainers", "after one", "more after all", "steps", "held", "growth"]
    title = "Memory that stays after trainers that were closed, and from step to step"
    machine = environment.describe(options.device)
    return Report("leaks", title, columns, rows, goals, notes, samples, machine)


def _after_trainers(work: Workload, options: Options, number: int, arguments: dict[str, Any]) -> list[int]:
    """The bytes that are held after each trainer."""
    gc.collect()
    with Allocations(options.device) as allocations:
        for _ in range(number):
            _train(work, options, 4, 2, arguments)
            gc.collect()
            allocations.mark("closed")
    return [stretch.end for stretch in allocations.all("closed")]


def _after_steps(work: Workload, options: Options, steps: int, arguments: dict[str, Any]) -> list[int]:
    """The bytes that are held at the end of each step after the first."""
    with Allocations(options.device) as allocations:
        _train(marked(work, allocations), options, steps, 3 if options.tiny else 10, arguments)
    return [stretch.end for stretch in allocations.all(REST)]


def _train(work: Workload, options: Options, steps: int, interval: int, arguments: dict[str, Any]) -> None:
    job = job_of(work, options.device, steps)
    evaluation = {"eval_dataloader": job.loader, "eval_interval": f"{interval}ba", "eval_subset_num_batches": 2}
    with composer_trainer(job, **evaluation, **arguments) as trainer:
        trainer.fit()
    if arguments:
        del trainer, job
        torch.compiler.reset()  # which holds what was compiled, and so the module
