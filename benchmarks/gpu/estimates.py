"""Estimates of peak memory for a GPU against ``max_memory_allocated``."""

from __future__ import annotations

import dataclasses
import gc
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks import environment
from benchmarks.estimate_memory import (
    BATCHES,
    CONFIGURATIONS,
    Configuration,
    Samples,
    arguments_of,
    estimated,
    measured,
)
from benchmarks.estimate_models import MODELS
from benchmarks.gpu.allocation_trace import Trace, recorded, write
from benchmarks.gpu.options import Options
from benchmarks.gpu.results import hardware, slug
from benchmarks.report import Goal, Report
from composer import Trainer

MIB = 1 << 20
# On a GPU the batches are larger, so that activations and not workspaces are most of the memory.
TIMES = 8
SCALED = "Batches are {} times as large as the labels say; the precision is float32 where they name none."


def measure(options: Options) -> Report:
    """Compare the estimates of some configurations with the allocator's statistics.

    On a CPU, the same is estimated for a GPU and measured on the CPU, which only shows that the check works.

    Args:
        options: Device and size.
    """
    chosen = CONFIGURATIONS[:2] if options.tiny else CONFIGURATIONS[::2]
    samples: dict[str, dict[str, float]] = {}
    traces: dict[str, Trace] = {}
    for configuration in chosen:
        truth, estimate, trace = _compare(configuration, options)
        samples[configuration.label] = {
            "measured": truth,
            "estimated": estimate["peak"],
            "reserved, estimated": estimate["reserved"],
            "error": estimate["peak"] / truth - 1,
        }
        if trace is not None:
            traces[configuration.label] = trace
            samples[configuration.label] |= trace.statistics
    errors = [100 * each["error"] for each in samples.values()]
    rows: list[list[Any]] = [
        [
            label,
            each["measured"] / MIB,
            each["estimated"] / MIB,
            each["reserved, estimated"] / MIB,
            f"{100 * each['error']:+.2f}",
        ]
        for label, each in samples.items()
    ]
    notes = [
        "Measured: the peak of the allocated bytes in the second of two runs in one process, so that the workspaces of "
        "libraries are there before.",
        "Estimated: without the GPU, from CPU tensors that are treated as CUDA tensors.",
        SCALED.format(1 if options.tiny else TIMES),
        *keep(traces, "estimates", options),
    ]
    goals = [Goal("median of the absolute errors", statistics.median(map(abs, errors)), 5.0, "%")]
    columns = ["configuration", "MiB measured", "MiB estimated", "MiB reserved, estimated", "error in %"]
    title = "Estimated and measured peak memory on the GPU"
    machine = environment.describe(options.device)
    return Report("estimates", title, columns, rows, goals, notes, samples, machine)


def scaled_arguments(configuration: Configuration, times: int) -> Callable[[str], dict[str, Any]]:
    """Return what makes the arguments of the trainer for a device, with larger batches.

    Args:
        configuration: What is trained.
        times: How much larger batches are.
    """
    sample = MODELS[configuration.model].sample
    size, evaluation = configuration.batch * times, configuration.evaluation * times
    scaled = dataclasses.replace(configuration, batch=size, evaluation=evaluation)
    torch.manual_seed(0)
    data = Samples(sample, BATCHES * size)
    evaluated = Samples(sample, 2 * evaluation) if evaluation else None
    # The default of a GPU is another precision than that of a CPU.
    return lambda device: {"precision": "fp32", **arguments_of(scaled, data, evaluated), "device": device}


def train(arguments: Callable[[str], dict[str, Any]]) -> None:
    """Train on the GPU.

    Args:
        arguments: Makes the arguments of the trainer for a device.
    """
    trainer = Trainer(**arguments("gpu"))
    trainer.fit()
    trainer.close()


def keep(traces: Mapping[str, Trace], check: str, options: Options) -> list[str]:
    """Write the allocations beside the results, and return a note that names the file; none without allocations.

    Args:
        traces: By configuration.
        check: Name of the check.
        options: Has the folder.
    """
    if not traces or options.folder is None:
        return []
    name = f"allocations-{slug(hardware(options.device)['hardware'])}-{check}.json.gz"
    write(options.folder / name, traces)
    return [
        f"Every allocation: `{name}`, which `python -m benchmarks.gpu.allocation_trace` compares with the estimate."
    ]


def _compare(configuration: Configuration, options: Options) -> tuple[int, dict[str, Any], Trace | None]:
    """Return the measured peak in bytes, the estimate, and on a GPU every allocation."""
    arguments = scaled_arguments(configuration, 1 if options.tiny else TIMES)
    estimate = estimated(lambda: arguments("cpu"), cuda=True)
    gc.collect()
    if options.device == "cuda":
        trace = recorded(lambda: train(arguments))
        return trace.statistics["allocated"], estimate, trace
    truth = 0
    for _ in range(2):
        truth = measured(lambda: arguments("cpu"), "cpu")
        gc.collect()
    return truth, estimate, None
