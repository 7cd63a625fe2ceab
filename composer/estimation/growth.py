"""Memory that grows with each batch: what callbacks and custom optimizers keep, states of metrics, and buffers.

A trial runs three batches. What each of them leaves behind is taken to be left by all batches of the run.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS

from composer.memory.allocations import Allocation, AllocationLog

__all__ = ["Growth", "extend_history", "extend_states", "kept_by_each_batch"]

# What these roles hold is replaced in each batch, or counted elsewhere.
_REPLACED = frozenset({"batch", "gradients", "parameters", "buffers", "optimizer state", "metrics", "temporary"})
# Known values with more bytes are not repeated, but taken to have no values.
_LARGE = 2**27


@dataclass(frozen=True)
class Growth:
    """What batches keep, and how many of them the run has besides those of the trial.

    Args:
        steps: Bytes that each step keeps, by the stage that allocated them.
        remaining_steps: Number of steps that are not run.
        evaluations: For each evaluation the first and the last event, the bytes that each batch keeps by stage, and the
            number of batches that are not run.

    >>> Growth({"Keep": 16}, 100).peak(AllocationLog())
    (1600, 0, 1600)
    """

    steps: Mapping[str, int] = field(default_factory=dict[str, int])
    remaining_steps: int = 0
    evaluations: Sequence[tuple[int, int, Mapping[str, int], int]] = ()

    def peak(self, log: AllocationLog) -> tuple[int, int, int]:
        """Return the peak in bytes, the event at which it is reached, and the bytes in it that are not in the log.

        Args:
            log: The allocations.
        """
        by_steps = self.remaining_steps * sum(self.steps.values())
        found = [(*log.peak(), by_steps)]
        for begin, end, kept, remaining in self.evaluations:
            found.append((*log.peak(begin, end), by_steps + remaining * sum(kept.values())))
        peak, event, grown = max(found, key=lambda each: each[0] + each[2])
        return peak + grown, event, grown

    def to_json(self) -> list[list[Any]]:
        """Return who keeps memory, the bytes for each batch, and the number of batches that are not run."""
        parts = [(self.steps, self.remaining_steps), *((kept, number) for _, _, kept, number in self.evaluations)]
        return [[name, size, number] for kept, number in parts if number for name, size in kept.items()]


def kept_by_each_batch(log: AllocationLog, ends: Sequence[int]) -> dict[str, int]:
    """Return the bytes that each of several batches allocates and none of the later ones frees, by their stage.

    Args:
        log: The allocations.
        ends: The number of events at the beginning of the first batch, and at the end of each.

    >>> log, kept = AllocationLog(stage="Keep"), []
    >>> ends = [0]
    >>> for _ in range(3):
    ...     kept.append(torch.ones(4))
    ...     log.add(kept[-1])
    ...     ends.append(len(log.events))
    >>> kept_by_each_batch(log, ends)
    {'Keep': 16}
    """
    live: dict[int, int] = {}  # the batch that made each allocation
    for batch, (begin, end) in enumerate(itertools.pairwise(ends)):
        for index, begins in log.events[begin:end]:
            if begins:
                live[index] = batch
            else:
                live.pop(index, None)
    found: list[Counter[tuple[str, str, int]]] = [Counter() for _ in ends[1:]]
    for index, batch in live.items():
        each: Allocation = log.allocations[index]
        if each.role not in _REPLACED:
            found[batch][each.stage, each.module, each.nbytes] += 1
    common = found[0]
    for other in found[1:]:
        common = common & other
    sizes: Counter[str] = Counter()
    for (stage, _, nbytes), count in common.items():
        sizes[stage] += nbytes * count
    return dict(sizes)


def extend_states(metrics: Mapping[str, Any], batches: int, remaining: int, without_values: Tensor) -> None:
    """Let metrics that keep all outputs of an evaluation keep those of the batches that are not run.

    Args:
        metrics: Metrics of torchmetrics by name.
        batches: Number of batches that were run.
        remaining: Number of batches that are not.
        without_values: A tensor without values.

    >>> from torchmetrics import CatMetric
    >>> metric = CatMetric()
    >>> for _ in range(2):
    ...     metric.update(torch.ones(8))
    >>> extend_states({"all": metric}, 2, 98, torch.ones(1))
    >>> metric.compute().shape
    torch.Size([800])
    """
    for metric in metrics.values():
        for name, default in getattr(metric, "_defaults", {}).items():
            kept = getattr(metric, name)
            if not isinstance(default, list) or not kept:
                continue
            for each in kept[-max(len(kept) // batches, 1) :]:
                if isinstance(each, Tensor):
                    kept.append(_repeated(each, remaining, without_values))


def _repeated(tensor: Tensor, times: int, without_values: Tensor) -> Tensor:
    rows = tensor if tensor.ndim else tensor[None]
    if rows.nbytes * times <= _LARGE:
        return torch.cat([rows] * times)
    shape = (rows.shape[0] * times, *rows.shape[1:])
    return without_values.new_empty(shape, dtype=rows.dtype, device=rows.device)


def extend_history(optimizer: LBFGS, steps: int) -> None:
    """Let L-BFGS have the history of differences between gradients and parameters that it has at the end of a run.

    Args:
        optimizer: The optimizer, after its first step.
        steps: Number of steps of the run.

    >>> weight = torch.nn.Parameter(torch.ones(4))
    >>> optimizer = LBFGS([weight], max_iter=1, history_size=10)
    >>> def closure():
    ...     weight.grad = torch.ones(4)
    ...     return 1.0
    >>> optimizer.step(closure)
    1.0
    >>> extend_history(optimizer, 1000)
    >>> len(next(iter(optimizer.state.values()))["old_dirs"])
    10
    """
    group = optimizer.param_groups[0]
    for state in optimizer.state.values():
        gradient = state.get("prev_flat_grad")
        if gradient is None:
            continue
        # An iteration makes its pair of differences before it drops the oldest one.
        length = min(group["history_size"], steps * group["max_iter"] - 2)
        for name in ("old_dirs", "old_stps"):
            state[name] = [gradient.clone() for _ in range(length)]
        state["ro"] = [torch.ones((), device=gradient.device) for _ in range(length)]
