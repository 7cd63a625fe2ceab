"""Factorize: replace each wide layer by two low-rank layers.

Papers: Speeding up Convolutional Neural Networks with Low Rank Expansions, Jaderberg et al. 2014,
https://arxiv.org/abs/1405.3866; Initialization and Regularization of Factorized Neural Layers, Khodak et al. 2021,
https://arxiv.org/abs/2105.01029
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.optim import Optimizer

from composer._numbers import positive, whole_number
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.nn.factorized import FactorizedConv2d, FactorizedLinear, factorizing_could_speedup
from composer.nn.low_rank import LowRankSolution, factorize_conv2d, factorize_matrix
from composer.surgery import ReplacementFunction, count_module_instances, replace_module_classes
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = [
    "Factorize",
    "FactorizedConv2d",
    "FactorizedLinear",
    "LowRankSolution",
    "apply_factorization",
    "factorize_conv2d",
    "factorize_matrix",
    "factorizing_could_speedup",
]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def apply_factorization(
    model: ModuleT,
    factorize_convs: bool = True,
    factorize_linears: bool = True,
    min_channels: int = 512,
    latent_channels: float = 0.25,
    min_features: int = 512,
    latent_features: float = 0.25,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
) -> ModuleT:
    """Split the wide layers of a model into two low-rank layers, in place.

        W ~ Wa Wb            a linear layer with few output features, then one back to full width;
                             a convolution with few output channels, then a 1 x 1 convolution

    The new weights are the best low-rank approximation (truncated SVD), so that a trained model keeps its function
    approximately and a new one starts as the paper recommends. Layers that would not get cheaper are unchanged.

    It pays off if wide layers dominate the time, and costs accuracy: on convolutional networks usually more than it
    gains. Weight decay acts more strongly on a product of weights; lower it if accuracy suffers.

    Args:
        model: The model.
        factorize_convs: Whether convolutions are split.
        factorize_linears: Whether linear layers are split.
        min_channels: Convolutions with fewer input or output channels are unchanged.
        latent_channels: Channels in between; below 1, a fraction of the smaller of input and output channels.
        min_features: Linear layers with fewer input or output features are unchanged.
        latent_features: Features in between; below 1, a fraction of the smaller of input and output features.
        optimizers: The model's optimizers; new parameters replace the old ones, without optimizer state.

    Returns:
        The model itself.

    Raises:
        ValueError: A size is out of range.

    >>> model = apply_factorization(nn.Sequential(nn.Linear(512, 512)))
    >>> model[0].reduce, model[0].expand
    (Linear(in_features=512, out_features=128, bias=False), Linear(in_features=128, out_features=512, bias=True))

    Paper: https://arxiv.org/abs/2105.01029 (Khodak et al. 2021)
    """
    min_channels = whole_number("min_channels", min_channels)
    positive("latent_channels", latent_channels)
    min_features = whole_number("min_features", min_features)
    positive("latent_features", latent_features)
    kept = _unsplittable_layers(model)

    def split_conv(module: nn.Conv2d, module_index: int) -> FactorizedConv2d | None:
        narrow = min(module.in_channels, module.out_channels) < min_channels
        if module in kept or narrow or not factorizing_could_speedup(module, latent_channels):
            return None
        return FactorizedConv2d.from_conv2d(module, module_index, latent_channels)

    def split_linear(module: nn.Linear, module_index: int) -> FactorizedLinear | None:
        narrow = min(module.in_features, module.out_features) < min_features
        if module in kept or narrow or not factorizing_could_speedup(module, latent_features):
            return None
        return FactorizedLinear.from_linear(module, module_index, latent_features)

    policies: dict[type[nn.Module], ReplacementFunction] = {}
    if factorize_convs:
        policies[nn.Conv2d] = split_conv
    if factorize_linears:
        policies[nn.Linear] = split_linear
    if not replace_module_classes(model, policies, optimizers):
        layers = [f"Conv2d with at least {min_channels} input and output channels"] if factorize_convs else []
        layers += [f"Linear with at least {min_features} input and output features"] if factorize_linears else []
        message = f"Factorize has no effect: the model has no {', and no '.join(layers)}, that would get cheaper."
        if not layers:
            message = "Factorize has no effect: factorize_convs and factorize_linears are both False."
        warnings.warn(message, NoEffectWarning, stacklevel=2)
    return model


class Factorize(Algorithm):
    """Applies :func:`apply_factorization` at initialization.

    When to use it:
        If wide linear layers or convolutions dominate the time, and to make a trained model smaller before
        fine-tuning it.

    When not to:
        For convolutional networks, which usually lose more accuracy than they gain time, and for networks of narrow
        layers, which are not split.

    How to choose:
        ``latent_features`` between a quarter and a half of the width. Raise ``min_channels`` and ``min_features`` to
        split only the slowest layers. Lower the weight decay, which acts more strongly on a product of weights.

    Cost:
        One singular value decomposition per layer at initialization. A layer of m by n then takes
        ``(m + n) * latent`` multiplications instead of ``m * n``.

    Args:
        factorize_convs: Whether convolutions are split.
        factorize_linears: Whether linear layers are split.
        min_channels: Convolutions with fewer input or output channels are unchanged.
        latent_channels: Channels in between; below 1, a fraction of the smaller of input and output channels.
        min_features: Linear layers with fewer input or output features are unchanged.
        latent_features: Features in between; below 1, a fraction of the smaller of input and output features.

    Raises:
        ValueError: A size is out of range.

    >>> Factorize(factorize_convs=False).latent_features
    128

    Paper: https://arxiv.org/abs/2105.01029 (Khodak et al. 2021)
    """

    __traits__ = Traits(
        slot=Slot.SURGERY,
        conflicts_with={
            "WeightStandardization": (
                "the first of the two factorized convolutions would be standardized without a norm after it, and lose "
                "its scale. Omit one of them."
            ),
        },
        sharding=Sharding.SAFE,
        sharding_reason="Layers are split before parameters are sharded.",
        neutral={"min_channels": 10**9, "min_features": 10**9},
    )

    def __init__(
        self,
        factorize_convs: bool = True,
        factorize_linears: bool = True,
        min_channels: int = 256,
        latent_channels: float = 0.25,
        min_features: int = 256,
        latent_features: float = 128,
    ) -> None:
        self.factorize_convs = factorize_convs
        self.factorize_linears = factorize_linears
        self.min_channels = whole_number("min_channels", min_channels)
        self.latent_channels = positive("latent_channels", latent_channels)
        self.min_features = whole_number("min_features", min_features)
        self.latent_features = positive("latent_features", latent_features)

    @staticmethod
    def required_on_load() -> bool:
        """Return True: the parameters differ."""
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Split the layers and log their number."""
        apply_factorization(
            state.model,
            self.factorize_convs,
            self.factorize_linears,
            self.min_channels,
            self.latent_channels,
            self.min_features,
            self.latent_features,
            state.optimizers,
        )
        if self.factorize_convs:
            number = count_module_instances(state.model, FactorizedConv2d)
            logger.log_hyperparameters({"factorize/num_conv2d_replacements": number})
        if self.factorize_linears:
            number = count_module_instances(state.model, FactorizedLinear)
            logger.log_hyperparameters({"factorize/num_linear_replacements": number})


def _unsplittable_layers(model: nn.Module) -> set[nn.Module]:
    """Return layers that are already split, or that share their weight with another module."""
    kept: set[nn.Module] = set()
    owner: dict[int, nn.Module] = {}
    for module in model.modules():
        if isinstance(module, FactorizedConv2d | FactorizedLinear):
            kept.update(module.modules())
        elif isinstance(module, nn.MultiheadAttention):
            kept.add(module.out_proj)  # its weight is read directly, its forward is not called
        elif is_parametrized(module):
            kept.add(module)
        for parameter in module.parameters(recurse=False):
            if owner.setdefault(id(parameter), module) is not module:
                kept.update((module, owner[id(parameter)]))
    return kept
