"""Per-step all-reduce between ranks, overlapped with computation: counts, loss weights, stop requests and signals.

One vector of a few numbers is summed in each step. Losses are all-reduced as well if anything may read them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from composer import dist
from composer.core.loss_names import LossNames
from composer.dist.grid_collectives import PendingWork, start_all_reduce
from composer.dist.hang_report import InCollective

__all__ = ["BatchWeight", "StepCounts", "StepSync"]

# A signal s is sent as 2 ** (15 s): the sum over fewer than 2 ** 15 ranks has the exponent of the largest. Signals are
# below 65, and the largest float64 is about 2 ** 1024.
_SIGNAL_BITS: Final = 15


@dataclass(frozen=True)
class BatchWeight:
    """What the loss of a batch averages over, counted when it was loaded; nothing can edit it before it is trained.

    Attributes:
        count: Number of samples or tokens.
        fallback: Count to use if ``count`` is 0 on all ranks, because the data does not count tokens.
        microbatches: Number of microbatches; 0 if unknown.

    >>> BatchWeight(8).microbatches
    0
    """

    count: float
    fallback: float = 0.0
    microbatches: int = 0


class StepCounts:
    """Counts and flags of one step, summed over all ranks.

    Args:
        sums: float64 of shape (14,), the sum over all ranks of: samples; tokens; microseconds of the previous batch; 2
            to the power of 15 times the signal number; whether the rank requests to stop, has a batch, computes metrics
            after the batch, may read the losses after it, counts its loss weight only in the step, and had a new loss
            in the previous step; the count and the fallback count of :class:`BatchWeight`; the number of microbatches,
            and its square.
        num_ranks: World size.
        ranks_per_batch: Number of ranks that get the same batch, all of which count it.

    >>> first = [8, 0, 2e6, 0, 1, 1, 0, 1, 0, 0, 8, 0, 2, 4]
    >>> second = [4, 0, 1e6, 2.0 ** (15 * 15), 0, 1, 0, 0, 0, 0, 4, 0, 1, 1]
    >>> counts = StepCounts(torch.tensor([first, second], dtype=torch.float64).sum(0), num_ranks=2)
    >>> counts.samples, counts.tokens, counts.seconds, counts.signum, counts.stop
    (12, 0, 1.5, 15, True)
    >>> counts.num_with_batch, counts.metrics_due, counts.losses_read, counts.weight, counts.microbatches
    (2, False, True, 12.0, None)
    """

    def __init__(self, sums: Tensor, num_ranks: int, ranks_per_batch: int = 1) -> None:
        samples, tokens, microseconds, signals, stop, batches, metrics, read, late, new, *weights = sums.tolist()
        self.samples = int(samples) // ranks_per_batch
        self.tokens = int(tokens) // ranks_per_batch
        # The mean, so that all ranks count the same time and agree on which intervals are due.
        self.seconds: float = microseconds / num_ranks / 1e6
        # Any one of several signals, the same on all ranks: the largest.
        self.signum = (math.frexp(signals)[1] - 1) // _SIGNAL_BITS if signals else None
        self.stop = stop > 0
        self.num_ranks, self.num_with_batch = num_ranks, int(batches)
        self.metrics_due = metrics > 0
        self.losses_read = read > 0
        self.weights_late = late > 0
        self.has_new_loss = new > 0
        self.weight: float = weights[0]
        self.fallback: float = weights[1]
        # sum(n)^2 = N sum(n^2) only if all N numbers are the same (Cauchy-Schwarz).
        total, squares = weights[2], weights[3]
        same = total > 0 and total * total == batches * squares
        self.microbatches = int(total / batches) if same else None


class _Sent:
    """The losses of a batch as they were sent, since algorithms and callbacks may edit the mapping afterwards."""

    def __init__(self, losses: dict[str, Tensor]) -> None:
        self.mapping, self.values = losses, dict(losses)


class StepSync:
    """All-reduces counts, loss weights and losses of each step over all ranks, asynchronously.

    The all-reduce of the counts runs while the batch computes, in a CPU group, so it does not synchronize with the
    device. It also has the loss weights, if no rank may edit its batch after it was loaded. That of the losses runs
    while the optimizers step; where nothing on any rank may read them, it is put off until the end of training.

    Args:
        ranks_per_batch: Number of ranks that get the same batch.
        losses: The losses to average; those found are added. None for a new run; checkpoints contain them, so that a
            resumed run averages the same losses.

    Attributes:
        last: The counts of the last completed all-reduce, or None.
        weights_late: Whether any rank counted the loss weight of its previous batch only in the step, because something
            may edit its batches: then all ranks all-reduce the weights of this step at its begin.

    >>> StepSync().last is None
    True
    """

    def __init__(self, ranks_per_batch: int = 1, losses: LossNames | None = None) -> None:
        self.last: StepCounts | None = None
        self.ranks_per_batch = ranks_per_batch
        self.weights_late = True
        self._size = dist.get_world_size()
        self._sums: Tensor | None = None
        self._counts_work: PendingWork | None = None
        self._losses_work: tuple[Any, Tensor, _Sent] | None = None
        self._unread: _Sent | None = None
        self._losses = LossNames() if losses is None else losses

    def send_counts(
        self,
        samples: int,
        tokens: int,
        seconds: float,
        signum: int | None,
        stop: bool = False,
        *,
        has_batch: bool = True,
        metrics_due: bool = False,
        reads_losses: bool = True,
        weight: BatchWeight | None = None,
    ) -> None:
        """Start the all-reduce of the counts of a batch.

        Args:
            samples: Number of samples; 0 without a batch.
            tokens: Number of tokens.
            seconds: Duration of the previous batch.
            signum: The signal that this rank received, or None.
            stop: Whether this rank requests to end training.
            has_batch: Whether this rank has a batch, rather than exhausted data (uneven inputs).
            metrics_due: Whether a logger of this rank reads the metrics after the batch.
            reads_losses: Whether anything on this rank may read the losses after the batch.
            weight: What the loss averages over; None if it is counted only in the step.
        """
        signals = 0.0 if signum is None else 2.0 ** (_SIGNAL_BITS * signum)
        flags = (stop, has_batch, metrics_due, reads_losses, weight is None, bool(self._losses.new))
        known = (0.0, 0.0, 0, 0)
        if weight is not None and has_batch:
            # An unknown number of microbatches equals no number of other ranks.
            squared = weight.microbatches**2 or 1
            known = (weight.count, weight.fallback, weight.microbatches, squared)
        values = (samples, tokens, round(seconds * 1e6), signals, *flags, *known)
        # float64 is exact for integers below 2 ** 53.
        self._sums = torch.tensor(values, dtype=torch.float64)
        self._counts_work = start_all_reduce(self._sums)

    def counts(self) -> StepCounts:
        """Wait for the all-reduce of the counts, and return the result."""
        if self._counts_work is not None:
            assert self._sums is not None
            with InCollective():
                self._counts_work.wait()
            self._counts_work = None
            self.last = StepCounts(self._sums, self._size, self.ranks_per_batch)
        assert self.last is not None
        return self.last

    def end_step(self) -> StepCounts:
        """Return the counts of the step, after which the next one begins."""
        counts = self.counts()
        self.weights_late = counts.weights_late
        return counts

    def discard(self) -> None:
        """Wait for the all-reduces of a step that an exception ended, and drop their results."""
        if self._counts_work is not None:
            self.counts()
        if self._losses_work is not None:
            (work, _, _), self._losses_work = self._losses_work, None
            work.wait()
        self._unread = None
        # Some ranks may have completed the step, and others not.
        self.weights_late = True

    def send_losses(self, losses: dict[str, Tensor]) -> None:
        """Start the all-reduce that averages the losses of a batch over the ranks.

        A loss that is missing on a rank counts as 0; where all ranks have had it, it is taken to be missing on all of
        them, and left out of the step. One that only some ranks have had is 0 also in a step in which none has it,
        since to know that the device would have to be read in each step. A loss that is new on a rank is left out of
        this step, and averaged from the next step on.

        Args:
            losses: Scalars by name.
        """
        self._send(_Sent(losses))

    def _send(self, sent: _Sent) -> None:
        """Start the all-reduce of :meth:`send_losses`."""
        losses = sent.values
        found = self._losses
        if not found.is_agreed or (self.last is not None and self.last.has_new_loss):
            self._agree_on_names(losses)
        for name, loss in losses.items():
            if name not in found.known or torch.promote_types(loss.dtype, found.dtype) != found.dtype:
                found.new[name] = loss.dtype
        like = next(iter(losses.values()))
        ordered = [losses[name] if name in losses else like.new_zeros(()) for name in found.known]
        stacked = torch.stack([loss.to(found.dtype) for loss in ordered]).div_(self._size)
        self._losses_work = start_all_reduce(stacked), stacked, sent
        self._unread = None

    def _agree_on_names(self, losses: dict[str, Tensor]) -> None:
        """All-gather the names and dtypes of the losses, which may differ between ranks, as with several tasks."""
        agreed = self._losses
        own = agreed.new | {name: one.dtype for name, one in losses.items()}
        found: list[dict[str, torch.dtype]] = dist.all_gather_object(own)
        for name in dict.fromkeys(name for each in found for name in each):
            agreed.known.setdefault(name, not all(name in each for each in found))
        dtypes = [dtype for each in found for dtype in each.values()]
        agreed.dtype = functools.reduce(torch.promote_types, dtypes, agreed.dtype)
        agreed.new, agreed.is_agreed = {}, True

    def keep_losses(self, losses: dict[str, Tensor]) -> None:
        """Keep the losses of a batch that nothing reads, until the next ones or :meth:`averages_of_unread`.

        Args:
            losses: As for :meth:`send_losses`.
        """
        self._unread = _Sent(losses)

    def averages(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the averages of the losses passed to :meth:`send_losses`; if none are pending, the argument unchanged.

        Args:
            losses: Losses of this rank, in the mapping that was sent or in another one. An entry that was added or
                replaced after that, as by a callback at ``AFTER_TRAIN_BATCH``, stays as it is.
        """
        if self._losses_work is None:
            return losses
        (work, stacked, sent), self._losses_work = self._losses_work, None
        work.wait()
        is_sent = losses is sent.mapping  # otherwise it has all names that its author wants
        averages = zip(self._losses.known.items(), stacked.unbind(), strict=True)
        found = {name: value for (name, of_some), value in averages if name in losses or (of_some and is_sent)}
        found.update({name: value for name, value in losses.items() if value is not sent.values.get(name)})
        return found

    def averages_of_unread(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the averages of losses passed to :meth:`keep_losses`, else the argument; all ranks must call this.

        Args:
            losses: Losses of this rank.
        """
        if self._unread is None:
            return losses
        self._send(self._unread)
        return self.averages(losses)
