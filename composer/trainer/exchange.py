"""What the processes of a run tell each other in every step, while the step computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer import dist

__all__ = ["Exchange", "Told"]


class Told:
    """What each process said of a batch.

    Args:
        table: int64 of shape (processes, 4): samples, tokens, microseconds of the batch before, signal.

    >>> told = Told(torch.tensor([[8, 0, 2_000_000, 0], [4, 0, 1_000_000, 15]]))
    >>> told.samples, told.tokens, told.seconds, told.signum
    (12, 0, 1.5, 15)
    """

    def __init__(self, table: Tensor) -> None:
        samples, tokens, _, _ = table.sum(0).tolist()
        self.samples: int = samples
        self.tokens: int = tokens
        # The mean, so that all processes count the same time and agree on what is due by it.
        self.seconds = float(table[:, 2].sum()) / len(table) / 1e6
        self.signum = int(table[:, 3].max()) or None


class Exchange:
    """Sends counts and losses to all processes and takes theirs, beside the computation.

    Counts are on their way from when a batch is there until it is done, by a group on the CPU: nobody waits for a
    device. Losses are on theirs while the optimizers step.
    """

    def __init__(self) -> None:
        self.last: Told | None = None
        self._size = dist.get_world_size()
        self._all = torch.zeros(self._size, 4, dtype=torch.int64)
        self._counting: Any = None
        self._averaging: tuple[Any, Tensor, list[str]] | None = None

    def send_counts(self, samples: int, tokens: int, seconds: float, signum: int | None) -> None:
        """Tell what this process has of a batch.

        Args:
            samples: Number of samples; 0 where there is no batch.
            tokens: Number of tokens.
            seconds: How long the batch before took.
            signum: The signal that asks this process to stop, if one does.
        """
        self._all.zero_()
        self._all[dist.get_global_rank()] = torch.tensor([samples, tokens, round(seconds * 1e6), signum or 0])
        self._counting = torch_dist.all_reduce(self._all, async_op=True)

    def counts(self) -> Told:
        """Return what all have of the batch; waits for the others, who have told it before they computed."""
        if self._counting is not None:
            self._counting.wait()
            self._counting = None
            self.last = Told(self._all)
        assert self.last is not None
        return self.last

    def send_losses(self, losses: Mapping[str, Tensor]) -> None:
        """Begin to average the losses of a batch over the processes.

        Args:
            losses: Scalars by name, the same names everywhere.
        """
        stacked = torch.stack([loss.float() for loss in losses.values()]).div_(self._size)
        self._averaging = torch_dist.all_reduce(stacked, async_op=True), stacked, list(losses)

    def losses(self) -> dict[str, Tensor] | None:
        """Return the averages of the losses that were sent, once; None where none were."""
        if self._averaging is None:
            return None
        (work, stacked, names), self._averaging = self._averaging, None
        work.wait()
        return dict(zip(names, stacked.unbind(), strict=True))
