"""Gyro dropout: dropout by a fixed set of masks, a few of which are in use for many steps at a time.

Dropout trains an ensemble of subnetworks, too many for any of them to be trained well. With ``sigma`` of them, and
``tau`` in use at once, each is trained for long, and they differ more.

Paper: Gyro Dropout: Maximizing Ensemble Effect in Neural Network Training, Lee et al., MLSys 2022,
https://proceedings.mlsys.org/paper_files/paper/2022/hash/72aa1632b83c93a2f680dbb5235f1a83-Abstract.html
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from composer._text import positive
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

    ``tau`` of the ``sigma`` masks are in use for ``floor(iterations / sigma) * tau`` iterations, so that over the
    training as many are chosen as there are.

    Args:
        model: The model.
        iters_per_epoch: Number of forward passes in an epoch of training.
        max_epoch: Number of epochs.
        p: Probability of a feature to be dropped, instead of that of the replaced layer.
        sigma: Number of masks.
        tau: Number of masks in use at once.

    Returns:
        The model itself.

    Raises:
        ValueError: An argument is out of its range.

    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))
    >>> apply_gyro_dropout(model, iters_per_epoch=100, max_epoch=10, p=0.5, sigma=256, tau=16)[1]
    GyroDropoutLayer(p=0.5, sigma=256, tau=16, period=48)

    Paper: https://proceedings.mlsys.org/paper_files/paper/2022/hash/72aa1632b83c93a2f680dbb5235f1a83-Abstract.html
    """
    positive("iters_per_epoch", iters_per_epoch)
    positive("max_epoch", max_epoch)
    _replace(model, p, sigma, tau, _period(iters_per_epoch * max_epoch, sigma, tau))
    return model


class GyroDropout(Algorithm):
    """Applies :func:`apply_gyro_dropout` at the start.

    The length of the training in forward passes is taken from ``max_duration``, in any unit that the
    data loader's length lets it be known in, when training begins.

    When to use it:
        For networks that use dropout and overfit, fully connected ones first of all.

    When not to:
        In models that do without dropout, and in trainings of fewer steps than there are masks.

    How to choose:
        ``sigma=256, tau=16``, or ``sigma=1024, tau=8`` for longer trainings; ``p`` as for dropout.

    Cost:
        That of dropout, and ``sigma`` masks of the size of one sample in memory.

    Args:
        p: Probability of a feature to be dropped, instead of that of the replaced layers.
        sigma: Number of masks. 256 with ``tau=16``, or 1024 with ``tau=8``, are usual.
        tau: Number of masks in use at once.

    Raises:
        ValueError: An argument is out of its range; when training begins, that its length in batches is not known.

    >>> GyroDropout()
    GyroDropout(p=0.5, sigma=256, tau=16)

    Paper: https://proceedings.mlsys.org/paper_files/paper/2022/hash/72aa1632b83c93a2f680dbb5235f1a83-Abstract.html
    """

    __traits__ = Traits(
        slot=Slot.SURGERY,
        conflicts_with={
            "SAM": "the two forward passes of a step would use different masks. Take ordinary dropout.",
        },
        sharding=Sharding.PER_RANK,
        sharding_reason="Each process counts its own forward passes and has its own masks, unless buffers are shared.",
    )

    def __init__(self, p: float = 0.5, sigma: int = 256, tau: int = 16) -> None:
        GyroDropoutLayer(p, sigma, tau)  # checks the arguments
        self.p = p
        self.sigma = sigma
        self.tau = tau

    @staticmethod
    def required_on_load() -> bool:
        """Yes: the masks are saved with the model."""
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Replace the layers, so that a checkpoint finds its masks."""
        _replace(state.model, self.p, self.sigma, self.tau, period=1)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Set for how long a choice of masks stays."""
        layers = [module for module in state.model.modules() if isinstance(module, GyroDropoutLayer)]
        period = _period(_num_batches(state) * state.grad_accum, self.sigma, self.tau) if layers else 1
        for layer in layers:
            layer.period = period


def _replace(model: nn.Module, p: float, sigma: int, tau: int, period: int) -> None:
    def make(module: nn.Dropout, module_index: int) -> GyroDropoutLayer:
        return GyroDropoutLayer(p, sigma, tau, period)

    if not replace_module_classes(model, {nn.Dropout: make}):
        message = "GyroDropout changes nothing: the model has no nn.Dropout."
        warnings.warn(message, NoEffectWarning, stacklevel=3)


def _period(iterations: int, sigma: int, tau: int) -> int:
    return max(iterations // sigma * tau, 1)


def _num_batches(state: State) -> int:
    """Length of the training in batches."""
    total, length = state.max_duration, state.train_phase.length
    if total is not None:
        if total.unit is TimeUnit.BATCH:
            return int(total.value)
        if total.unit is TimeUnit.EPOCH and length is not None:
            return int(total.value) * length
        size = None if state.train_phase.loader is None else state.train_phase.loader.__batch_size__
        if total.unit is TimeUnit.SAMPLE and size:
            return -(-int(total.value) // size)
    raise ValueError(
        f"GyroDropout divides the training among its masks and must know how many batches it has, which a max_duration "
        f"of '{total}' does not tell here. Give it in batches, or in epochs of a loader with a length."
    )
