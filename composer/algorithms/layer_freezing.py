"""Layer freezing: stop training the first layers, more and more of them, as training goes on.

    share(t) = level * (t - start) / (1 - start)        for t > start; t: share of training done

The first layers converge first. The backward pass ends at the first layer that still trains, so that its time, and the
memory of gradients, optimizer state and activations before it, are saved. After FreezeOut, Brock et al. 2017,
https://arxiv.org/abs/1706.04983
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from composer._text import in_unit_interval
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.traits import Traits
from composer.trees import ensure_tuple
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["LayerFreezing", "freeze_layers"]


def freeze_layers(
    model: nn.Module,
    optimizers: Optimizer | Sequence[Optimizer],
    current_duration: float | Time,
    freeze_start: float = 0.5,
    freeze_level: float = 1.0,
) -> tuple[int, float]:
    """Freeze the first layers of a model, as many as the schedule says.

        share(t) = level * (t - start) / (1 - start)        for t > start

    Layers are the modules without submodules or with parameters of their own, in the order in which the model holds
    them; of n layers the first ``floor(share * (n - 1))`` are frozen, so never the last. Parameters that a later layer
    shares stay. Frozen ones no longer require gradients, have none, and have no state in the optimizers, which then
    pass over them; they stay listed in the parameter groups, so that a checkpoint fits the same optimizer.

    Args:
        model: The model.
        optimizers: Those of the model.
        current_duration: Share t of training done, from 0 to 1.
        freeze_start: Share of training before which nothing is frozen, from 0 to 1.
        freeze_level: Largest share of the layers that is frozen, from 0 (off) to 1.

    Returns:
        Number of layers frozen; the share by the schedule.

    Raises:
        ValueError: A share is not in [0, 1].

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> freeze_layers(model, torch.optim.SGD(model.parameters()), current_duration=0.75)
    (1, 0.5)
    >>> model[0].weight.requires_grad, model[2].weight.requires_grad
    (False, True)

    Paper: https://arxiv.org/abs/1706.04983 (Brock et al. 2017)
    """
    share = _share(float(current_duration), freeze_start, freeze_level)
    layers = _layers(model)
    depth = int(share * max(len(layers) - 1, 0) + 1e-9)  # 0.29 * 100 is less than 29
    _freeze(layers, depth, ensure_tuple(optimizers))
    return depth, share


class LayerFreezing(Algorithm):
    """Applies :func:`freeze_layers` at the end of each epoch.

    Logs ``layer_freezing/layers_frozen`` and ``layer_freezing/percentage_frozen``, the share by the schedule.

    When to use it:
        For networks that are a chain, such as ResNets, and runs in which a little accuracy may be given for time.

    When not to:
        Where branches begin at the input (skip connections to the end, U-Nets), which keep the backward pass going,
        and in short trainings, where early layers still learn.

    How to choose:
        Start at half of the training or later; with ``freeze_level`` below 1 the last layers always train. Each
        change compiles a compiled model again: keep the interval at an epoch.

    Cost:
        None; it saves the backward pass, the gradients and the optimizer state of what is frozen. Frozen batch
        normalisation goes on adapting its statistics.

    Args:
        freeze_start: Share of training before which nothing is frozen.
        freeze_level: Largest share of the layers that is frozen; 0 is off.
        update_interval: Time between looks at the schedule, in batches or epochs.

    Raises:
        ValueError: A share is not in [0, 1], or the interval no positive time in batches or epochs.

    >>> LayerFreezing(freeze_start=0.5, freeze_level=0.8)
    LayerFreezing(freeze_start=0.5, freeze_level=0.8, update_interval=Time(1, TimeUnit.EPOCH))

    Paper: https://arxiv.org/abs/1706.04983 (Brock et al. 2017)
    """

    __traits__ = Traits(
        sharding=Sharding.SAFE,
        sharding_reason="All processes freeze the same layers.",
        engine_conflict="It takes parameters from the optimizer.",
    )
    find_unused_parameters = True

    def __init__(
        self, freeze_start: float = 0.5, freeze_level: float = 1.0, update_interval: str | Time | int = "1ep"
    ) -> None:
        self.freeze_start = in_unit_interval("freeze_start", freeze_start)
        self.freeze_level = in_unit_interval("freeze_level", freeze_level)
        self.update_interval = ensure_time(update_interval, TimeUnit.EPOCH, "update_interval")
        if self.update_interval.unit not in (TimeUnit.BATCH, TimeUnit.EPOCH) or self.update_interval.value <= 0:
            raise ValueError(
                f"update_interval must be a positive time in batches or epochs, such as '1ep'; got {update_interval!r}."
            )
        self._depth = 0

    def fit_start(self, state: State, logger: Logger) -> None:
        """Freeze again what was frozen when a checkpoint was saved."""
        if self._depth:
            _freeze(_layers(state.model), self._depth, state.optimizers)
        if len(_layers(state.model)) < 2:
            message = "LayerFreezing changes nothing: the model has one layer, and the last layer is never frozen."
            warnings.warn(message, NoEffectWarning, stacklevel=2)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Freeze layers if batches are counted."""
        if self.update_interval.unit is TimeUnit.BATCH:
            self._update(state, logger, state.timestamp.count(TimeUnit.BATCH))

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Freeze layers if epochs are counted."""
        if self.update_interval.unit is TimeUnit.EPOCH:
            self._update(state, logger, state.timestamp.count(TimeUnit.EPOCH))

    def state_dict(self) -> dict[str, Any]:
        """Return how many layers are frozen."""
        return {**super().state_dict(), "layers_frozen": self._depth}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over how many layers are frozen.

        Args:
            state: What :meth:`state_dict` returned.
        """
        self._depth = state["layers_frozen"]

    def _update(self, state: State, logger: Logger, count: int) -> None:
        if count % int(self.update_interval.value):
            return
        elapsed = state.get_elapsed_duration()
        if elapsed is None:
            raise ValueError("LayerFreezing freezes layers over the training, so max_duration must be set.")
        depth, share = freeze_layers(
            state.model, state.optimizers, min(float(elapsed), 1.0), self.freeze_start, self.freeze_level
        )
        self._depth = max(self._depth, depth)
        logger.log_metrics({"layer_freezing/layers_frozen": depth, "layer_freezing/percentage_frozen": share})


def _share(elapsed: float, start: float, level: float) -> float:
    in_unit_interval("current_duration", elapsed)
    in_unit_interval("freeze_start", start)
    in_unit_interval("freeze_level", level)
    return level * (elapsed - start) / (1 - start) if elapsed > start else 0.0


def _layers(model: nn.Module) -> list[nn.Module]:
    return [
        module
        for module in model.modules()
        if not any(True for _ in module.children()) or any(True for _ in module.parameters(recurse=False))
    ]


def _freeze(layers: Sequence[nn.Module], depth: int, optimizers: Sequence[Optimizer]) -> None:
    """Freeze the parameters of the first layers that no later layer holds."""
    training = {id(parameter) for layer in layers[depth:] for parameter in layer.parameters(recurse=False)}
    for layer in layers[:depth]:
        for parameter in layer.parameters(recurse=False):
            if not parameter.requires_grad or id(parameter) in training:
                continue
            parameter.requires_grad_(False)
            parameter.grad = None
            for optimizer in optimizers:
                optimizer.state.pop(parameter, None)
