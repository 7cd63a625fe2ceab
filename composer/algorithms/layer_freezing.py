"""Layer freezing: stop training the first layers, and progressively more of them.

    fraction(t) = level * (t - start) / (1 - start)        for t > start; t: fraction of the run completed

The first layers converge first. The backward pass ends at the first trainable layer, which saves time and the memory of
gradients, optimizer state and activations before it. After FreezeOut, Brock et al. 2017,
https://arxiv.org/abs/1706.04983
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import LBFGS, Optimizer

from composer._numbers import in_unit_interval
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
    """Freeze the first layers of a model according to the schedule.

        fraction(t) = level * (t - start) / (1 - start)        for t > start

    Layers are the modules without submodules or with direct parameters, in the order of registration. Of n layers, the
    first ``floor(fraction * (n - 1))`` are frozen, so never the last. Parameters that a later layer shares are not
    frozen. Frozen parameters no longer require gradients, and have no gradient and no optimizer state, so optimizers
    skip them; they stay in the parameter groups, so that a checkpoint matches the same optimizer.

    Args:
        model: The model.
        optimizers: The model's optimizers.
        current_duration: Fraction t of the run completed, from 0 to 1.
        freeze_start: Fraction of the run before which nothing is frozen, from 0 to 1.
        freeze_level: Maximum fraction of the layers to freeze, from 0 (off) to 1.

    Returns:
        The number of frozen layers; the fraction according to the schedule.

    Raises:
        ValueError: A fraction is not in [0, 1].

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> freeze_layers(model, torch.optim.SGD(model.parameters()), current_duration=0.75)
    (1, 0.5)
    >>> model[0].weight.requires_grad, model[2].weight.requires_grad
    (False, True)

    Paper: https://arxiv.org/abs/1706.04983 (Brock et al. 2017)
    """
    fraction = _frozen_fraction(float(current_duration), freeze_start, freeze_level)
    layers = _layers(model)
    depth = _depth_of(layers, fraction)
    _freeze(layers, depth, ensure_tuple(optimizers))
    return depth, fraction


class LayerFreezing(Algorithm):
    """Applies :func:`freeze_layers` at the end of each epoch.

    Logs ``layer_freezing/layers_frozen`` and ``layer_freezing/percentage_frozen``, the scheduled fraction.

    When to use it:
        For sequential networks, such as ResNets, if you can trade a little accuracy for time.

    When not to:
        For networks with branches that start at the input (skip connections to the end, U-Nets), which keep the
        backward pass running, and in short runs, where early layers still learn.

    How to choose:
        Start at half of the run or later; with ``freeze_level`` below 1 the last layers always train. Each change
        recompiles a compiled model: keep the interval at an epoch.

    Cost:
        None; it saves the backward pass, the gradients and the optimizer state of frozen layers. Frozen batch
        normalization keeps updating its running statistics.

    Args:
        freeze_start: Fraction of the run before which nothing is frozen.
        freeze_level: Maximum fraction of the layers to freeze; 0 is off.
        update_interval: Time between evaluations of the schedule, in batches or epochs.

    Raises:
        ValueError: A fraction is not in [0, 1], or the interval is not a positive time in batches or epochs.

    >>> LayerFreezing(freeze_start=0.5, freeze_level=0.8)
    LayerFreezing(freeze_start=0.5, freeze_level=0.8, update_interval=Time(1, TimeUnit.EPOCH))

    Paper: https://arxiv.org/abs/1706.04983 (Brock et al. 2017)
    """

    __traits__ = Traits(
        sharding=Sharding.SAFE,
        sharding_reason="All ranks freeze the same layers.",
        engine_conflict="It freezes parameters of the optimizer.",
        neutral={"freeze_level": 0.0},
    )
    find_unused_parameters = True

    def __init__(
        self, freeze_start: float = 0.5, freeze_level: float = 1.0, update_interval: str | Time | int = "1ep"
    ) -> None:
        self.freeze_start = in_unit_interval("freeze_start", freeze_start)
        self.freeze_level = in_unit_interval("freeze_level", freeze_level)
        units = (TimeUnit.BATCH, TimeUnit.EPOCH)
        self.update_interval = ensure_time(update_interval, TimeUnit.EPOCH, "update_interval", units)
        if self.update_interval.value <= 0:
            raise ValueError(
                f"update_interval must be a positive time in batches or epochs, such as '1ep'; got {update_interval!r}."
            )
        self._depth = 0

    def fit_start(self, state: State, logger: Logger) -> None:
        """Freeze the layers again that were frozen when a checkpoint was saved.

        Raises:
            ValueError: An optimizer is LBFGS, which would go on to move frozen weights by its history.
        """
        layers = _layers(state.model)
        may_freeze = self._depth or (self.freeze_start < 1 and _depth_of(layers, self.freeze_level))
        if may_freeze and any(isinstance(optimizer, LBFGS) for optimizer in state.optimizers):
            raise ValueError(
                "LayerFreezing cannot freeze weights of LBFGS, which moves all weights by one history of steps. Use "
                "another optimizer, or freeze the layers with requires_grad_(False) before LBFGS is created."
            )
        if self._depth:
            _freeze(layers, self._depth, state.optimizers)
        if len(layers) < 2:
            message = "LayerFreezing has no effect: the model has one layer, and the last layer is never frozen."
            warnings.warn(message, NoEffectWarning, stacklevel=2)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Freeze layers if the interval is in batches."""
        if self.update_interval.unit is TimeUnit.BATCH:
            self._update(state, logger, state.timestamp.count(TimeUnit.BATCH))

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Freeze layers if the interval is in epochs."""
        if self.update_interval.unit is TimeUnit.EPOCH:
            self._update(state, logger, state.timestamp.count(TimeUnit.EPOCH))

    def state_dict(self) -> dict[str, Any]:
        """Return the number of frozen layers."""
        return {**super().state_dict(), "layers_frozen": self._depth}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the number of frozen layers.

        Args:
            state: What :meth:`state_dict` returned.
        """
        self._depth = state["layers_frozen"]

    def _update(self, state: State, logger: Logger, count: int) -> None:
        if count % int(self.update_interval.value):
            return
        depth, fraction = freeze_layers(
            state.model, state.optimizers, state.progress("dur"), self.freeze_start, self.freeze_level
        )
        self._depth = max(self._depth, depth)
        logger.log_metrics({"layer_freezing/layers_frozen": depth, "layer_freezing/percentage_frozen": fraction})


