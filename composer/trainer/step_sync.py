"""What the processes of a run tell each other in every step, while the step computes."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer import dist
from composer.dist.hang_report import InCollective

__all__ = ["StepSync", "Told"]


class Told:
    """What each process said of a batch.

    Args:
        table: int64 of shape (processes, 7): samples, tokens, microseconds of the batch before, signal, and 1 where a
            process wants to stop, has a batch, looks at the metrics.
        copies: How many processes each batch goes to, all of which count it.

    >>> told = Told(torch.tensor([[8, 0, 2_000_000, 0, 1, 1, 0], [4, 0, 1_000_000, 15, 0, 1, 0]]))
    >>> told.samples, told.tokens, told.seconds, told.signum, told.stop, told.has_batch, told.looks
    (12, 0, 1.5, 15, True, [True, True], False)
    """

    def __init__(self, table: Tensor, copies: int = 1) -> None:
        # In every step, so that what only some steps ask is not looked for in the others.
        samples, tokens, microseconds, signals, stop, batches, looks = table.sum(0).tolist()
        self.samples: int = samples // copies
        self.tokens: int = tokens // copies
        # The mean, so that all processes count the same time and agree on what is due by it.
        self.seconds = microseconds / len(table) / 1e6
        self.signum = int(table[:, 3].max()) if signals else None
        self.stop = stop > 0
        have_all = batches == len(table)
        self.has_batch = [True] * len(table) if have_all else [has > 0 for has in table[:, 5].tolist()]
        self.looks = looks > 0


class StepSync:
    """Sends counts and losses to all processes and takes theirs, beside the computation.

    Counts are on their way from when a batch is there until it is done, by a group on the CPU: nobody waits for a
    device. Losses are on theirs while the optimizers step.

    Args:
        copies: How many processes each batch goes to.

    Attributes:
        last: What was told of the last batch that all have told of, or None.

    >>> StepSync().last is None
    True
    """

    def __init__(self, copies: int = 1) -> None:
        self.last: Told | None = None
        self.copies = copies
        self._size = dist.get_world_size()
        self._all = torch.zeros(self._size, 7, dtype=torch.int64)
        self._mine = self._all[dist.get_global_rank()]
        self._counting: Any = None
        self._averaging: tuple[Any, Tensor, dict[str, Tensor]] | None = None

    def send_counts(
        self,
        samples: int,
        tokens: int,
        seconds: float,
        signum: int | None,
        stop: bool = False,
        *,
        has_batch: bool = True,
        looks: bool = False,
    ) -> None:
        """Tell what this process has of a batch.

        Args:
            samples: Number of samples; 0 where there is no batch.
            tokens: Number of tokens.
            seconds: How long the batch before took.
            signum: The signal that asks this process to stop, if one does.
            stop: Whether this process wants training to end.
            has_batch: Whether there is a batch.
            looks: Whether this process will look at the metrics after the batch.
        """
        self._all.zero_()
        told = (samples, tokens, round(seconds * 1e6), signum or 0, int(stop), int(has_batch), int(looks))
        self._mine.copy_(torch.tensor(told))
        self._counting = torch_dist.all_reduce(self._all, async_op=True)

    def counts(self) -> Told:
        """Return what all have of the batch; waits for the others, who have told it before they computed."""
        if self._counting is not None:
            with InCollective():
                self._counting.wait()
            self._counting = None
            self.last = Told(self._all, self.copies)
        assert self.last is not None
        return self.last

    def discard(self) -> None:
        """Wait for the all-reduces of a step that an exception ended, and drop their results.

        A buffer that one of them still writes to cannot hold the counts of the next batch.
        """
        if self._counting is not None:
            self.counts()
        if self._averaging is not None:
            (work, _, _), self._averaging = self._averaging, None
            work.wait()

    def send_losses(self, losses: dict[str, Tensor]) -> None:
        """Begin to average the losses of a batch over the processes.

        Args:
            losses: Scalars by name, the same names everywhere.
        """
        dtype = functools.reduce(torch.promote_types, [loss.dtype for loss in losses.values()], torch.float32)
        stacked = torch.stack([loss.to(dtype) for loss in losses.values()]).div_(self._size)
        self._averaging = torch_dist.all_reduce(stacked, async_op=True), stacked, losses

    def averages(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the averages over the processes of the losses that were sent, once; others as they are.

        Args:
            losses: Those of this process; what a method has put in the place of those that were sent is left alone.
        """
        if self._averaging is None:
            return losses
        (work, stacked, sent), self._averaging = self._averaging, None
        work.wait()
        return dict(zip(sent, stacked.unbind(), strict=True)) if losses is sent else losses
