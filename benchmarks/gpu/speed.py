"""Part speed: throughput against other loops, and what checkpoints, augmentations and methods cost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks import step_overhead
from benchmarks.gpu import augmentations, method_steps, stall, throughput
from benchmarks.gpu.options import Options
from benchmarks.report import Report

# Of the loops that benchmarks.step_overhead knows, those that say most in the time that there is.
_LOOPS = ["raw", "composer", "accelerate", "lightning"]
_MOST_ROUNDS = 3


def _step_overhead(options: Options) -> Report:
    """The small MLP of :mod:`benchmarks.step_overhead`, whose steps are shorter than what launches their kernels."""
    steps, warmup = (5, 2) if options.tiny else (1000, 100)
    rounds = min(options.rounds, _MOST_ROUNDS)
    # A process takes about ten seconds to start with CUDA.
    loops = _LOOPS if options.tiny or options.seconds > 10 * len(_LOOPS) * rounds else _LOOPS[:2]
    return step_overhead.measure(loops, rounds, 1, steps, warmup, options.device)


CHECKS: dict[str, Callable[[Options], Report]] = {
    "gpt2": partial(throughput.measure, "gpt2"),
    "resnet50": partial(throughput.measure, "resnet50"),
    "step_overhead": _step_overhead,
    "checkpoint_stall": stall.measure,
    "augmentations": augmentations.measure,
    "methods": method_steps.measure,
}
SECONDS = {
    "gpt2": 220.0,
    "resnet50": 200.0,
    "step_overhead": 75.0,
    "checkpoint_stall": 60.0,
    "augmentations": 50.0,
    "methods": 115.0,
}
