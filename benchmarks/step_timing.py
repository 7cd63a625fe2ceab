"""Time the steps of a trainer after its warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["CLOCKS", "microseconds_per_step"]

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def microseconds_per_step(trainer: Any, steps: int, device: str, clock: Callable[[], float]) -> float:
    """Train for the duration of a trainer, its warm-up, then for some steps; return microseconds a step of these.

    Args:
        trainer: The trainer, which is closed afterwards.
        steps: Number of steps to time.
        device: "cpu" or "cuda".
        clock: One of :data:`CLOCKS`.
    """
    trainer.fit()
    _wait(device)
    begin = clock()
    trainer.fit(duration=f"{steps}ba")
    _wait(device)
    seconds = clock() - begin
    trainer.close()
    return seconds / steps * 1e6


def _wait(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()
