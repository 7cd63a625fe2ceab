"""Sharding: how an algorithm supports distributed training, with sharded data and sharded weights."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Sharding"]


class Sharding(StrEnum):
    """How an algorithm supports data and weights that are sharded among ranks.

    - ``SAFE``: training gives the same results as in a single process.
    - ``PER_RANK``: supported; each rank samples or decides for its data shard, so that training is equivalent, but not
      bitwise equal to a single process.
    - ``FULL_WEIGHTS``: each rank must hold the full, unsharded weights, as the replicas of data parallelism (DDP) do;
      an error is raised if weights are sharded (FSDP, tensor parallelism).

    >>> Sharding("per_rank").supports_sharded_weights, Sharding.FULL_WEIGHTS.supports_sharded_weights
    (True, False)
    """

    SAFE = "safe"
    PER_RANK = "per_rank"
    FULL_WEIGHTS = "full_weights"

    @property
    def supports_sharded_weights(self) -> bool:
        """Whether the weights may be sharded among ranks."""
        return self is not Sharding.FULL_WEIGHTS
