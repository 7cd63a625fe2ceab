"""Gyro dropout: dropout with a fixed set of masks, a few of which are active for many steps at a time.

Dropout trains an ensemble of too many subnetworks for any of them to be trained well. With ``sigma`` subnetworks, and
``tau`` active at once, each trains longer, and they become more diverse.

Paper: Gyro Dropout: Maximizing Ensemble Effect in Neural Network Training, Lee et al., MLSys 2022,
https://proceedings.mlsys.org/paper_files/paper/2022/hash/72aa1632b83c93a2f680dbb5235f1a83-Abstract.html
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from composer._numbers import whole_number
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.time import TimeUnit
from composer.core.traits import Traits
from composer.nn.gyro_dropout import GyroDropoutLayer
from composer.surgery import replace_module_classes
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["GyroDropout", "GyroDropoutLayer", "apply_gyro_dropout"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def apply_gyro_dropout(
    model: ModuleT, iters_per_epoch: int, max_epoch: int, p: float = 0.5, sigma: int = 256, tau: int = 16
) -> ModuleT:
    """Replace each ``nn.Dropout`` of a model by a :class:`.GyroDropoutLayer`, in place.

    ``tau`` of the ``sigma`` masks are active for ``floor(iterations / sigma) * tau`` iterations, so that over the run
    ``sigma`` masks are selected.

    Args:
        model: The model.
        iters_per_epoch: Number of forward passes in a training epoch.
        max_epoch: Number of epochs.
        p: Probability of dropping a feature, instead of that of the replaced layer.
        sigma: Number of masks.
        tau: Number of masks active at once.

    Returns:
        The model itself.

    Raises:
        ValueError: An argument is out of range.

    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))
    >>> apply_gyro_dropout(model, iters_per_epoch=100, max_epoch=10, p=0.5, sigma=256, tau=16)[1]
    GyroDropoutLayer(p=0.5, sigma=256, tau=16, period=48)

    Paper: https://proceedings.mlsys.org/paper_files/paper/2022/hash/72aa1632b83c93a2f680dbb5235f1a83-Abstract.html
    """
    iters_per_epoch = whole_number("iters_per_epoch", iters_per_epoch, minimum=1)
    max_epoch = whole_number("max_epoch", max_epoch, minimum=1)
    sigma, tau = whole_number("sigma", sigma, minimum=1), whole_number("tau", tau, minimum=1)
    _replace(model, p, sigma, tau, _period(iters_per_epoch * max_epoch, sigma, tau))
    return model


class GyroDropout(Algorithm):
    """Applies :func:`apply_gyro_dropout` at initialization.

    The number of forward passes in the run is computed from ``max_duration`` when training starts, in any unit that
    the data loader's length can convert to batches.

    When to use it:
        For networks that use dropout and overfit, especially fully connected ones.

    When not to:
        For models without dropout, and in runs of fewer steps than there are masks.

    How to choose:
        ``sigma=256, tau=16``, or ``sigma=1024, tau=8`` for longer runs; ``p`` as for dropout.

    Cost:
        The cost of dropout, and memory for ``sigma`` masks of the size of one sample.

    Args:
        p: Probability of dropping a feature, instead of that of the replaced layers.
        sigma: Number of masks. 256 with ``tau=16``, or 1024 with ``tau=8``, are usual.
        tau: Number of masks active at once.

    Raises:
        ValueError: An argument is out of range; at the start of training, the number of batches is unknown.

    >>> GyroDropout()
    GyroDropout(p=0.5, sigma=256, tau=16)

    Paper: https://proceedings.mlsys.org/paper_files/paper/2022/hash/72aa1632b83c93a2f680dbb5235f1a83-Abstract.html
    """

    __traits__ = Traits(
        slot=Slot.SURGERY,
        conflicts_with={
            "SAM": "the two forward passes of a step would use different masks. Use ordinary dropout.",
        },
        sharding=Sharding.PER_RANK,
        sharding_reason="Each rank counts its forward passes and has separate masks, unless buffers are synchronized.",
        why_not_neutral="it replaces dropout, whose masks are others",
    )

    def __init__(self, p: float = 0.5, sigma: int = 256, tau: int = 16) -> None:
        layer = GyroDropoutLayer(p, sigma, tau)  # checks the arguments
        self.p = p
        self.sigma, self.tau = layer.sigma, layer.tau

    @staticmethod
    def required_on_load() -> bool:
        """Return True: the masks are saved with the model."""
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Replace the layers, so that a checkpoint can load its masks."""
        _replace(state.model, self.p, self.sigma, self.tau, period=1)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Set for how many steps a selection of masks stays active."""
        layers = [module for module in state.model.modules() if isinstance(module, GyroDropoutLayer)]
        period = _period(_num_batches(state) * state.grad_accum, self.sigma, self.tau) if layers else 1
        for layer in layers:
            layer.period = period


def _replace(model: nn.Module, p: float, sigma: int, tau: int, period: int) -> None:
    def make(module: nn.Dropout, module_index: int) -> GyroDropoutLayer:
        return GyroDropoutLayer(p, sigma, tau, period)

    if not replace_module_classes(model, {nn.Dropout: make}):
        message = "GyroDropout has no effect: the model has no nn.Dropout."
        warnings.warn(message, NoEffectWarning, stacklevel=3)


def _period(iterations: int, sigma: int, tau: int) -> int:
    return max(iterations // sigma * tau, 1)


def _num_batches(state: State) -> int:
    """Return the duration of the run in batches."""
    total, length = state.max_duration, state.train_phase.steps_per_epoch
    if total is not None:
        if total.unit is TimeUnit.BATCH:
            return int(total.value)
        if total.unit is TimeUnit.EPOCH and length is not None:
            return int(total.value) * length
        size = None if state.train_phase.loader is None else state.train_phase.loader.__batch_size__
        if total.unit is TimeUnit.SAMPLE and size and not state.train_phase.joins_batches:
            return -(-int(total.value) // size)
    raise ValueError(
        f"GyroDropout distributes its masks over the run and must know the number of batches, which max_duration "
        f"'{total}' does not determine. Pass it in batches, or in epochs with a sized data loader."
    )
