"""Estimates of peak memory for a GPU against ``max_memory_allocated``."""

from __future__ import annotations

import dataclasses
import gc
import statistics
from collections.abc import Callable
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
from benchmarks.gpu.options import Options
from benchmarks.report import Goal, Report

MIB = 1 << 20
# On a GPU the batches are larger, so that activations and not workspaces are most of the memory.
TIMES = 8


def measure(options: Options) -> Report:
    """Compare the estimates of some configurations with the allocator's statistics.

    On a CPU, the same is estimated for a GPU and measured on the CPU, which only shows that the check works.

    Args:
        options: Device and size.
    """
    chosen = CONFIGURATIONS[:2] if options.tiny else CONFIGURATIONS[::2]
    samples: dict[str, dict[str, float]] = {}
    for configuration in chosen:
        truth, estimate = _compare(configuration, options)
        samples[configuration.label] = {
            "measured": truth,
            "estimated": estimate["peak"],
            "reserved": estimate["reserved"],
            "error": estimate["peak"] / truth - 1,
        }
    errors = [100 * each["error"] for each in samples.values()]
    rows: list[list[Any]] = [
        [label, each["measured"] / MIB, each["estimated"] / MIB, each["reserved"] / MIB, f"{100 * each['error']:+.2f}"]
        for label, each in samples.items()
    ]
    notes = [
        "Measured: the peak of the allocated bytes in the second of two runs in one process, so that the workspaces of "
        "libraries are there before.",
        "Estimated: without the GPU, from CPU tensors that are treated as CUDA tensors.",
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


def _compare(configuration: Configuration, options: Options) -> tuple[int, dict[str, Any]]:
    """Return the measured peak in bytes, and the estimate."""
    arguments = scaled_arguments(configuration, 1 if options.tiny else TIMES)
    estimate = estimated(lambda: arguments("cpu"), cuda=True)
    gc.collect()
    truth = 0
    for _ in range(2):
        truth = measured(lambda: arguments("gpu" if options.device == "cuda" else "cpu"), options.device)
        gc.collect()
    return truth, estimate
