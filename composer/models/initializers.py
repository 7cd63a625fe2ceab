"""Weight initialization: Kaiming, Xavier, batch norm and bias initializers by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from enum import StrEnum

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from composer._text import member_of

__all__ = ["Initializer", "ensure_initializers", "initialize"]


class Initializer(StrEnum):
    """A weight initialization. Members are found by value or name in any case.

    ``KAIMING_NORMAL`` and ``KAIMING_UNIFORM`` sample the weights of linear layers and convolutions with variance
    2 / fan_in (He et al. 2015), ``XAVIER_NORMAL`` and ``XAVIER_UNIFORM`` with variance 2 / (fan_in + fan_out) (Glorot
    and Bengio 2010). ``BN_UNIFORM`` samples the scales of batch norms from [0, 1], ``BN_ONES`` sets them to 1, and both
    set the shifts to 0. ``LINEAR_LOG_CONSTANT_BIAS`` sets the biases of linear layers to -log(number of outputs), so
    that sigmoid outputs start at about the frequency of a class.

    Raises:
        ValueError: The name is unknown.

    >>> Initializer("kaiming_normal")
    <Initializer.KAIMING_NORMAL: 'kaiming_normal'>

    Papers: https://arxiv.org/abs/1502.01852, https://proceedings.mlr.press/v9/glorot10a.html
    """

    KAIMING_NORMAL = "kaiming_normal"
    KAIMING_UNIFORM = "kaiming_uniform"
    XAVIER_NORMAL = "xavier_normal"
    XAVIER_UNIFORM = "xavier_uniform"
    BN_UNIFORM = "bn_uniform"
    BN_ONES = "bn_ones"
    LINEAR_LOG_CONSTANT_BIAS = "linear_log_constant_bias"

    @classmethod
    def _missing_(cls, value: object) -> Initializer:
        return member_of(cls, "initializer", value)

    def get_initializer(self) -> Callable[[nn.Module], None]:
        """Return a function for :meth:`torch.nn.Module.apply`, which ignores modules of other types.

        >>> layer = nn.Linear(3, 4).apply(Initializer.LINEAR_LOG_CONSTANT_BIAS.get_initializer())
        >>> layer.bias.data
        tensor([-1.3863, -1.3863, -1.3863, -1.3863])
        """
        return _RULES[self]


def initialize(module: nn.Module, initializers: Iterable[Initializer | str] | Initializer | str | None) -> None:
    """Apply initializers in order to a module and its submodules, in place.

    Args:
        module: The module to initialize.
        initializers: One or several initializers or their names; None for none.

    Raises:
        ValueError: A name is unknown.

    >>> layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    >>> initialize(layers, ["xavier_uniform", "bn_ones"])
    """
    for each in ensure_initializers(initializers):
        module.apply(each.get_initializer())


def ensure_initializers(initializers: Iterable[Initializer | str] | Initializer | str | None) -> list[Initializer]:
    """Return initializers as a list of members.

    Args:
        initializers: One or several initializers or their names; None for none.

    Raises:
        ValueError: A name is unknown.

    >>> ensure_initializers("bn_ones")
    [<Initializer.BN_ONES: 'bn_ones'>]
    """
    several = [initializers] if isinstance(initializers, str) else initializers or ()
    return [Initializer(each) for each in several]


def _of_weights(fill: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], None]:
    """Fill the weights of linear layers and convolutions."""

    def rule(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            fill(module.weight)

    return rule


def _of_batch_norm(fill: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], None]:
    """Fill the scales of batch norms that have any."""

    def rule(module: nn.Module) -> None:
        if isinstance(module, _BatchNorm) and module.affine:
            fill(module.weight)
            nn.init.zeros_(module.bias)

    return rule


def _set_log_bias(module: nn.Module) -> None:
    """Set the bias of each output of a linear layer to -log(number of outputs)."""
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.constant_(module.bias, -math.log(module.out_features))


_RULES: dict[Initializer, Callable[[nn.Module], None]] = {
    Initializer.KAIMING_NORMAL: _of_weights(nn.init.kaiming_normal_),
    Initializer.KAIMING_UNIFORM: _of_weights(nn.init.kaiming_uniform_),
    Initializer.XAVIER_NORMAL: _of_weights(nn.init.xavier_normal_),
    Initializer.XAVIER_UNIFORM: _of_weights(nn.init.xavier_uniform_),
    Initializer.BN_UNIFORM: _of_batch_norm(nn.init.uniform_),
    Initializer.BN_ONES: _of_batch_norm(nn.init.ones_),
    Initializer.LINEAR_LOG_CONSTANT_BIAS: _set_log_bias,
}
