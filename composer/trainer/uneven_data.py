"""Uneven inputs: ranks whose data ends early run dummy batches with weight 0, so that collectives do not hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from composer import dist
from composer.core.types import Batch
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
    broadcasts it.

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
        return self._last_batch

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
