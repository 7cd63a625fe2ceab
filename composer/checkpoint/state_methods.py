"""``State.state_dict`` and ``State.load_state_dict``, in the form of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from composer.checkpoint.load import restore
from composer.checkpoint.save import collect
from composer.core.algorithm_order import AlgorithmPass
from composer.core.logger import Logger
from composer.core.state import State

__all__ = ["CheckpointForm", "register"]


class CheckpointForm:
    """Collects and restores a state as checkpoints do.

    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> saved = CheckpointForm().collect(state)
    >>> sorted(saved["model"])
    ['bias', 'weight']
    """

    def collect(self, state: State) -> dict[str, Any]:
        """Return what a checkpoint has under ``"state"``.

        Args:
            state: The state of the run.
        """
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
            logger: Passed to algorithms that are applied again.
            saved: What a checkpoint has under ``"state"``; edited.
            strict: Whether the names of the weights must be the same.
            exclude_algorithms: Names of algorithms that are not applied again.
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
    """Have states use this form.

    >>> register()
    >>> "timestamp" in State(model=torch.nn.Linear(1, 1)).state_dict()
    True
    """
    State._serializer = CheckpointForm()
