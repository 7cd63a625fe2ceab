"""BlurPool: anti-aliasing for strided convolutions and max-pooling, so that features shift with the image.

Paper: Making Convolutional Networks Shift-Invariant Again, Zhang 2019, https://arxiv.org/abs/1904.11486
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from torch import nn
from torch.optim import Optimizer

from composer._numbers import whole_number
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.nn.blurpool import BlurConv2d, BlurMaxPool2d, BlurPool2d, blur_2d, blurmax_pool2d
from composer.surgery import ReplacementFunction, count_module_instances, replace_module_classes
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["BlurConv2d", "BlurMaxPool2d", "BlurPool", "BlurPool2d", "apply_blurpool", "blur_2d", "blurmax_pool2d"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def apply_blurpool(
    model: ModuleT,
    replace_convs: bool = True,
    replace_maxpools: bool = True,
    blur_first: bool = True,
    min_channels: int = 16,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
) -> ModuleT:
    """Add an anti-aliasing blur to the strided layers of a model, in place.

    A max-pooling layer with stride becomes a :class:`.BlurMaxPool2d`, a convolution with stride a
    :class:`.BlurConv2d` around the same weights. Layers without stride and already blurred layers are unchanged.

    Args:
        model: The model.
        replace_convs: Whether convolutions are blurred.
        replace_maxpools: Whether max-pooling layers are blurred.
        blur_first: Whether to blur before a convolution rather than after it. Blurring after it is slightly better in
            the paper, but runs the convolution at every pixel.
        min_channels: Convolutions with fewer input channels, such as the first of a model, are unchanged.
        optimizers: The model's optimizers. Parameters stay the same objects, so the optimizers do not change.

    Returns:
        The model itself.

    Raises:
        ValueError: No type of layer is selected, or ``min_channels`` is negative.

    >>> model = nn.Sequential(nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.MaxPool2d(2))
    >>> [type(layer).__name__ for layer in apply_blurpool(model)]
    ['BlurConv2d', 'BlurMaxPool2d']

    Paper: https://arxiv.org/abs/1904.11486 (Zhang 2019)
    """
    _check_choice(replace_convs, replace_maxpools)
    min_channels = whole_number("min_channels", min_channels)
    blurred = {module.conv for module in model.modules() if isinstance(module, BlurConv2d)}

    def blur_conv(module: nn.Conv2d, module_index: int) -> BlurConv2d | None:
        if module in blurred or max(module.stride) == 1 or module.in_channels < min_channels:
            return None
        return BlurConv2d.from_conv2d(module, module_index, blur_first)

    def blur_maxpool(module: nn.MaxPool2d, module_index: int) -> BlurMaxPool2d | None:
        stride = module.stride if isinstance(module.stride, tuple) else (module.stride,)
        if max(stride) == 1 or module.return_indices:
            return None
        return BlurMaxPool2d.from_maxpool2d(module, module_index)

    policies: dict[type[nn.Module], ReplacementFunction] = {}
    if replace_maxpools:
        policies[nn.MaxPool2d] = blur_maxpool
    if replace_convs:
        policies[nn.Conv2d] = blur_conv
    if not replace_module_classes(model, policies, optimizers):
        layers = [f"Conv2d with a stride and at least {min_channels} input channels"] if replace_convs else []
        layers += ["MaxPool2d with a stride"] if replace_maxpools else []
        message = f"BlurPool has no effect: the model has no {', and no '.join(layers)}, that is not blurred already."
        warnings.warn(message, NoEffectWarning, stacklevel=2)
    return model


class BlurPool(Algorithm):
    """Applies :func:`apply_blurpool` at initialization.

    When to use it:
        For convolutional image classifiers with strided layers, such as ResNets: they become more accurate, and more
        stable when an image shifts by a pixel.

    When not to:
        For networks without strided convolutions or max-pooling, and for vision transformers, whose patches do not
        overlap. It also slows down inference.

    How to choose:
        The defaults suit ResNets. ``blur_first=False`` is slightly better in the paper but runs the convolution at
        every pixel. Lower ``min_channels`` only to blur the first layers too.

    Cost:
        A depthwise 3 x 3 convolution before each strided layer, in training and in inference. It adds no parameters.

    Args:
        replace_convs: Whether convolutions are blurred.
        replace_maxpools: Whether max-pooling layers are blurred.
        blur_first: Whether to blur before a convolution rather than after it.
        min_channels: Convolutions with fewer input channels are unchanged.

    Raises:
        ValueError: No type of layer is selected, or ``min_channels`` is negative.

    >>> BlurPool()
    BlurPool(replace_convs=True, replace_maxpools=True, blur_first=True, min_channels=16)

    Paper: https://arxiv.org/abs/1904.11486 (Zhang 2019)
    """

    __traits__ = Traits(
        slot=Slot.SURGERY,
        sharding=Sharding.SAFE,
        sharding_reason="Layers are replaced before parameters are sharded.",
        neutral={"replace_convs": True, "replace_maxpools": False, "min_channels": 10**9},
    )

    def __init__(
        self,
        replace_convs: bool = True,
        replace_maxpools: bool = True,
        blur_first: bool = True,
        min_channels: int = 16,
    ) -> None:
        _check_choice(replace_convs, replace_maxpools)
        self.replace_convs = replace_convs
        self.replace_maxpools = replace_maxpools
        self.blur_first = blur_first
        self.min_channels = whole_number("min_channels", min_channels)

    @staticmethod
    def required_on_load() -> bool:
        """Return True: blurred convolutions have different parameter names."""
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Replace the layers and log their number."""
        apply_blurpool(
            state.model,
            self.replace_convs,
            self.replace_maxpools,
            self.blur_first,
            self.min_channels,
            state.optimizers,
        )
        logger.log_hyperparameters(
            {
                "blurpool/num_blurpool_layers": count_module_instances(state.model, BlurMaxPool2d),
                "blurpool/num_blurconv_layers": count_module_instances(state.model, BlurConv2d),
            }
        )


def _check_choice(replace_convs: bool, replace_maxpools: bool) -> None:
    if not (replace_convs or replace_maxpools):
        raise ValueError("replace_convs and replace_maxpools are both False: enable one of them, or omit BlurPool.")
