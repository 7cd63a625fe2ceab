"""Loss weights of microbatches under gradient accumulation, by samples or tokens, normalized over all ranks.

A batch that nothing can edit is counted when it is loaded, and its count travels with the other counts of the step.
Otherwise it is counted in the step, and a further all-reduce sums the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor

from composer import dist
from composer.core.data_spec import DataSpec
from composer.core.event import AFTER_DATALOADER, BATCH_START, BEFORE_TRAIN_BATCH
from composer.core.microbatches import as_microbatch, count_samples
from composer.core.types import Batch
from composer.core.user_counts import as_quantity, count_targets, entry_of
from composer.dist.grid_collectives import start_all_reduce
from composer.precision import widest_dtype
from composer.trainer.label_weights import has_counted_labels, sum_of_weights
from composer.trainer.run import Run
from composer.trainer.step_sync import BatchWeight, StepSync

__all__ = [
    "Counts",
    "LossWeights",
    "averages_over_tokens",
    "batch_weight",
    "count",
    "count_loaded",
    "reduce_loss_weights",
]

_LOSS = "loss_generating"
# The events between the loading of a batch and its first microbatch.
_BEFORE_MICROBATCHES: Final = (AFTER_DATALOADER, BATCH_START, BEFORE_TRAIN_BATCH)


class Counts(NamedTuple):
    """The number of samples or tokens that the loss of each microbatch of this rank averages over.

    Attributes:
        per_microbatch: Count of each microbatch; tensors stay on the device where they were computed.
        by_tokens: Whether tokens are counted, rather than samples.
        fallback: Counts to use if ``per_microbatch`` is 0 on all ranks, because the data does not count tokens.

    >>> Counts([3, 1], by_tokens=False).per_microbatch
    [3, 1]
    """

    per_microbatch: Sequence[int | float | Tensor]
    by_tokens: bool
    fallback: Sequence[int | float | Tensor] | None = None


class LossWeights:
    """Weight of each microbatch in the loss of the global batch: its count divided by the count of the global batch.

    With multiple ranks, the all-reduce of the counts overlaps the first forward pass: that of the step, or a further
    one if a rank may have edited its batch after it was loaded. Gradients are averaged over W ranks rather than summed,
    so the weights are multiplied by W.

    Args:
        run: The run.
        counts: Counts of the microbatches of this rank, all from one batch.

    >>> from types import SimpleNamespace
    >>> run = SimpleNamespace(step_sync=None, uneven_inputs=None)
    >>> weights = LossWeights(run, Counts([3, 1], by_tokens=False))
    >>> weights.weight(0), weights.weight(1)
    (0.75, 0.25)
    """

    def __init__(self, run: Run, counts: Counts) -> None:
        self._is_idle = run.uneven_inputs is not None and run.uneven_inputs.is_idle
        self._counts, self._fallback = counts.per_microbatch, counts.fallback
        self._on_device = any(isinstance(count, Tensor) for count in (*counts.per_microbatch, *(counts.fallback or ())))
        self._run, self._counted = run, counts
        self._work: Any = None
        self._is_pending = run.step_sync is not None
        self._world_size = 1
        self._total: int | float | Tensor = 0
        self._is_single = run.step_sync is None and len(counts.per_microbatch) == 1
        if run.step_sync is not None:
            self._world_size = dist.get_world_size()
            # A rank that runs out of memory before it has counted joins here, and not at the first weight.
            if run.step_sync.weights_late or run.auto_microbatch is not None:
                self._start_sum()
        elif counts.fallback is None:
            if not self._is_single:
                counted = counts.per_microbatch
                self._total = _sum(run, counted) if self._on_device else sum(cast("Sequence[float]", counted))
        elif self._on_device:
            self._set_total(*_sums(run, counts).unbind())
        else:
            self._set_total(
                sum(cast("Sequence[float]", counts.per_microbatch)), sum(cast("Sequence[float]", counts.fallback))
            )

    def _start_sum(self) -> None:
        """Start a further all-reduce of the counts of all ranks."""
        # The same shape and dtype on all ranks, including ranks that failed before counting.
        self._totals = _sums(self._run, self._counted) * int(not self._is_idle)
        self._work = start_all_reduce(self._totals)

    def _wait(self) -> None:
        """Wait for the totals over all ranks."""
        if self._work is None:
            counts = cast(StepSync, self._run.step_sync).counts()
            if not counts.weights_late:
                self._set_total(counts.weight, counts.fallback)
                return
            self._start_sum()  # since this step, something may edit the batch of a rank
        work, self._work = cast(Any, self._work), None
        work.wait()
        on_host = not self._on_device and self._totals.device.type == "cpu"
        self._set_total(*(self._totals.tolist() if on_host else self._totals.unbind()))

    def _set_total(self, total: float | Tensor, fallback: float | Tensor) -> None:
        """Set the total over all microbatches, or the total of the fallback counts if it is 0."""
        if isinstance(total, Tensor) and isinstance(fallback, Tensor):
            found = total != 0  # weights may be negative
            if self._fallback is not None:
                pairs = zip(self._counts, self._fallback, strict=True)
                self._counts = [torch.where(found, count, fallback) for count, fallback in pairs]
            self._total = torch.where(found, total, fallback)
        elif total or not fallback:
            self._total = total
        else:
            self._counts, self._total = self._fallback or self._counts, fallback

    def has_microbatch(self, index: int) -> bool:
        """Return whether this rank has a microbatch with this index; others are repetitions for uneven inputs.

        Args:
            index: Index from 0.
        """
        return index < len(self._counts) and not self._is_idle

    def count(self, index: int) -> int | float | Tensor:
        """Return the number of samples or tokens of a microbatch; 0 for a repetition.

        Args:
            index: Index from 0.
        """
        return self._counts[index] if self.has_microbatch(index) else 0

    def weight(self, index: int) -> float | Tensor:
        """Return the weight of a microbatch's loss; if the batch is a single microbatch, whether its count is positive.

        Args:
            index: Index from 0.
        """
        if self._is_pending:
            self._is_pending = False
            self._wait()
        count = self.count(index)
        if not self.has_microbatch(index):
            return 0.0
        if self._is_single:
            return count != 0 if isinstance(count, Tensor) else float(count != 0)
        if isinstance(count, Tensor):
            count = count.to(widest_dtype(count.device))  # a quotient of integers would be float32
        if isinstance(self._total, Tensor):
            # A batch without valid tokens has no loss to weight.
            return count * self._world_size / torch.where(self._total != 0, self._total, 1)
        return count * self._world_size / (self._total or 1)


def count(run: Run, microbatches: Sequence[Batch]) -> Counts:
    """Count the samples or tokens that the loss of each microbatch averages over.

    ``get_num_tokens_in_batch`` of the user is called only with ``accumulate_train_batch_on_tokens=True``: it measures
    training time, and may count other tokens than the loss averages over.

    Args:
        run: The run.
        microbatches: Microbatches of this rank.

    Raises:
        ValueError: Tokens must be counted, but neither the data nor the batch defines how.
    """
    spec: DataSpec = run.state.train_phase.loader
    if not averages_over_tokens(run, microbatches[0]):
        return Counts(_samples(run, microbatches), by_tokens=False)
    if run.options.weight_by_tokens and spec.__counts_tokens__:
        return _user_token_counts(run, microbatches)
    return Counts([_count_tokens(run.state.model, spec, microbatch) for microbatch in microbatches], by_tokens=True)


def count_loaded(run: Run, batch: Batch) -> Counts | None:
    """Count the samples or tokens that the loss of a batch averages over, when it is loaded.

    Args:
        run: The run; ``run.samples`` is that of the batch.
        batch: The batch, on the host.

    Returns:
        Numbers; or None if the batch must be counted in the step: its microbatches may count differently than the
        batch, something may edit it before, or its count is on a device.
    """
    state, spec = run.state, run.state.train_phase.loader
    if run.auto_microbatch is not None or spec.__splits_itself__ or _may_be_edited(run):
        return None
    counts_rows = spec.get_num_samples_in_batch is count_samples
    by_tokens = averages_over_tokens(run, batch)
    if counts_rows and not by_tokens:
        return Counts([run.samples], by_tokens=False)
    is_one = state.microbatch_size is None or state.microbatch_size >= run.samples
    if not is_one and not (counts_rows and by_tokens and _counts_targets_by_row(run)):
        return None
    found = count(run, [as_microbatch(batch)])
    values = (*found.per_microbatch, *(found.fallback or ()))
    if any(isinstance(value, Tensor) and not value.is_cpu for value in values):
        return None  # reading it would synchronize with the device
    counted, *fallback = (value.item() if isinstance(value, Tensor) else value for value in values)
    return Counts([counted], by_tokens=by_tokens, fallback=fallback or None)


def batch_weight(run: Run, *, has_batch: bool = True) -> BatchWeight | None:
    """Return what the all-reduce of the step sends for the loss weight of the current batch.

    Args:
        run: The run; ``run.batch_counts`` and ``run.samples`` are those of the batch.
        has_batch: Whether this rank has a batch (uneven inputs).

    Returns:
        None if the batch is counted in the step.
    """
    counts, size = run.batch_counts, run.state.microbatch_size
    if not has_batch:
        return None if _may_be_edited(run) else BatchWeight(0)
    if counts is None:
        return None
    microbatches = 1 if size is None or size >= run.samples else -(-run.samples // size)
    (counted,), (fallback,) = counts.per_microbatch, counts.fallback or (0,)
    return BatchWeight(cast(float, counted), cast(float, fallback), microbatches)


def averages_over_tokens(run: Run, batch: Batch) -> bool:
    """Return whether the loss of a batch averages over tokens, rather than samples.

    Args:
        run: The run.
        batch: The batch.
    """
    by_tokens = run.options.weight_by_tokens
    return has_counted_labels(batch) if by_tokens is None else by_tokens


def reduce_loss_weights(run: Run, counts: Counts | None) -> LossWeights:
    """All-reduce the counts of all ranks into loss weights; set ``run.microbatches_left``.

    If microbatches have collectives (FSDP, DDP with ``multi_auto_sync``), every rank runs as many microbatches as the
    rank with the most; those of dummy batches (uneven inputs) do not count.

    Args:
        run: The run; ``state.batch`` is the batch.
        counts: Counts of this rank; None if it ran out of memory before counting, so that it contributes 0.
    """
    known = Counts([], averages_over_tokens(run, run.state.batch)) if counts is None else counts
    weights, num_microbatches = LossWeights(run, known), len(known.per_microbatch)
    if run.uneven_inputs is not None and run.uneven_inputs.is_idle:
        num_microbatches = min(num_microbatches, 1)  # a resumed run may have another dummy batch
    is_synced = run.step_sync is not None and run.strategy.has_collectives_per_microbatch
    may_differ = run.state.microbatch_size is not None or run.state.train_phase.loader.__splits_itself__
    if is_synced and may_differ:
        same = cast(StepSync, run.step_sync).counts().microbatches
        num_microbatches = dist.largest(num_microbatches) if same is None else same
    run.microbatches_left = num_microbatches
    return weights


def _sums(run: Run, counts: Counts) -> Tensor:
    """Return the sums of the counts and of the fallback counts of this rank, shape (2,).

    The tensor is on the device, to avoid a synchronization, unless counting reads only shapes. All ranks must choose
    the same device, including a rank that counted nothing.
    """
    if not counts.by_tokens and run.state.train_phase.loader.get_num_samples_in_batch is count_samples:
        # The same dtype on all ranks, although some may count fractions of samples.
        return torch.tensor([sum(cast("Sequence[float]", counts.per_microbatch)), 0], dtype=torch.float64)
    return torch.stack([_sum(run, counts.per_microbatch), _sum(run, counts.fallback or ())])


def _sum(run: Run, counted: Sequence[int | float | Tensor]) -> Tensor:
    """Return the sum of counts as a tensor on the device."""
    device = run.state.device.torch_device
    wide = widest_dtype(device)
    total = torch.full((), sum(count for count in counted if not isinstance(count, Tensor)), dtype=wide, device=device)
    tensors = [count.to(device, wide) for count in counted if isinstance(count, Tensor)]
    return total + torch.stack(tensors).sum() if tensors else total


def _samples(run: Run, microbatches: Sequence[Batch]) -> list[int | float | Tensor]:
    """Return the number of samples of each microbatch; with sequence packing it may be fractional."""
    count_batch = run.state.train_phase.loader.get_num_samples_in_batch
    if count_batch is count_samples:
        return [count_batch(microbatch) for microbatch in microbatches]
    name = "get_num_samples_in_batch"
    found = _call_user_count(run, name, count_batch, microbatches, run.samples)
    return [
        # A tensor on an accelerator stays there: reading it would synchronize.
        count if _is_scalar(count) and not count.is_cpu and count.dtype != torch.bool else as_quantity(name, count)
        for count in found
    ]


def _user_token_counts(run: Run, microbatches: Sequence[Batch]) -> Counts:
    """Return the number of tokens of each microbatch according to the user's ``get_num_tokens_in_batch``.

    A plain 0 for all microbatches means that tokens are not counted; 0 under ``"loss_generating"`` that none is valid.
    """
    name, spec = "get_num_tokens_in_batch", run.state.train_phase.loader
    found = _call_user_count(run, name, lambda batch: spec.__tokens__(batch, _LOSS), microbatches, run.user_token_count)
    counted = [entry_of(count, _LOSS) for count in found]
    counted = [count if _is_scalar(count) else as_quantity(name, count) for count in counted]
    is_tracked = any(isinstance(count, Mapping) for count in found)
    if is_tracked or any(count for count in counted if not isinstance(count, Tensor)):
        return Counts(counted, by_tokens=True)
    return Counts(counted, by_tokens=True, fallback=_samples(run, microbatches))


def _call_user_count(
    run: Run, name: str, count: Callable[[Batch], Any], microbatches: Sequence[Batch], before: Any
) -> list[Any]:
    """Return a user function's count of each microbatch, or its earlier result if algorithms removed what it reads."""
    try:
        return [count(microbatch) for microbatch in microbatches]
    except (LookupError, AttributeError) as error:
        if len(microbatches) == 1 and not run.state.train_phase.loader.__splits_itself__:
            return [before]
        raise ValueError(
            f"{name} raised {error!r} for a microbatch. It is called for each microbatch to compute its loss weight, "
            f"after split_batch and after the algorithms that edit batches at AFTER_DATALOADER: these must keep the "
            f"entries it reads. Otherwise use device_train_microbatch_size=None."
        ) from error


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0


