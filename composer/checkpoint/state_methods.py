"""Implement ``State.state_dict`` and ``State.load_state_dict`` in the checkpoint format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from composer.checkpoint.load import restore
from composer.checkpoint.rank_values import gathered_on_every_rank
from composer.checkpoint.save import collect
from composer.core.algorithm_order import AlgorithmPass
from composer.core.logger import Logger
from composer.core.state import State

__all__ = ["CheckpointSerializer", "register"]


class CheckpointSerializer:
    """Collects and restores a state as checkpoints do.

    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> saved = CheckpointSerializer().collect(state)
    >>> sorted(saved["model"])
    ['bias', 'weight']
    """

    def collect(self, state: State) -> dict[str, Any]:
        """Return the entry ``"state"`` of a checkpoint.

        Args:
            state: The state of the run.
        """
        with gathered_on_every_rank():  # each rank may save the result, and load it
            return collect(state)["state"]

    def restore(
        self,
        state: State,
        logger: Logger,
        saved: dict[str, Any],
        *,
        strict: bool,
        exclude_algorithms: Sequence[str] | None,
        algorithm_passes: Sequence[AlgorithmPass] | None,
    ) -> None:
        """Load what :meth:`collect` returned.

        Args:
            state: The state of the run.
            logger: Passed to recreated algorithms.
            saved: The entry ``"state"`` of a checkpoint; edited.
            strict: Whether the names of the weights must match exactly.
            exclude_algorithms: Names of algorithms that are not recreated.
            algorithm_passes: Reorder the algorithms.
        """
        restore(
            state,
            logger,
            {"state": saved},
            strict=strict,
            exclude_algorithms=exclude_algorithms,
            algorithm_passes=algorithm_passes,
        )


def register() -> None:
    """Make :class:`.State` use this serializer.

    >>> register()
    >>> "timestamp" in State(model=torch.nn.Linear(1, 1)).state_dict()
    True
    """
    State._serializer = CheckpointSerializer()
