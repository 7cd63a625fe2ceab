"""Dry run: train and evaluate on two batches, to find mistakes before a long run; report shapes, time and memory."""

from __future__ import annotations

import copy
import sys
import time
from typing import Any

import torch
from torch import Tensor

from composer import dist, trees
from composer._resident_memory import resident_peak
from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.devices import MEMORY_STATISTICS
from composer.trainer.evaluate import evaluate
from composer.trainer.fit import fit
from composer.trainer.run import Run

__all__ = ["dry_run"]

_BATCHES = 2


def dry_run(run: Run) -> str:
    """Train and evaluate on two batches each, with all algorithms, callbacks and loggers; return a report.

    Rank 0 prints it. The training time is restored afterwards; the parameters keep the updates of the two steps.

    Args:
        run: The run.
    """
    state = run.state
    phase, max_duration, timestamp = state.train_phase, state.max_duration, state.timestamp
    length, extra_batches = phase.length, phase.extra_batches
    evaluators, state.evaluators = list(state.evaluators), []
    # Schedules relate to the full duration, not to these two batches.
    schedulers, state.schedulers = list(state.schedulers), []
    groups = [(group, _settings(group)) for optimizer in state.optimizers for group in optimizer.param_groups]
    recorder = _Recorder()
    state.callbacks.append(recorder)
    try:
        state.max_duration = state.timestamp.batch + _BATCHES
        fit(run)
        for evaluator in evaluators:
            evaluate(run, evaluator, _BATCHES)
    finally:
        state.callbacks.remove(recorder)
        state.max_duration, state.timestamp, state.evaluators = max_duration, timestamp, evaluators
        state.schedulers = schedulers
        phase.length, phase.extra_batches, phase.iterator = length, extra_batches, None
        for group, settings in groups:
            group.update(settings)
    report = recorder.report(state)
    if dist.get_global_rank() == 0:
        sys.stderr.write(report)
    return report


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an optimizer's parameter group, which schedules may change."""
    return {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}


class _Recorder(Callback):
    """Records shapes and times of each batch, and the peak memory."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._began = 0.0

    def batch_start(self, state: State, logger: Logger) -> None:
        self._begin(state)

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        self._begin(state)

    def after_forward(self, state: State, logger: Logger) -> None:
        self._outputs = _shapes(state.outputs)

    def eval_after_forward(self, state: State, logger: Logger) -> None:
        self._outputs = _shapes(state.outputs)

    def batch_end(self, state: State, logger: Logger) -> None:
        self._end(state, f"loss {float(state.total_loss_dict['loss/train/total']):.4g}")

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        self._end(state, "")

    def report(self, state: State) -> str:
        parameters = sum(p.numel() for p in state.model.parameters() if p.requires_grad)
        head = (
            f"Dry run of {type(state.model).__name__}: {parameters:,} trainable parameters, on {state.device.name} in "
            f"{state.precision.value}; algorithms {state.algorithms or 'none'}."
        )
        return "\n".join([head, *self._lines, f"Peak memory {_peak_memory(state) / 2**20:,.0f} MiB.", ""])

    def _begin(self, state: State) -> None:
        self._batch = _shapes(state.batch)
        _wait(state)
        self._began = time.perf_counter()

    def _end(self, state: State, remark: str) -> None:
        _wait(state)
        milliseconds = 1e3 * (time.perf_counter() - self._began)
        name = f"{state.dataloader_label} batch {state.phase.timestamp.batch.value}"
        self._lines.append(f"  {name}: {self._batch} -> {self._outputs}, {milliseconds:.1f} ms {remark}".rstrip())


def _shapes(tree: Any) -> str:
    return str(trees.map_leaves(lambda leaf: _Shape(leaf) if isinstance(leaf, Tensor) else type(leaf).__name__, tree))


class _Shape:
    """Prints a tensor as its dtype and shape."""

    def __init__(self, tensor: Tensor) -> None:
        self._text = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"

    def __repr__(self) -> str:
        return self._text


def _wait(state: State) -> None:
    if _is_accelerated(state):
        torch.accelerator.synchronize()


def _peak_memory(state: State) -> int:
    """Return the peak memory in bytes: of the accelerator, or of the process on the CPU."""
    if state.device.torch_device.type in MEMORY_STATISTICS:
        return torch.accelerator.max_memory_allocated(state.device.torch_device)
    return resident_peak()


def _is_accelerated(state: State) -> bool:
    """Return whether the device is PyTorch's accelerator, rather than the CPU or a device of another package."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == state.device.torch_device.type
