"""Weight standardization: normalize each filter of a convolution to mean 0 and variance 1.

    W' = (W - mean(W)) / sqrt(var(W) + 1e-10)            for each output channel

Paper: Micro-Batch Training with Batch-Channel Normalization and Weight Standardization, Qiao et al. 2019,
https://arxiv.org/abs/1903.10520
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from composer._numbers import whole_number
from composer._text import plural
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["WeightStandardization", "WeightStandardizer", "apply_weight_standardization"]


class WeightStandardizer(nn.Module):
    """The parametrization, for :func:`torch.nn.utils.parametrize.register_parametrization`.

    >>> weight = WeightStandardizer()(torch.tensor([[[0.0, 2.0, 4.0, 6.0]]]))
    >>> weight.mean().item(), round(weight.square().mean().item(), 6)
    (0.0, 1.0)
    """

    __constants__ = ("eps",)
    eps = 1e-10

    def forward(self, weight: Tensor) -> Tensor:
        """Standardize the filters of a weight, (C_out, ...)."""
        # Layer norm is this formula as one kernel, and one more for the gradient.
        if weight.ndim == 4 and not weight.is_contiguous() and weight.is_contiguous(memory_format=torch.channels_last):
            pixels = weight.permute(0, 2, 3, 1)
            return F.layer_norm(pixels, pixels.shape[1:], eps=self.eps).permute(0, 3, 1, 2)
        return F.layer_norm(weight, weight.shape[1:], eps=self.eps)


def apply_weight_standardization(module: nn.Module, n_last_layers_ignore: int = 0) -> int:
    """Standardize the weights of a model's convolutions in every forward pass, in place.

        W' = (W - mean(W)) / sqrt(var(W) + 1e-10)            for each output channel

    The loss surface becomes smoother, so that training is faster and more accurate, especially with group norm or small
    batches, for which batch norm is weak. It costs little, since weights are few compared to activations. It requires a
    normalization layer after the convolution: without one the scale of the outputs is lost, as in the last layers of a
    model that predicts numbers or pixels; exclude those.

    The parameters are the same objects, under names with ``parametrizations``; filters of one element, whose variance
    is zero, are unchanged.

    Args:
        module: The model.
        n_last_layers_ignore: Number of convolutions at the end, in registration order, to leave unchanged.

    Returns:
        The number of changed layers.

    Raises:
        ValueError: ``n_last_layers_ignore`` is negative.

    >>> conv = nn.Conv2d(8, 4, 3)
    >>> apply_weight_standardization(conv), conv.weight.mean((1, 2, 3)).abs().max().item() < 1e-6
    (1, True)

    Paper: https://arxiv.org/abs/1903.10520 (Qiao et al. 2019)
    """
    n_last_layers_ignore = whole_number("n_last_layers_ignore", n_last_layers_ignore)
    convs = [layer for layer in module.modules() if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    chosen = [layer for layer in convs[: max(len(convs) - n_last_layers_ignore, 0)] if _is_plain(layer)]
    for layer in chosen:
        parametrize.register_parametrization(layer, "weight", WeightStandardizer())
    if not chosen:
        except_last = f" apart from the last {n_last_layers_ignore}" if n_last_layers_ignore else ""
        message = (
            f"WeightStandardization has no effect: of the {plural(len(convs), 'convolution')} (Conv1d, Conv2d, "
            f"Conv3d) in the model,{except_last} none is left that is not standardized already."
        )
        warnings.warn(message, NoEffectWarning, stacklevel=2)
    return len(chosen)


class WeightStandardization(Algorithm):
    """Applies :func:`apply_weight_standardization` at initialization.

    When to use it:
        For convolutional networks with group norm, or with batch norm at small batches, for which it is weak.

    When not to:
        Without a norm after the convolutions: the scale of the outputs is lost. Exclude the last layers of models
        that predict numbers or pixels.

    How to choose:
        ``n_last_layers_ignore`` 0 for classification, 15 for DeepLabv3: the number of convolutions at the end without
        a norm after them.

    Cost:
        A normalization of each weight in each forward pass, cheap compared to the convolution, since weights are few
        compared to activations.

    Args:
        n_last_layers_ignore: Number of convolutions at the end to leave unchanged; 15 is usual for DeepLabv3, 0 for
            classification.

    Raises:
        ValueError: ``n_last_layers_ignore`` is negative.

    >>> WeightStandardization()
    WeightStandardization(n_last_layers_ignore=0)

    Paper: https://arxiv.org/abs/1903.10520 (Qiao et al. 2019)
    """

    __traits__ = Traits(
        slot=Slot.SURGERY,
        sharding=Sharding.SAFE,
        sharding_reason="Weights are unsharded before they are used.",
        neutral={"n_last_layers_ignore": 10**9},
    )

    def __init__(self, n_last_layers_ignore: int = 0) -> None:
        self.n_last_layers_ignore = whole_number("n_last_layers_ignore", n_last_layers_ignore)

    @staticmethod
    def required_on_load() -> bool:
        """Return True: standardized weights have different names."""
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Standardize the layers and log their number."""
        number = apply_weight_standardization(state.model, self.n_last_layers_ignore)
        logger.log_hyperparameters({"WeightStandardization/num_weights_standardized": number})


def _is_plain(layer: nn.Module) -> bool:
    """Return whether the weights of a convolution can be standardized and are not yet."""
    if parametrize.is_parametrized(layer, "weight"):
        return not any(isinstance(submodule, WeightStandardizer) for submodule in layer.modules())
    weight = layer.weight
    return isinstance(weight, Tensor) and weight[0].numel() > 1
