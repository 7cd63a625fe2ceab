"""Algorithm, the base class of training methods such as MixUp or EMA, which edit the state at events."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from composer._secrets.masking import mask_text
from composer.core.hooks import Hooks
from composer.core.serializable import Serializable

if TYPE_CHECKING:
    from composer.core.event import Event
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["Algorithm", "find_algorithm"]


class Algorithm(Hooks, Serializable):
    """A training method: edits the :class:`.State` at events of the loop.

    Implement methods named after the events, each with the parameters ``(self, state, logger)``. Alternatively, define
    ``match`` and ``apply``, with any subset and order of the parameters ``event``, ``state`` and ``logger``. Declare
    the order among other algorithms, conflicts and support for sharded weights in ``__traits__``, see :class:`.Traits`.

    Attributes:
        find_unused_parameters: Whether some parameters may receive no gradient in a step.
        backwards_create_graph: Whether gradients must be differentiable themselves.
        replica_size: Number of ranks among which gradients are averaged in each step, if the algorithm synchronizes
            the weights of these replicas; None averages gradients over all ranks.

    >>> class ScaleLoss(Algorithm):
    ...     def __init__(self, factor):
    ...         self.factor = factor
    ...
    ...     def after_loss(self, state, logger):
    ...         state.loss = state.loss * self.factor
    >>> ScaleLoss(0.5)
    ScaleLoss(factor=0.5)
    """

    find_unused_parameters: bool = False
    backwards_create_graph: bool = False
    replica_size: int | None = None

    @staticmethod
    def required_on_load() -> bool:
        """Return whether loading a checkpoint of a run with this algorithm adds the algorithm if it is missing."""
        return False

    def match(self, event: Event, state: State) -> bool:
        """Return whether to call :meth:`apply` at an event.

        Args:
            event: The event that fires.
            state: The state of the run.
        """
        return self.__listens__(event)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Apply the method to the state.

        Args:
            event: The event that fires.
            state: The state of the run, which is edited in place.
            logger: Receives metrics.

        Returns:
            An exit code for the trace, or None.
        """
        getattr(self, event.value)(state, logger)
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in checkpoints; by default the ``repr``, with secrets masked."""
        return {"repr": mask_text(repr(self))}

    def __repr__(self) -> str:
        """Return the constructor call, with the arguments that are attributes of the same name."""
        names = [name for name in inspect.signature(type(self)).parameters if name in self.__dict__]
        return f"{type(self).__name__}({', '.join(f'{name}={self.__dict__[name]!r}' for name in names)})"


def find_algorithm(name: str) -> type[Algorithm] | None:
    """Return the imported algorithm class of that name, or None.

    Args:
        name: The name of the class.

    >>> class Mine(Algorithm): ...
    >>> find_algorithm("Mine") is Mine
    True
    """
    found = [Algorithm]
    for cls in found:  # grows during the iteration
        found.extend(cls.__subclasses__())
    # The latest of a name, as in a notebook where the cell that defines a class is run again.
    return next((cls for cls in reversed(found[1:]) if cls.__name__ == name), None)