def _count_tokens(model: Any, spec: DataSpec, microbatch: Batch) -> int | Tensor:
    """Return the number of tokens that the loss averages over, by the model's ``__count_targets__`` if it has one.

    A loss that weighs its tokens averages over the sum of the weights.
    """
    count = model.__count_targets__(microbatch) if hasattr(model, "__count_targets__") else None
    count = sum_of_weights(microbatch) if count is None else count
    count = count_targets(microbatch) if count is None else count
    if count is not None:
        return count
    count = spec.get_num_tokens_in_batch(microbatch)
    if not isinstance(count, Tensor) and not count:
        # A count of 0 would give every microbatch weight 0, and nothing would be trained.
        raise ValueError(
            "accumulate_train_batch_on_tokens=True, but the number of tokens in a batch is unknown. Use "
            "DataSpec(..., get_num_tokens_in_batch=...), batches with 'labels' or 'input_ids', or "
            "accumulate_train_batch_on_tokens=False."
        )
    return count


def _may_be_edited(run: Run) -> bool:
    """Return whether anything on this rank may edit a batch between its loading and its first microbatch."""
    return any(run.engine.may_edit(event) for event in _BEFORE_MICROBATCHES)


def _counts_targets_by_row(run: Run) -> bool:
    """Return whether the targets of a batch are those of its rows, so that microbatches have as many together."""
    spec, model = run.state.train_phase.loader, run.state.model
    if run.options.weight_by_tokens and spec.__counts_tokens__:
        return False
    by_model = getattr(type(model), "__count_targets__", None)
    return by_model is None or by_model.__module__.startswith("composer.")
