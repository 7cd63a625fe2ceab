"""Base class of the methods that change how a model is trained."""

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
    """A training method: edits :class:`.State` at events of the loop.

    Write one by methods named after the events, each ``(self, state, logger)``. Classes that define ``match`` and
    ``apply`` instead work as well; their parameters are given by name, so that any subset and order of ``event``,
    ``state`` and ``logger`` will do. Its place among other algorithms, its conflicts and how it works with sharded
    weights are declared in ``__traits__``, see :class:`.Traits`.

    Attributes:
        find_unused_parameters: Whether parameters may get no gradient in a step.
        backwards_create_graph: Whether gradients have to be differentiable themselves.

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

    @staticmethod
    def required_on_load() -> bool:
        """Tell whether loading a checkpoint of a run with this algorithm adds it where it is missing."""
        return False

    def match(self, event: Event, state: State) -> bool:
        """Tell whether :meth:`apply` is to be called.

        Args:
            event: The event that fires.
            state: The state of the run.
        """
        return self.__listens__(event)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Act at an event.

        Args:
            event: The event that fires.
            state: The state of the run, to be edited in place.
            logger: Takes metrics.

        Returns:
            An exit code for the trace, or None.
        """
        getattr(self, event.value)(state, logger)
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps; by default how the algorithm was made."""
        return {"repr": mask_text(repr(self))}

    def __repr__(self) -> str:
        """Show the constructor's arguments as far as they are kept under their own names."""
        names = [name for name in inspect.signature(type(self)).parameters if name in self.__dict__]
        return f"{type(self).__name__}({', '.join(f'{name}={self.__dict__[name]!r}' for name in names)})"


def find_algorithm(name: str) -> type[Algorithm] | None:
    """Return the class of an algorithm by its name, among those that are imported; None if there is none.

    Args:
        name: The name of the class.

    >>> class Mine(Algorithm): ...
    >>> find_algorithm("Mine") is Mine
    True
    """
    found = [Algorithm]
    for kind in found:  # grows on the way
        found.extend(kind.__subclasses__())
    # The latest of a name, as in a notebook where the cell that defines a class is run again.
    return next((kind for kind in reversed(found[1:]) if kind.__name__ == name), None)
