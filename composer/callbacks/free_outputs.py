"""FreeOutputs: release the model's outputs before the backward pass to save memory (against OOM)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer.core.callback import Callback

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["FreeOutputs"]


class FreeOutputs(Callback):
    """Sets ``state.outputs`` to None once the loss is computed, to free their memory before the backward pass.

    This helps if outputs are large and the loss does not keep them for its gradient, such as the logits (B, S, V) of a
    language model, which the loss has turned into log-probabilities. Without this callback they are freed after the
    backward pass, before the optimizer step. Handlers of events after ``AFTER_LOSS`` see no outputs. Training metrics
    compute their own outputs in a second forward pass in evaluation mode; drop those metrics if that is too expensive.

    >>> from composer import Engine, State
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> engine = Engine(state, callbacks=FreeOutputs())
    >>> state.outputs = torch.zeros(8, 512, 100)
    >>> _ = engine.run_event("after_loss")
    >>> state.outputs is None
    True
    """

    def after_loss(self, state: State, logger: Logger) -> None:
        """Release the outputs."""
        state.outputs = None
