"""Squeeze-and-excitation: after each wide convolution, reweight the channels based on their means.

Paper: Squeeze-and-Excitation Networks, Hu et al. 2018, https://arxiv.org/abs/1709.01507
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from torch import nn
from torch.optim import Optimizer

from composer._numbers import positive, whole_number
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.nn.squeeze_excite import SqueezeExcite2d, SqueezeExciteConv2d
from composer.surgery import count_module_instances, replace_module_classes
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SqueezeExcite", "SqueezeExcite2d", "SqueezeExciteConv2d", "apply_squeeze_excite"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def apply_squeeze_excite(
    model: ModuleT,
    latent_channels: float = 64,
    min_channels: int = 128,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
) -> ModuleT:
    """Add a :class:`.SqueezeExcite2d` after each wide convolution of a model, in place.

        y = x * sigmoid(W2 relu(W1 mean(x)))            mean over the pixels, one weight for each channel

    Every pixel thus influences the features globally, with little arithmetic: accuracy rises at a small cost in time.
    Do not use it if latency matters most, or on models that already have such layers.

    Args:
        model: The model.
        latent_channels: Width of the hidden layer that computes the weights: channels, or below 1 a fraction of the
            output channels of the convolution.
        min_channels: Convolutions with fewer input or output channels are unchanged. On large images, narrow layers
            come early, where the reweighting takes longest and helps least; 512 is usual for ResNet-50 on ImageNet.
        optimizers: The model's optimizers; new parameters join the parameter group of the convolution.

    Returns:
        The model itself.

    Raises:
        ValueError: ``latent_channels`` is not positive, or ``min_channels`` is negative.

    >>> model = apply_squeeze_excite(nn.Sequential(nn.Conv2d(128, 256, 3)))
    >>> model[0].se
    SqueezeExcite2d(
      (squeeze): Linear(in_features=256, out_features=64, bias=False)
      (excite): Linear(in_features=64, out_features=256, bias=False)
    )

    Paper: https://arxiv.org/abs/1709.01507 (Hu et al. 2018)
    """
    positive("latent_channels", latent_channels)
    min_channels = whole_number("min_channels", min_channels)
    done = {part for module in model.modules() if isinstance(module, SqueezeExciteConv2d) for part in module.modules()}

    def squeeze_excite(module: nn.Conv2d, module_index: int) -> SqueezeExciteConv2d | None:
        if module in done or min(module.in_channels, module.out_channels) < min_channels:
            return None
        return SqueezeExciteConv2d.from_conv2d(module, module_index, latent_channels)

    if not replace_module_classes(model, {nn.Conv2d: squeeze_excite}, optimizers):
        message = (
            f"SqueezeExcite has no effect: the model has no Conv2d with at least {min_channels} input and output "
            f"channels that is not followed by a SqueezeExcite2d already."
        )
        warnings.warn(message, NoEffectWarning, stacklevel=2)
    return model


class SqueezeExcite(Algorithm):
    """Applies :func:`apply_squeeze_excite` at initialization.

    When to use it:
        For convolutional networks, if accuracy matters more than time.

    When not to:
        If speed matters: many small layers and a mean over all pixels after each wide convolution are slow on
        accelerators. Not for networks that already have such layers (EfficientNet, newer MobileNets).

    How to choose:
        ``latent_channels`` 64, or a fraction of 1/16 to 1/4 of the channels. Raise ``min_channels`` to add them only
        to the last, widest stages, where they cost least.

    Cost:
        Two small linear layers and two passes over the activations of each convolution; a few percent more parameters.

    Args:
        latent_channels: Width of the hidden layer: channels, or below 1 a fraction of the output channels.
        min_channels: Convolutions with fewer input or output channels are unchanged.

    Raises:
        ValueError: ``latent_channels`` is not positive, or ``min_channels`` is negative.

    >>> SqueezeExcite()
    SqueezeExcite(latent_channels=64, min_channels=128)

    Paper: https://arxiv.org/abs/1709.01507 (Hu et al. 2018)
    """

    __traits__ = Traits(
        slot=Slot.SURGERY,
        sharding=Sharding.SAFE,
        sharding_reason="Layers are replaced before parameters are sharded.",
        neutral={"min_channels": 10**9},
    )

    def __init__(self, latent_channels: float = 64, min_channels: int = 128) -> None:
        self.latent_channels = positive("latent_channels", latent_channels)
        self.min_channels = whole_number("min_channels", min_channels)

    @staticmethod
    def required_on_load() -> bool:
        """Return True: there are new parameters, and those of the convolutions are renamed."""
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Add the layers and log their number."""
        apply_squeeze_excite(state.model, self.latent_channels, self.min_channels, state.optimizers)
        number = count_module_instances(state.model, SqueezeExciteConv2d)
        logger.log_hyperparameters({"squeeze_excite/num_squeeze_excite_layers": number})
