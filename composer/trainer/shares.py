"""The weights of microbatches, of one process or several, in the loss of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer import dist
from composer.core.data import DataSpec
from composer.core.types import Batch
from composer.trainer.run import Run

__all__ = ["Shares"]


class Shares:
    """How much each microbatch counts in the batch: what it averages over, of what the batch averages over.

    Where there are several processes, their numbers travel while the first microbatch goes forward; and as gradients
    are averaged over W processes rather than added, shares are W times as large.

    Args:
        run: The run.
        microbatches: Those of this process; all of them are of the same batch.

    >>> from types import SimpleNamespace
    >>> from composer.trainer.options import LoopOptions
    >>> state = SimpleNamespace(train_phase=SimpleNamespace(loader=DataSpec([])))
    >>> run = SimpleNamespace(state=state, options=LoopOptions(), exchange=None, lockstep=None)
    >>> shares = Shares(run, [torch.ones(3), torch.ones(1)])
    >>> shares.of(0), shares.of(1)
    (0.75, 0.25)
    """

    def __init__(self, run: Run, microbatches: Sequence[Batch]) -> None:
        self._counts, self._total = _counts(run, microbatches)
        self._is_idle = run.lockstep is not None and run.lockstep.is_idle
        if self._is_idle:
            self._total = self._total * 0
        self._work: Any = None
        self._world_size = 1
        if run.exchange is not None:
            self._world_size = dist.get_world_size()
            self._total = torch.as_tensor(self._total).clone()
            self._work = torch_dist.all_reduce(self._total, async_op=True)
        self._on_device = isinstance(self._counts[0], Tensor)

    def has(self, number: int) -> bool:
        """Tell whether there is a microbatch of a number; others are there to keep step with other processes.

        Args:
            number: Which, from 0.
        """
        return number < len(self._counts) and not self._is_idle

    def of(self, number: int) -> float | Tensor:
        """Return the weight of a microbatch's loss.

        Args:
            number: Which, from 0.
        """
        if self._work is not None:
            self._work.wait()
            self._work = None
            if not self._on_device:
                self._total = int(self._total)
        if not self.has(number):
            return 0.0
        count = self._counts[number]
        if isinstance(self._total, Tensor):
            wide = torch.float32 if self._total.device.type == "mps" else torch.float64  # all that MPS has
            # A batch without any token that counts has no loss to weight.
            return count * self._world_size / self._total.clamp(min=1).to(wide)
        return count * self._world_size / max(self._total, 1)


def _counts(run: Run, microbatches: Sequence[Batch]) -> tuple[list[int] | list[Tensor], int | Tensor]:
    """What each microbatch averages over, and all of them together; token counts stay where they were counted."""
    spec: DataSpec = run.state.train_phase.loader
    by_tokens = run.options.weight_by_tokens
    if by_tokens is None:
        by_tokens = _averages_over_tokens(microbatches[0])
    if not by_tokens:
        sizes = [spec.get_num_samples_in_batch(microbatch) for microbatch in microbatches]
        return sizes, sum(sizes)
    counts = [_count_tokens(run.state.model, spec, microbatch) for microbatch in microbatches]
    if not any(isinstance(count, Tensor) for count in counts):
        whole = cast("list[int]", counts)
        return whole, sum(whole)
    # Counted on the device, so that nobody waits.
    device = run.state.device.torch_device
    tensors = [torch.as_tensor(count, device=device) for count in counts]
    return tensors, torch.stack(tensors).sum()


def _count_tokens(model: Any, spec: DataSpec, microbatch: Batch) -> int | Tensor:
    """The tokens that the loss averages over; a model that computes it in its own way says so itself."""
    count = model.count_targets(microbatch) if hasattr(model, "count_targets") else None
    return spec.get_num_tokens_in_batch(microbatch, "loss_generating") if count is None else count


def _averages_over_tokens(batch: Batch) -> bool:
    """Whether the batch has a target for each token, as in language modelling, some of which may not count."""
    labels = cast("Mapping[str, Any]", batch).get("labels") if isinstance(batch, Mapping) else None
    return isinstance(labels, Tensor) and labels.ndim == 2 and not labels.is_floating_point()
