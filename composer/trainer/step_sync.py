"""Per-step all-reduces between ranks, overlapped with computation: counts, stop requests, signals and losses."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer import dist
from composer.dist.hang_report import InCollective
from composer.dist.simulation import sum_rows

__all__ = ["StepCounts", "StepSync"]


class StepCounts:
    """Counts and flags of one step, reduced over all ranks.

    Args:
        table: int64 of shape (ranks, 7): samples, tokens, microseconds of the previous batch, signal number, and flags:
            the rank requests to stop, has a batch, computes metrics after the batch.
        ranks_per_batch: Number of ranks that get the same batch, all of which count it.

    >>> counts = StepCounts(torch.tensor([[8, 0, 2_000_000, 0, 1, 1, 0], [4, 0, 1_000_000, 15, 0, 1, 0]]))
    >>> (
    ...     counts.samples,
    ...     counts.tokens,
    ...     counts.seconds,
    ...     counts.signum,
    ...     counts.stop,
    ...     counts.has_batch,
    ...     counts.metrics_due,
    ... )
    (12, 0, 1.5, 15, True, [True, True], False)
    """

    def __init__(self, table: Tensor, ranks_per_batch: int = 1) -> None:
        # One sum per step; rarer values are read from the table only if the sum shows that they are set.
        samples, tokens, microseconds, signals, stop, batches, metrics_due = table.sum(0).tolist()
        self.samples: int = samples // ranks_per_batch
        self.tokens: int = tokens // ranks_per_batch
        # The mean, so that all ranks count the same time and agree on which intervals are due.
        self.seconds = microseconds / len(table) / 1e6
        self.signum = int(table[:, 3].max()) if signals else None
        self.stop = stop > 0
        have_all = batches == len(table)
        self.has_batch = [True] * len(table) if have_all else [has > 0 for has in table[:, 5].tolist()]
        self.metrics_due = metrics_due > 0


class StepSync:
    """All-reduces counts and losses of each step over all ranks, asynchronously.

    The all-reduce of the counts runs while the batch computes, in a CPU group, so it does not synchronize with the
    device. That of the losses runs while the optimizers step.

    Args:
        ranks_per_batch: Number of ranks that get the same batch.

    Attributes:
        last: The counts of the last completed all-reduce, or None.

    >>> StepSync().last is None
    True
    """

    def __init__(self, ranks_per_batch: int = 1) -> None:
        self.last: StepCounts | None = None
        self.ranks_per_batch = ranks_per_batch
        self._size = dist.get_world_size()
        self._table = torch.zeros(self._size, 7, dtype=torch.int64)
        self._row = self._table[dist.get_global_rank()]
        self._counts_work: Any = None
        self._losses_work: tuple[Any, Tensor, dict[str, Tensor]] | None = None

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
        """
        self._table.zero_()
        values = (samples, tokens, round(seconds * 1e6), signum or 0, int(stop), int(has_batch), int(metrics_due))
        self._row.copy_(torch.tensor(values))
        self._counts_work = sum_rows(self._table)

    def counts(self) -> StepCounts:
        """Wait for the all-reduce of the counts, and return the result."""
        if self._counts_work is not None:
            with InCollective():
                self._counts_work.wait()
            self._counts_work = None
            self.last = StepCounts(self._table, self.ranks_per_batch)
        assert self.last is not None
        return self.last

    def discard(self) -> None:
        """Wait for the all-reduces of a step that an exception ended, and drop their results.

        The buffer of a pending all-reduce cannot be reused for the next batch.
        """
        if self._counts_work is not None:
            self.counts()
        if self._losses_work is not None:
            (work, _, _), self._losses_work = self._losses_work, None
            work.wait()

    def send_losses(self, losses: dict[str, Tensor]) -> None:
        """Start the all-reduce that averages the losses of a batch over the ranks.

        Args:
            losses: Scalars by name; all ranks have the same names.
        """
        dtype = functools.reduce(torch.promote_types, [loss.dtype for loss in losses.values()], torch.float32)
        stacked = torch.stack([loss.to(dtype) for loss in losses.values()]).div_(self._size)
        self._losses_work = torch_dist.all_reduce(stacked, async_op=True), stacked, losses

    def averages(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the averages of the losses passed to :meth:`send_losses`; if none are pending, the argument unchanged.

        Args:
            losses: Losses of this rank. If an algorithm has replaced the mapping that was sent, it is returned as is.
        """
        if self._losses_work is None:
            return losses
        (work, stacked, sent), self._losses_work = self._losses_work, None
        work.wait()
        return dict(zip(sent, stacked.unbind(), strict=True)) if losses is sent else losses
