"""Part memory."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.gpu.options import Options
from benchmarks.report import Report

CHECKS: dict[str, Callable[[Options], Report]] = {}