def _frozen_fraction(elapsed: float, start: float, level: float) -> float:
    in_unit_interval("current_duration", elapsed)
    in_unit_interval("freeze_start", start)
    in_unit_interval("freeze_level", level)
    return level * (elapsed - start) / (1 - start) if elapsed > start else 0.0


def _depth_of(layers: Sequence[nn.Module], fraction: float) -> int:
    """Return how many layers a fraction of them is, without the last."""
    return int(fraction * max(len(layers) - 1, 0) + 1e-9)  # 0.29 * 100 is less than 29


def _layers(model: nn.Module) -> list[nn.Module]:
    return [
        module
        for module in model.modules()
        if not any(True for _ in module.children()) or any(True for _ in module.parameters(recurse=False))
    ]


def _freeze(layers: Sequence[nn.Module], depth: int, optimizers: Sequence[Optimizer]) -> None:
    """Freeze the parameters of the first layers, except those shared with a later layer."""
    training = {id(parameter) for layer in layers[depth:] for parameter in layer.parameters(recurse=False)}
    for layer in layers[:depth]:
        for parameter in layer.parameters(recurse=False):
            if not parameter.requires_grad or id(parameter) in training:
                continue
            parameter.requires_grad_(False)
            parameter.grad = None
            for optimizer in optimizers:
                optimizer.state.pop(parameter, None)
