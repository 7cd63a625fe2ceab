"""The state of a run as a dict, for scripts that write and read checkpoints by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from composer.core.algorithm_order import AlgorithmPass
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["StateSaved", "StateSerializer"]


class StateSerializer(Protocol):
    """What :mod:`composer.checkpoint` knows of the form of a checkpoint."""

    def collect(self, state: State) -> dict[str, Any]:
        """Return the part ``"state"`` of a checkpoint."""
        ...

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
        """Load what :meth:`collect` returned."""
        ...


class StateSaved:
    """Saves and loads a state by what :mod:`composer.checkpoint` has registered."""

    _serializer: ClassVar[StateSerializer | None] = None

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint has under ``"state"``; its tensors are those of the run. All ranks must call this.

        Raises:
            RuntimeError: :mod:`composer.trainer` is not imported.
        """
        return _registered(self._serializer).collect(self)  # type: ignore[arg-type]

    def load_state_dict(
        self,
        state: dict[str, Any],
        logger: Logger,
        strict: bool = False,
        exclude_algorithms: Sequence[str] | None = None,
        algorithm_passes: Sequence[AlgorithmPass] | None = None,
    ) -> None:
        """Load what :meth:`state_dict` returned.

        Args:
            state: What it returned, or what a checkpoint has under ``"state"``; not changed.
            logger: Passed to algorithms that are applied again.
            strict: Whether the names of the weights must be the same.
            exclude_algorithms: Names of algorithms that are not applied again.
            algorithm_passes: Reorder the algorithms.

        Raises:
            RuntimeError: :mod:`composer.trainer` is not imported, or the weights do not fit.
        """
        _registered(self._serializer).restore(
            self,  # type: ignore[arg-type]
            logger,
            dict(state),
            strict=strict,
            exclude_algorithms=exclude_algorithms,
            algorithm_passes=algorithm_passes,
        )


def _registered(serializer: StateSerializer | None) -> StateSerializer:
    if serializer is None:
        raise RuntimeError("State.state_dict and load_state_dict need composer.trainer; import it before.")
    return serializer
