"""The weights of microbatches, of one process or several, in the loss of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer import dist
from composer.core.data import DataSpec, as_number
from composer.core.types import Batch
from composer.devices import WITHOUT_FLOAT64
from composer.trainer.run import Run

__all__ = ["Counts", "Shares", "agree_on_shares", "averages_over_tokens", "count"]


class Counts(NamedTuple):
    """What the microbatches of one process average over.

    Attributes:
        parts: Of each microbatch; token counts stay where they were counted.
        by_tokens: Whether they are tokens, rather than samples.

    >>> Counts([3, 1], by_tokens=False).parts
    [3, 1]
    """

    parts: Sequence[int | float | Tensor]
    by_tokens: bool


class Shares:
    """How much each microbatch counts in the batch: what it averages over, of what the batch averages over.

    Where there are several processes, their numbers travel while the first microbatch goes forward; and as gradients
    are averaged over W processes rather than added, shares are W times as large.

    Args:
        run: The run.
        counts: Of the microbatches of this process; all of them are of the same batch.

    >>> from types import SimpleNamespace
    >>> run = SimpleNamespace(exchange=None, lockstep=None)
    >>> shares = Shares(run, Counts([3, 1], by_tokens=False))
    >>> shares.of(0), shares.of(1)
    (0.75, 0.25)
    """

    def __init__(self, run: Run, counts: Counts) -> None:
        self._is_idle = run.lockstep is not None and run.lockstep.is_idle
        self._counts = counts.parts
        self._on_device = any(isinstance(part, Tensor) for part in counts.parts)
        self._work: Any = None
        self._world_size = 1
        self._is_all = run.exchange is None and len(counts.parts) == 1
        if self._is_all:
            return
        if run.exchange is None:
            self._total = _sum(run, counts) if self._on_device else sum(cast("Sequence[float]", counts.parts))
            return
        self._world_size = dist.get_world_size()
        # One form in all processes, whatever each has counted, also where one has not come to count.
        total = _sum(run, counts) * int(not self._is_idle)
        self._total: int | float | Tensor = total
        self._work = torch_dist.all_reduce(total, async_op=True)

    def has(self, number: int) -> bool:
        """Tell whether there is a microbatch of a number; others are there to keep step with other processes.

        Args:
            number: Which, from 0.
        """
        return number < len(self._counts) and not self._is_idle

    def count(self, number: int) -> int | float | Tensor:
        """Return what a microbatch averages over; 0 for one that is there to keep step.

        Args:
            number: Which, from 0.
        """
        return self._counts[number] if self.has(number) else 0

    def of(self, number: int) -> float | Tensor:
        """Return the weight of a microbatch's loss; of a batch that is one microbatch, a bool that says if it counts.

        Args:
            number: Which, from 0.
        """
        if self._work is not None:
            self._work.wait()
            self._work = None
            if not self._on_device and cast(Tensor, self._total).device.type == "cpu":
                self._total = cast(Tensor, self._total).item()
        count = self.count(number)
        if not self.has(number):
            return 0.0
        if self._is_all:
            return count > 0 if isinstance(count, Tensor) else float(count > 0)
        if isinstance(self._total, Tensor):
            # A batch without any token that counts has no loss to weight.
            return count * self._world_size / self._total.clamp(min=1)
        return count * self._world_size / (self._total or 1)


def count(run: Run, microbatches: Sequence[Batch]) -> Counts:
    """Count what each microbatch averages over, by the user's functions where there are any.

    Args:
        run: The run.
        microbatches: Those of this process.

    Raises:
        ValueError: Tokens are to be counted, and nothing says how.
    """
    spec: DataSpec = run.state.train_phase.loader
    if not averages_over_tokens(run, microbatches[0]):
        return Counts([_count_samples(spec, microbatch) for microbatch in microbatches], by_tokens=False)
    return Counts([_count_tokens(run.state.model, spec, microbatch) for microbatch in microbatches], by_tokens=True)


def averages_over_tokens(run: Run, batch: Batch) -> bool:
    """Tell whether the loss of a batch averages over tokens, rather than samples.

    Args:
        run: The run.
        batch: The batch.
    """
    by_tokens = run.options.weight_by_tokens
    return _has_label_per_token(batch) if by_tokens is None else by_tokens


def agree_on_shares(run: Run, counts: Counts | None) -> Shares:
    """Bring together what the processes have counted; notes how many microbatches all are to run.

    Where processes wait for each other with every microbatch, they run as many as any of them has.

    Args:
        run: The run; ``state.batch`` is the batch.
        counts: Of this process; None where memory ran out before that was known, and nothing of it counts.
    """
    known = Counts([], averages_over_tokens(run, run.state.batch)) if counts is None else counts
    shares, number = Shares(run, known), len(known.parts)
    waits = run.exchange is not None and run.strategy.meets_in_forward
    may_differ = run.state.microbatch_size is not None or run.state.train_phase.loader.__splits_itself__
    run.microbatches_left = dist.largest(number) if waits and may_differ else number
    return shares


def _sum(run: Run, counts: Counts) -> Tensor:
    """What a process averages over; tokens on the device, where nobody waits for them, and samples on the host."""
    device = run.state.device.torch_device
    if not counts.by_tokens:
        # Of one type in all processes, though parts of samples count in some.
        return torch.tensor(sum(cast("Sequence[float]", counts.parts)), dtype=torch.float64)
    wide = torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64
    numbers = [part for part in counts.parts if not isinstance(part, Tensor)]
    total = torch.full((), sum(numbers), dtype=wide, device=device)
    tensors = [part.to(device, wide) for part in counts.parts if isinstance(part, Tensor)]
    return total + torch.stack(tensors).sum() if tensors else total


def _count_samples(spec: DataSpec, microbatch: Batch) -> int | float:
    """The samples of a microbatch; of packed ones, parts of a sample may count."""
    count = spec.get_num_samples_in_batch(microbatch)
    return count if type(count) is int else as_number("get_num_samples_in_batch", count)


def _count_tokens(model: Any, spec: DataSpec, microbatch: Batch) -> int | Tensor:
    """The tokens that the loss averages over; a model that computes it in its own way says so itself."""
    count = model.__count_targets__(microbatch) if hasattr(model, "__count_targets__") else None
    if count is not None:
        return count
    count = spec.get_num_tokens_in_batch(microbatch, "loss_generating")
    if not isinstance(count, Tensor) and not count and not spec.__counts_tokens__:
        # Taken as it is, it would mean that nothing counts, and nothing would be trained.
        raise ValueError(
            "accumulate_train_batch_on_tokens=True, and a batch does not say how many tokens it has. Give "
            "DataSpec(..., get_num_tokens_in_batch=...), batches with 'labels' or 'input_ids', or "
            "accumulate_train_batch_on_tokens=False."
        )
    return count


def _has_label_per_token(batch: Batch) -> bool:
    """Whether the batch has a target for each token, as in language modelling, some of which may not count."""
    labels = cast("Mapping[str, Any]", batch).get("labels") if isinstance(batch, Mapping) else None
    return isinstance(labels, Tensor) and labels.ndim == 2 and not labels.is_floating_point()
