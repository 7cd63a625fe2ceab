"""How a model is trained by one process or by several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.devices import Device

__all__ = ["SingleProcess", "Strategy"]

_WHATEVER: AbstractContextManager[None] = nullcontext()


class Strategy(ABC):
    """What the training loop asks for where processes have to work together.

    The loop, the algorithms and the callbacks do not know which one is in use: ``state.model`` is the user's model all
    the time, and its parameters are what the optimizers step, whole or, as ``DTensor``, in parts.

    Attributes:
        name: By which :func:`.choose_strategy` finds it.
        divides_weights: Whether a process holds parts of the weights only.
        meets_in_forward: Whether processes wait for each other with every microbatch, so that all must run the same
            number of them.
        module: What training calls in place of the model, where the model has to be wrapped for its backward pass.

    >>> SingleProcess().divides_weights
    False
    """

    name: ClassVar[str]
    divides_weights: ClassVar[bool] = False
    meets_in_forward: bool = False
    module: nn.Module | None = None

    def place(self, model: nn.Module, device: Device) -> None:
        """Bring a model to the device, before algorithms see it.

        Args:
            model: The user's model.
            device: Where to.
        """
        device.module_to_device(model)

    @abstractmethod
    def prepare(self, state: State) -> None:
        """Make the model and its optimizers ready for several processes.

        Called once: the model has the layers that it will have, and not yet the weights of a checkpoint.

        Args:
            state: The state of the run.
        """

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return the context for forward and backward of a microbatch.

        Args:
            is_last: Whether it is the last of its batch, after which the gradients are to be the same everywhere.
        """
        return _WHATEVER

    def backward(self, loss: Tensor, *, create_graph: bool = False) -> None:
        """Add the gradients of a microbatch to those of the ones before.

        Args:
            loss: A scalar.
            create_graph: Whether the gradients are to be differentiable.
        """
        loss.backward(create_graph=create_graph)

    def reduce(self) -> None:
        """Make the gradients the same everywhere, where the last backward pass has not; called once for a batch."""
        return

    def close(self) -> None:
        """Let go of what was made for the run."""
        return


class SingleProcess(Strategy):
    """One process, which has everything.

    >>> SingleProcess.name
    'single'
    """

    name = "single"

    def prepare(self, state: State) -> None:
        """Nothing has to be agreed upon."""
