"""Prepare the model of a run: convert its linear layers in ``amp_fp8``, then wrap or shard it with the strategy."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from composer import dist
from composer._text import plural
from composer.parallel.float8_layers import (
    Float8Settings,
    convert_to_float8,
    converted_layers,
    has_transformer_engine_layers,
)
from composer.precision import Precision
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.parallel.strategy import Strategy
    from composer.trainer.run import Run

__all__ = ["float8_settings", "prepare_model"]


def float8_settings(state: State, strategy: Strategy) -> Float8Settings | None:
    """Return how linear layers are converted in ``amp_fp8``; None for a model with layers of TransformerEngine.

    Args:
        state: The state of the run.
        strategy: The parallelism strategy.

    Raises:
        ValueError: The strategy or the device does not support it, or ``precision_config`` is wrong.
        RuntimeError: The GPU has no 8-bit arithmetic.
        MissingConditionalImportError: torchao is not installed.
    """
    if has_transformer_engine_layers(state.model):
        return None
    if strategy.data_world_size != dist.get_world_size():
        raise ValueError(
            "precision='amp_fp8' is not supported with tensor parallelism; use 'amp_bf16', or shard the model with "
            "parallelism_config={'fsdp': {}} only."
        )
    return Float8Settings.of(state.precision_config or {}, state.device.torch_device.type)


def prepare_model(run: Run) -> None:
    """Prepare the model and the optimizers for training, after algorithms have changed the layers.

    Warns of float8 layers that an earlier trainer has left in the model, if the precision is another.

    Args:
        run: The run.

    Raises:
        ValueError: The precision is ``amp_fp8``, and no layer can be converted.
    """
    state = run.state
    if run.float8 is not None:
        convert_to_float8(state.model, run.float8)
    elif state.precision is not Precision.AMP_FP8 and (layers := converted_layers(state.model)):
        warnings.warn(
            f"{plural(len(layers), 'linear layer')} of the model will compute in float8 although the precision is "
            f"{state.precision.value!r}: an earlier Trainer with precision='amp_fp8' converted them. Call "
            f"composer.parallel.restore_linear_layers(model) before you create the Trainer, or create the model anew.",
            ComposerWarning,
            stacklevel=2,
        )
    run.strategy.prepare(state)
