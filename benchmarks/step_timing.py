"""Time the steps of a trainer after its warm-up."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["CLOCKS", "forget_garbage", "microseconds_per_step"]

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
    forget_garbage()
    begin = clock()
    trainer.fit(duration=f"{steps}ba")
    _wait(device)
    seconds = clock() - begin
    trainer.close()
    return seconds / steps * 1e6


def forget_garbage() -> None:
    """Collect garbage before a clock starts, and leave out what exists from later collections.

    A full collection looks at all objects of the imported libraries, which takes some tenths of a second, and is rare.
    If one falls into 2,000 steps, it adds 100 us and more to each of them.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _wait(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()
