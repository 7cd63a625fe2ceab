"""Channels last: store images and convolution weights in torch.channels_last memory format.

Results are the same; convolution kernels for this format are faster on CPUs and on accelerators with matrix units such
as tensor cores. See https://pytorch.org/tutorials/intermediate/memory_format_tutorial.html
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["ChannelsLast", "apply_channels_last"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def apply_channels_last(model: ModuleT) -> ModuleT:
    """Convert the 4-dimensional weights of a model to channels-last memory format, in place.

    Shapes, values and optimizers do not change. Convolutions then return channels-last outputs, so a model converts
    its input only once.

    Args:
        model: The model.

    Returns:
        The model itself.

    >>> model = apply_channels_last(torch.nn.Conv2d(8, 4, 3))
    >>> model.weight.is_contiguous(memory_format=torch.channels_last)
    True
    """
    if not any(parameter.ndim == 4 for parameter in model.parameters()):
        message = "ChannelsLast has no effect: the model has no 4-dimensional weight, such as that of a Conv2d."
        warnings.warn(message, NoEffectWarning, stacklevel=2)
    return model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


class ChannelsLast(Algorithm):
    """Applies :func:`apply_channels_last` at initialization, after layers are replaced.

    When to use it:
        For convolutional networks on accelerators with matrix units in half precision, and on CPUs. It combines with
        every other method.

    When not to:
        For models without 2-d convolutions, and if custom operations copy tensors back to contiguous format in every
        step.

    How to choose:
        There are no options.

    Cost:
        No additional computation. The speedup depends on the kernels; measure a few steps.

    >>> ChannelsLast()
    ChannelsLast()
    """

    __traits__ = Traits(
        slot=Slot.PRECISION,
        sharding=Sharding.FULL_WEIGHTS,
        sharding_reason="torch shards only weights in contiguous memory format.",
        why_not_neutral="it has no setting; the kernels of another memory format round differently",
    )

    def init(self, state: State, logger: Logger) -> None:
        """Convert the weights."""
        apply_channels_last(state.model)
