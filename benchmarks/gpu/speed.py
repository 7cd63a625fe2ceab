"""Part speed: throughput against other loops, and what checkpoints, augmentations and methods cost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.gpu import throughput
from benchmarks.gpu.options import Options
from benchmarks.report import Report

CHECKS: dict[str, Callable[[Options], Report]] = {
    "gpt2": partial(throughput.measure, "gpt2"),
    "resnet50": partial(throughput.measure, "resnet50"),
}
