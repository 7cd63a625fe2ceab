"""Factorize: split each wide layer into two thin ones.

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

from composer._text import non_negative, positive
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
    """Split the wide layers of a model into two thin ones, in place.

        W ~ Wa Wb            a linear layer to few features and one from there;
                             a convolution to few channels and a 1 x 1 convolution

    The new weights are the best such product (the singular value decomposition), so that a trained model goes on from
    where it was, and a new one begins as the paper recommends. Layers stay that would need as much arithmetic split.

    It pays where wide layers dominate the time, and costs accuracy: on convolutional networks more than it gains, as a
    rule. Weight decay acts more strongly on a product; lower it if accuracy suffers.

    Args:
        model: The model.
        factorize_convs: Whether convolutions are split.
        factorize_linears: Whether linear layers are split.
        min_channels: Convolutions with fewer input or output channels stay.
        latent_channels: Channels in between; below 1 a share of the smaller of those before and after.
        min_features: Linear layers with fewer input or output features stay.
        latent_features: Features in between; below 1 a share of the smaller of those before and after.
        optimizers: Those of the model, which get the new weights in place of the old, without state.

    Returns:
        The model itself.

    Raises:
        ValueError: A size is out of its range.

    >>> model = apply_factorization(nn.Sequential(nn.Linear(512, 512)))
    >>> model[0].reduce, model[0].expand
    (Linear(in_features=512, out_features=128, bias=False), Linear(in_features=128, out_features=512, bias=True))

    Paper: https://arxiv.org/abs/2105.01029 (Khodak et al. 2021)
    """
    _check(min_channels, latent_channels, min_features, latent_features)
    kept = _not_to_split(model)

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
        kinds = [f"Conv2d with at least {min_channels} input and output channels"] if factorize_convs else []
        kinds += [f"Linear with at least {min_features} input and output features"] if factorize_linears else []
        message = f"Factorize changes nothing: the model has no {', and no '.join(kinds)}, that would need less split."
        if not kinds:
            message = "Factorize changes nothing: factorize_convs and factorize_linears are both False."
        warnings.warn(message, NoEffectWarning, stacklevel=2)
    return model


class Factorize(Algorithm):
    """Applies :func:`apply_factorization` at the start.

    When to use it:
        Where wide linear layers or convolutions dominate the time, and to make a trained model smaller before
        fine-tuning it.

    When not to:
        In convolutional networks it costs more accuracy than it gains time, as a rule; and in networks of narrow
        layers nothing is split.

    How to choose:
        ``latent_features`` between a quarter and a half of the width. Raise ``min_channels`` and ``min_features`` to
        split only what takes the time. Lower the weight decay, which acts more strongly on a product.

    Cost:
        Splitting takes a singular value decomposition of each layer at the start. A layer of m by n then takes
        ``(m + n) * latent`` multiplications instead of ``m * n``.

    Args:
        factorize_convs: Whether convolutions are split.
        factorize_linears: Whether linear layers are split.
        min_channels: Convolutions with fewer input or output channels stay.
        latent_channels: Channels in between; below 1 a share of the smaller of those before and after.
        min_features: Linear layers with fewer input or output features stay.
        latent_features: Features in between; below 1 a share of the smaller of those before and after.

    Raises:
        ValueError: A size is out of its range.

    >>> Factorize(factorize_convs=False).latent_features
    128

    Paper: https://arxiv.org/abs/2105.01029 (Khodak et al. 2021)
    """

    __traits__ = Traits(
        slot=Slot.SURGERY,
        conflicts_with={
            "WeightStandardization": (
                "the first of two thin convolutions would be standardized without a norm behind it, and lose its "
                "scale. Leave out one of them."
            ),
        },
        sharding=Sharding.SAFE,
        sharding_reason="Layers are split before weights are divided.",
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
        _check(min_channels, latent_channels, min_features, latent_features)
        self.factorize_convs = factorize_convs
        self.factorize_linears = factorize_linears
        self.min_channels = min_channels
        self.latent_channels = latent_channels
        self.min_features = min_features
        self.latent_features = latent_features

    @staticmethod
    def required_on_load() -> bool:
        """Yes: the weights are others."""
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Split the layers and log how many there are."""
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


def _not_to_split(model: nn.Module) -> set[nn.Module]:
    """The layers that are split already, or whose weight is not theirs alone to change."""
    kept: set[nn.Module] = set()
    owner: dict[int, nn.Module] = {}
    for module in model.modules():
        if isinstance(module, FactorizedConv2d | FactorizedLinear):
            kept.update(module.modules())
        elif isinstance(module, nn.MultiheadAttention):
            kept.add(module.out_proj)  # it is read, not called
        elif is_parametrized(module):
            kept.add(module)
        for parameter in module.parameters(recurse=False):
            if owner.setdefault(id(parameter), module) is not module:
                kept.update((module, owner[id(parameter)]))
    return kept


def _check(
    min_channels: int,
    latent_channels: float,
    min_features: int,
    latent_features: float,
) -> None:
    non_negative("min_channels", min_channels)
    positive("latent_channels", latent_channels)
    non_negative("min_features", min_features)
    positive("latent_features", latent_features)
