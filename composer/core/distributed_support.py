"""What an algorithm says of runs on several processes."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Sharding"]


class Sharding(StrEnum):
    """How an algorithm gets on with data, and weights, that are divided among processes.

    - ``SAFE``: training is what it would be in one process.
    - ``PER_RANK``: it works; each process draws or decides for its own part of the batch, so that training is as good,
      yet not number for number that of one process.
    - ``WHOLE_WEIGHTS``: it needs each process to hold whole weights, as copies of the model do (data parallelism), and
      is refused where weights are divided (fully sharded or tensor parallelism).

    >>> Sharding("per_rank").supports_sharded_weights, Sharding.WHOLE_WEIGHTS.supports_sharded_weights
    (True, False)
    """

    SAFE = "safe"
    PER_RANK = "per_rank"
    WHOLE_WEIGHTS = "whole_weights"

    @property
    def supports_sharded_weights(self) -> bool:
        """Whether the weights may be divided among processes."""
        return self is not Sharding.WHOLE_WEIGHTS
