"""Estimates of the memory that a GPU must have, against the true limit: the least with which a training does not fail.

The limit is set by ``torch.cuda.set_per_process_memory_fraction``, which bounds what the caching allocator reserves.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import environment
from benchmarks.estimate_memory import CONFIGURATIONS, estimated
from benchmarks.gpu.allocation_trace import Trace, recorded
from benchmarks.gpu.estimates import MIB, SCALED, TIMES, keep, scaled_arguments, train
from benchmarks.gpu.options import Options
from benchmarks.report import Goal, Report
from composer.estimation.devices import present_device
from composer.trainer.auto_microbatch.out_of_memory import is_out_of_memory

# Share of the memory to which the limit is found; that of the estimate is as exact.
_TOLERANCE = 0.005
_CHOSEN = ("mlp", "convnet", "resnet", "vit", "gpt", "llama")


def measure(options: Options) -> Report:
    """Find the true limit of some configurations by bisection, and compare it with the estimate.

    Args:
        options: Device and size.

    Raises:
        SkipError: There is no GPU.
    """
    options.need_gpu()
    total = torch.cuda.get_device_properties(0).total_memory
    device = present_device()
    workspaces = 2 * device.workspace  # cuBLAS takes them from the same allocator
    samples: dict[str, dict[str, float]] = {}
    traces: dict[str, Trace] = {}
    for name in _CHOSEN[:1] if options.tiny else _CHOSEN:
        configuration = next(each for each in CONFIGURATIONS if each.model == name)
        arguments = scaled_arguments(configuration, 1 if options.tiny else TIMES)
        expected = estimated(lambda make=arguments: make("cpu"), cuda=True)["limit"] + workspaces
        torch.cuda.set_per_process_memory_fraction(1.0)
        traces[configuration.label] = trace = recorded(lambda make=arguments: train(make))
        truth = smallest_limit(lambda limit, make=arguments: _trains(make, limit, total), expected)
        samples[configuration.label] = {
            "measured": truth,
            "estimated": expected,
            "error": expected / truth - 1,
            **trace.statistics,
        }
    torch.cuda.set_per_process_memory_fraction(1.0)
    errors = [100 * each["error"] for each in samples.values()]
    # What is said to fit leaves a margin; a larger error below the truth would be a "fits" that does not.
    wrong = sum(error < -100 * device.safety_margin for error in errors)
    rows: list[list[Any]] = [
        [
            label,
            *(each[name] / MIB for name in ("measured", "estimated", "allocated", "reserved")),
            f"{100 * each['error']:+.2f}",
        ]
        for label, each in samples.items()
    ]
    return Report(
        "limits",
        "Estimated and true limits of memory on the GPU",
        ["configuration", "MiB needed", "MiB estimated", "MiB allocated", "MiB reserved", "error in %"],
        rows,
        [
            Goal("median of the absolute errors", statistics.median(map(abs, errors)), 5.0, "%"),
            Goal("said to fit, but does not", wrong, 0.0, "configurations"),
        ],
        [
            f"Needed: the least reserved memory, to {100 * _TOLERANCE} %, with which no error of memory is raised.",
            "Estimated: the limit by the replay of all allocations, and two workspaces of cuBLAS.",
            "Allocated and reserved: the peaks without a limit, in the second of two runs.",
            SCALED.format(1 if options.tiny else TIMES),
            *keep(traces, "limits", options),
        ],
        samples,
        environment.describe(options.device),
    )


def smallest_limit(fits: Callable[[int], bool], expected: int, tolerance: float = _TOLERANCE) -> int:
    """Return the smallest number of bytes that is enough, by bisection around what is expected.

    Args:
        fits: Whether a number of bytes is enough.
        expected: About how many are.
        tolerance: Share of the result to which it is found.

    >>> 1000 <= smallest_limit(lambda limit: limit >= 1000, 300) <= 1005
    True
    """
    low, high = expected // 2, expected
    while not fits(high):
        low, high = high, 2 * high
    while fits(low):
        low, high = low // 2, low
        if low == 0:
            return high
    while high - low > max(tolerance * low, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _trains(arguments: Callable[[str], dict[str, Any]], limit: int, total: int) -> bool:
    """Return whether a training does not run out of memory if the allocator may reserve so many bytes."""
    torch._C._cuda_clearCublasWorkspaces()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(limit / total, 1.0))
    try:
        train(arguments)
    except Exception as error:
        if is_out_of_memory(error) and limit < total:
            return False
        raise
    return True
