"""Let go of the model's outputs before the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer.core.callback import Callback

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["FreeOutputs"]


class FreeOutputs(Callback):
    """Sets ``state.outputs`` to None once the loss is computed, so that they take no memory in the backward pass.

    This helps where outputs are large and the loss does not keep them for its gradient, such as the logits (B, S, V)
    of a language model, which the loss has turned into log-probabilities. Without this callback they are freed after
    the backward pass, before the optimizer's step. What comes after ``AFTER_LOSS`` finds no outputs. Metrics of the
    training data compute their own, by a second forward pass in evaluation mode; leave those metrics out where that
    costs too much.

    >>> from composer import Engine, State
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> engine = Engine(state, callbacks=FreeOutputs())
    >>> state.outputs = torch.zeros(8, 512, 100)
    >>> _ = engine.run_event("after_loss")
    >>> state.outputs is None
    True
    """

    def after_loss(self, state: State, logger: Logger) -> None:
        """Let go of the outputs."""
        state.outputs = None
