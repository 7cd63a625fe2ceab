"""The weights of microbatches, of one process or several, in the loss of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer import dist
from composer.core.data_spec import DataSpec
from composer.core.microbatches import count_samples
from composer.core.types import Batch
from composer.core.user_counts import as_quantity, count_targets, entry_of
from composer.precision import widest_dtype
from composer.trainer.run import Run

__all__ = ["Counts", "LossWeights", "averages_over_tokens", "count", "reduce_loss_weights"]

_LOSS = "loss_generating"


class Counts(NamedTuple):
    """What the microbatches of one process average over.

    Attributes:
        parts: Of each microbatch; tensors stay where they were counted.
        by_tokens: Whether they are tokens, rather than samples.
        instead: What counts where the parts of all processes are 0, as nothing keeps track of tokens.

    >>> Counts([3, 1], by_tokens=False).parts
    [3, 1]
    """

    parts: Sequence[int | float | Tensor]
    by_tokens: bool
    instead: Sequence[int | float | Tensor] | None = None


class LossWeights:
    """How much each microbatch counts in the batch: what it averages over, of what the batch averages over.

    Where there are several processes, their numbers travel while the first microbatch goes forward; and as gradients
    are averaged over W processes rather than added, shares are W times as large.

    Args:
        run: The run.
        counts: Of the microbatches of this process; all of them are of the same batch.

    >>> from types import SimpleNamespace
    >>> run = SimpleNamespace(step_sync=None, uneven_inputs=None)
    >>> shares = LossWeights(run, Counts([3, 1], by_tokens=False))
    >>> shares.of(0), shares.of(1)
    (0.75, 0.25)
    """

    def __init__(self, run: Run, counts: Counts) -> None:
        self._is_idle = run.uneven_inputs is not None and run.uneven_inputs.is_idle
        self._counts, self._instead = counts.parts, counts.instead
        self._on_device = any(isinstance(part, Tensor) for part in (*counts.parts, *(counts.instead or ())))
        self._work: Any = None
        self._world_size = 1
        self._total: int | float | Tensor = 0
        self._is_all = run.step_sync is None and len(counts.parts) == 1
        if run.step_sync is not None:
            self._world_size = dist.get_world_size()
            # One form in all processes, whatever each has counted, also where one has not come to count.
            self._totals = _sums(run, counts) * int(not self._is_idle)
            self._work = torch_dist.all_reduce(self._totals, async_op=True)
        elif counts.instead is None:
            if not self._is_all:
                parts = counts.parts
                self._total = _sum(run, parts) if self._on_device else sum(cast("Sequence[float]", parts))
        elif self._on_device:
            self._settle(*_sums(run, counts).unbind())
        else:
            self._settle(sum(cast("Sequence[float]", counts.parts)), sum(cast("Sequence[float]", counts.instead)))

    def _settle(self, total: float | Tensor, instead: float | Tensor) -> None:
        """Take the sum over all microbatches, or the sum of what counts instead where it is 0."""
        if isinstance(total, Tensor) and isinstance(instead, Tensor):
            found = total > 0
            if self._instead is not None:
                pairs = zip(self._counts, self._instead, strict=True)
                self._counts = [torch.where(found, part, other) for part, other in pairs]
            self._total = torch.where(found, total, instead)
        elif total or not instead:
            self._total = total
        else:
            self._counts, self._total = self._instead or self._counts, instead

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
            on_host = not self._on_device and self._totals.device.type == "cpu"
            self._settle(*(self._totals.tolist() if on_host else self._totals.unbind()))
        count = self.count(number)
        if not self.has(number):
            return 0.0
        if self._is_all:
            return count > 0 if isinstance(count, Tensor) else float(count > 0)
        if isinstance(self._total, Tensor):
            # A batch without any token that counts has no loss to weight.
            return count * self._world_size / torch.where(self._total > 0, self._total, 1)
        return count * self._world_size / (self._total or 1)


def count(run: Run, microbatches: Sequence[Batch]) -> Counts:
    """Count what each microbatch averages over.

    Tokens are counted by the user's function only where that is asked for: the one that keeps training time may count
    others than the loss averages over.

    Args:
        run: The run.
        microbatches: Those of this process.

    Raises:
        ValueError: Tokens are to be counted, and nothing says how.
    """
    spec: DataSpec = run.state.train_phase.loader
    if not averages_over_tokens(run, microbatches[0]):
        return Counts(_samples(run, microbatches), by_tokens=False)
    if run.options.weight_by_tokens and spec.__counts_tokens__:
        return _as_the_user_counts(run, microbatches)
    return Counts([_count_tokens(run.state.model, spec, microbatch) for microbatch in microbatches], by_tokens=True)


def averages_over_tokens(run: Run, batch: Batch) -> bool:
    """Tell whether the loss of a batch averages over tokens, rather than samples.

    Args:
        run: The run.
        batch: The batch.
    """
    by_tokens = run.options.weight_by_tokens
    return _has_label_per_token(batch) if by_tokens is None else by_tokens


def reduce_loss_weights(run: Run, counts: Counts | None) -> LossWeights:
    """Bring together what the processes have counted; notes how many microbatches all are to run.

    Where processes wait for each other with every microbatch, they run as many as any of them has.

    Args:
        run: The run; ``state.batch`` is the batch.
        counts: Of this process; None where memory ran out before that was known, and nothing of it counts.
    """
    known = Counts([], averages_over_tokens(run, run.state.batch)) if counts is None else counts
    shares, number = LossWeights(run, known), len(known.parts)
    waits = run.step_sync is not None and run.strategy.syncs_in_forward
    may_differ = run.state.microbatch_size is not None or run.state.train_phase.loader.__splits_itself__
    run.microbatches_left = dist.largest(number) if waits and may_differ else number
    return shares


def _sums(run: Run, counts: Counts) -> Tensor:
    """What a process averages over, and what counts instead (2,).

    They are on the device, where nobody waits for them, unless only shapes are looked at. Which of the two, all
    processes must agree on, also one that has counted nothing.
    """
    if not counts.by_tokens and run.state.train_phase.loader.get_num_samples_in_batch is count_samples:
        # Of one type in all processes, though parts of samples count in some.
        return torch.tensor([sum(cast("Sequence[float]", counts.parts)), 0], dtype=torch.float64)
    return torch.stack([_sum(run, counts.parts), _sum(run, counts.instead or ())])


def _sum(run: Run, parts: Sequence[int | float | Tensor]) -> Tensor:
    """Add counts on the device."""
    device = run.state.device.torch_device
    wide = widest_dtype(device)
    total = torch.full((), sum(part for part in parts if not isinstance(part, Tensor)), dtype=wide, device=device)
    tensors = [part.to(device, wide) for part in parts if isinstance(part, Tensor)]
    return total + torch.stack(tensors).sum() if tensors else total


def _samples(run: Run, microbatches: Sequence[Batch]) -> list[int | float | Tensor]:
    """The samples of each microbatch; of packed ones, parts of a sample may count."""
    count = run.state.train_phase.loader.get_num_samples_in_batch
    if count is count_samples:
        return [count(microbatch) for microbatch in microbatches]
    name = "get_num_samples_in_batch"
    found = _asked(run, name, count, microbatches, run.samples)
    return [
        # One that would have to be waited for stays where it is.
        part if _is_scalar(part) and not part.is_cpu and part.dtype != torch.bool else as_quantity(name, part)
        for part in found
    ]


def _as_the_user_counts(run: Run, microbatches: Sequence[Batch]) -> Counts:
    """The tokens of each microbatch by the user's function.

    A number of 0 for the whole batch says that nothing keeps track of tokens; ``"loss_generating"`` that none counts.
    """
    name, spec = "get_num_tokens_in_batch", run.state.train_phase.loader
    found = _asked(run, name, lambda batch: spec.__tokens__(batch, _LOSS), microbatches, run.counted)
    counted = [entry_of(part, _LOSS) for part in found]
    parts = [part if _is_scalar(part) else as_quantity(name, part) for part in counted]
    is_tracked = any(isinstance(part, Mapping) for part in found)
    if is_tracked or any(part for part in parts if not isinstance(part, Tensor)):
        return Counts(parts, by_tokens=True)
    return Counts(parts, by_tokens=True, instead=_samples(run, microbatches))


def _asked(run: Run, name: str, count: Callable[[Batch], Any], microbatches: Sequence[Batch], before: Any) -> list[Any]:
    """What a function of the user's says of each microbatch, or said before methods took what it reads."""
    try:
        return [count(microbatch) for microbatch in microbatches]
    except (LookupError, AttributeError) as error:
        if len(microbatches) == 1 and not run.state.train_phase.loader.__splits_itself__:
            return [before]
        raise ValueError(
            f"{name} raised {error!r} for a microbatch. It is called for each, to weight it, after the methods that "
            f"edit batches at AFTER_DATALOADER and after split_batch: let them leave in the batch what it reads, or "
            f"give device_train_microbatch_size=None."
        ) from error


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0


def _count_tokens(model: Any, spec: DataSpec, microbatch: Batch) -> int | Tensor:
    """The tokens that the loss averages over; a model that computes it in its own way says so itself."""
    count = model.__count_targets__(microbatch) if hasattr(model, "__count_targets__") else None
    count = count_targets(microbatch) if count is None else count
    if count is not None:
        return count
    count = spec.get_num_tokens_in_batch(microbatch)
    if not isinstance(count, Tensor) and not count:
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
