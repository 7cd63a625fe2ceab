"""Channels last: keep images and convolution weights with the channels of a pixel side by side in memory.

The same is computed; the convolution kernels for this order are faster on CPUs and on accelerators with matrix units.
See https://pytorch.org/tutorials/intermediate/memory_format_tutorial.html
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
    """Store the 4-dimensional weights of a model in channels-last order, in place.

    Shapes, values and optimizers stay as they are. Convolutions then give channels-last outputs, so that a model
    converts its input once.

    Args:
        model: The model.

    Returns:
        The model itself.

    >>> model = apply_channels_last(torch.nn.Conv2d(8, 4, 3))
    >>> model.weight.is_contiguous(memory_format=torch.channels_last)
    True
    """
    if not any(parameter.ndim == 4 for parameter in model.parameters()):
        message = "ChannelsLast changes nothing: the model has no 4-dimensional weight, such as that of a Conv2d."
        warnings.warn(message, NoEffectWarning, stacklevel=2)
    return model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


class ChannelsLast(Algorithm):
    """Applies :func:`apply_channels_last` at the start, after layers were replaced.

    When to use it:
        For convolutional networks on accelerators with matrix units in half precision, and on CPUs. It goes with
        every other method.

    When not to:
        In models without 2-d convolutions, and where operations of your own copy back to the usual order in every
        step.

    How to choose:
        There is nothing to choose.

    Cost:
        Nothing is computed that was not before. What it saves depends on the kernels; measure a few steps.

    >>> ChannelsLast()
    ChannelsLast()
    """

    __traits__ = Traits(
        slot=Slot.PRECISION,
        sharding=Sharding.FULL_WEIGHTS,
        sharding_reason="torch divides only weights in the usual order of memory.",
    )

    def init(self, state: State, logger: Logger) -> None:
        """Reorder the weights."""
        apply_channels_last(state.model)
