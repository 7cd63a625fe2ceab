"""The default optimizer, if none is given to the Trainer."""

from __future__ import annotations

import warnings

from composer.core.state import State
from composer.optim.decoupled_sgd import DecoupledSGDW
from composer.warnings import ComposerWarning

__all__ = ["make_default_optimizer"]


def make_default_optimizer(state: State) -> None:
    """Create the default optimizer over all parameters that require gradients, with a warning.

    Args:
        state: The state.

    Raises:
        ValueError: No parameter requires gradients.
    """
    parameters = [parameter for parameter in state.model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError(f"model: no parameter of {type(state.model).__name__} requires a gradient.")
    message = "No optimizers were given; DecoupledSGDW with a learning rate of 0.1 is used."
    warnings.warn(message, ComposerWarning, stacklevel=4)
    state.optimizers = [DecoupledSGDW(parameters, lr=0.1)]
