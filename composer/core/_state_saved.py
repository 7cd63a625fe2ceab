"""``State.state_dict`` and ``load_state_dict``, for scripts that write and read checkpoints themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from composer.core.algorithm_order import AlgorithmPass
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["StateSaved", "StateSerializer"]


class StateSerializer(Protocol):
    """Converts a state to and from checkpoint contents; implemented by :mod:`composer.checkpoint`."""

    def collect(self, state: State) -> dict[str, Any]:
        """Return the entry ``"state"`` of a checkpoint."""
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
        """Load the result of :meth:`collect`."""
        ...


class StateSaved:
    """Saves and loads a state with the serializer that :mod:`composer.checkpoint` registers."""

    _serializer: ClassVar[StateSerializer | None] = None

    def state_dict(self) -> dict[str, Any]:
        """Return the entry ``"state"`` of a checkpoint, with the tensors of the run. All ranks must call this.

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
        """Load the result of :meth:`state_dict`.

        Args:
            state: That result, or the entry ``"state"`` of a checkpoint; not modified.
            logger: Passed to algorithms that are applied again.
            strict: Whether the weight names must match exactly.
            exclude_algorithms: Names of algorithms that are not applied again.
            algorithm_passes: Functions that reorder the algorithms.

        Raises:
            RuntimeError: :mod:`composer.trainer` is not imported, or the weights do not match the model.
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
        raise RuntimeError("State.state_dict and load_state_dict require composer.trainer; import it first.")
    return serializer
