"""Part memory: peaks against other loops, and what is held besides: by checkpoints, averages, and after errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.gpu import estimates, held, leaks, limits, peaks
from benchmarks.gpu.options import Options
from benchmarks.report import Report

CHECKS: dict[str, Callable[[Options], Report]] = {
    "gpt2": partial(peaks.measure, "gpt2"),
    "resnet50": partial(peaks.measure, "resnet50"),
    "microbatch_auto": held.measure_auto,
    "checkpoint": held.measure_checkpoint,
    "offload": held.measure_offload,
    "leaks": leaks.measure,
    "ema_swa": held.measure_averages,
    "estimates": estimates.measure,
    "limits": limits.measure,
}
SECONDS = {
    "gpt2": 75.0,
    "resnet50": 75.0,
    "microbatch_auto": 30.0,
    "checkpoint": 30.0,
    "offload": 30.0,
    "leaks": 30.0,
    "ema_swa": 30.0,
    "estimates": 60.0,
    "limits": 90.0,
}
