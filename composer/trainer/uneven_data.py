"""Uneven inputs: ranks whose data ends early run dummy batches with weight 0, so that collectives do not hang."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from composer import dist, rng
from composer.core.types import Batch
from composer.parallel.buffer_sync import STATISTICS
from composer.trainer.step_sync import StepCounts, StepSync

if TYPE_CHECKING:
    from composer.core.replicas import Replicas

__all__ = ["END", "UnevenInputs"]

END: Any = object()
"""Sentinel for "no batch"."""


class UnevenInputs:
    """Gives a rank whose data has ended a dummy batch with weight 0 while other ranks still have batches.

    Models and algorithms may run collectives in any step, so all ranks must run the same number of steps. A rank with a
    batch does not wait. A rank without one waits for the counts of the step, and if another rank has a batch, runs its
    last batch again. In the first step, when it may never have had a batch, all ranks wait, and one that has a batch
    broadcasts it. A run that resumes therefore has other dummy batches than one that was not interrupted, so that
    nothing may depend on what they contain or on their size: what they change is undone, see :meth:`undone`.

    Args:
        step_sync: Sends the counts of each step.

    Attributes:
        is_idle: Whether this rank has no batch in this step.

    >>> uneven_inputs = UnevenInputs(StepSync())
    >>> uneven_inputs.set_batch([1, 2])
    >>> uneven_inputs.is_idle
    False
    """

    def __init__(self, step_sync: StepSync) -> None:
        self.is_idle = False
        self._step_sync = step_sync
        self._last_batch: Any = END
        self._all_have_batch = False
        self._random_state: rng.RNGSnapshot | None = None

    def set_batch(self, batch: Batch) -> None:
        """Set the batch that the loader of this rank yielded."""
        self._last_batch, self.is_idle = batch, False

    def is_idle_replica(self, replicas: Replicas) -> bool:
        """Return whether no rank of this rank's replica has a batch in this step, so that it must not step.

        Args:
            replicas: The replicas of the run; all ranks of a replica call this.
        """
        counts = self._step_sync.counts()
        if replicas.group is None or counts.num_with_batch == counts.num_ranks:
            return self.is_idle
        return not dist.largest(int(not self.is_idle), replicas.group)

    def join_first_step(self) -> None:
        """In the first step, broadcast a batch to ranks that have none; call after the counts were sent."""
        if not self._all_have_batch:
            self._broadcast_first_batch(self._step_sync.counts())

    def dummy_batch(self, send_counts: Callable[[], object]) -> Batch:
        """Return a dummy batch for a rank without one, or ``END`` if no rank has a batch.

        Args:
            send_counts: Starts the all-reduce of the counts of a rank without a batch.
        """
        send_counts()
        counts = self._step_sync.counts()
        if not counts.num_with_batch:
            return END
        if not self._all_have_batch:
            self._broadcast_first_batch(counts)
        self.is_idle = True
        self._random_state = rng.RNGSnapshot()  # before transforms and algorithms draw from the generators
        return self._last_batch

    @contextmanager
    def undone(self, model: nn.Module) -> Generator[None]:
        """On exit, undo what a dummy batch has changed: running statistics, and random numbers since it was returned.

        The statistics of ``SyncBatchNorm`` stay: they are the same on all ranks.

        Args:
            model: The model, whose gradients are computed in the body.

        >>> layer, uneven_inputs = nn.BatchNorm1d(2), UnevenInputs(StepSync())
        >>> with uneven_inputs.undone(layer):
        ...     _ = layer(torch.ones(4, 2))
        >>> layer.running_mean, layer.num_batches_tracked
        (tensor([0., 0.]), tensor(0))
        """
        # Copied back rather than disabled: a compiled model keeps its graph.
        before = [(one, one.clone()) for one in _statistics(model)]
        yield
        for statistic, value in before:
            statistic.data.copy_(value)  # not a new version: an optimizer may still need the graph
        if self._random_state is not None:
            self._random_state.restore()

    def _broadcast_first_batch(self, counts: StepCounts) -> None:
        """Broadcast the batch of one rank to the ranks that never had one."""
        self._all_have_batch = True
        if counts.num_with_batch == counts.num_ranks:
            return
        rank, has_batch = dist.get_global_rank(), self._last_batch is not END
        source = -dist.largest(-rank if has_batch else -counts.num_ranks)
        box = [self._last_batch if rank == source else None]
        dist.broadcast_object_list(box, source)
        if self._last_batch is END:
            self._last_batch = box[0]


def _statistics(model: nn.Module) -> list[Tensor]:
    """Return the running statistics that each rank computes from its own batches."""
    modules = (module for module in model.modules() if not isinstance(module, nn.SyncBatchNorm))
    buffers = (buffer for module in modules for buffer in module.named_buffers(recurse=False))
    return [buffer for name, buffer in buffers if name in STATISTICS]
