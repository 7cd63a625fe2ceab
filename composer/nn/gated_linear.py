"""Gated linear layer (GLU): the first layer and activation of a gated feed-forward network.

    h = act(W_g x + b_g) * (W_v x + b_v)

Paper: GLU Variants Improve Transformer, Shazeer 2020, https://arxiv.org/abs/2002.05202
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from composer.nn.factorized import FactorizedLinear

__all__ = ["GatedLinear"]


class GatedLinear(nn.Module):
    """A linear layer whose output is multiplied by an activated gate: ``act(W_g x + b_g) * (W_v x + b_v)``.

    Args:
        in_features: Features of the input.
        out_features: Features of the output.
        act_fn: The activation of the gate, a module or function of one tensor.
        gated_layer_bias: Whether the gate has a bias b_g.
        non_gated_layer_bias: Whether the value has a bias b_v.
        device: The device of the parameters.
        dtype: The dtype of the parameters.

    >>> layer = GatedLinear(2, 3, nn.ReLU())
    >>> layer(torch.ones(1, 2)).shape
    torch.Size([1, 3])

    Paper: https://arxiv.org/abs/2002.05202 (Shazeer 2020)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        act_fn: Callable[[Tensor], Tensor],
        gated_layer_bias: bool = False,
        non_gated_layer_bias: bool = False,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(in_features, out_features, gated_layer_bias, device, dtype)
        self.value = nn.Linear(in_features, out_features, non_gated_layer_bias, device, dtype)
        self.act_fn = act_fn

    @staticmethod
    def from_linear(
        linear: Any,
        act_fn: Callable[[Tensor], Tensor],
        gated_layer_bias: bool = False,
        non_gated_layer_bias: bool = False,
    ) -> GatedLinear:
        """Make the gated version of a linear layer that precedes an activation.

        The gate keeps the weights, since it feeds the activation; the value gets random weights of the same standard
        deviation, and a bias of zero.

        Args:
            linear: An ``nn.Linear``, the ``Conv1D`` of GPT-2, whose weight is transposed, or a
                :class:`.FactorizedLinear`, whose gated version consists of two such layers.
            act_fn: The activation.
            gated_layer_bias: Whether the gate has a bias, that of the layer.
            non_gated_layer_bias: Whether the value has a bias.

        >>> linear = nn.Linear(2, 3)
        >>> GatedLinear.from_linear(linear, torch.relu).gate.weight is linear.weight
        True
        """
        if isinstance(linear, FactorizedLinear):
            return _from_factorized(linear, act_fn, gated_layer_bias, non_gated_layer_bias)
        weight, bias = linear.weight, linear.bias
        if not isinstance(linear, nn.Linear):
            weight = nn.Parameter(weight.detach().T.contiguous(), requires_grad=weight.requires_grad)
        features, inputs = weight.shape
        # On the meta device at first, so that no random values are sampled that would be overwritten.
        new = GatedLinear(inputs, features, act_fn, gated_layer_bias, non_gated_layer_bias, torch.device("meta"))
        new.gate.weight = weight
        with torch.no_grad():
            root_mean_square = torch.linalg.vector_norm(weight) / math.sqrt(max(weight.numel(), 1))
            new.value.weight = nn.Parameter(torch.empty_like(weight).normal_().mul_(root_mean_square))
            if gated_layer_bias:
                new.gate.bias = bias if bias is not None else nn.Parameter(weight.new_zeros(features))
            if non_gated_layer_bias:
                new.value.bias = nn.Parameter(weight.new_zeros(features))
        return new.train(linear.training)

    def forward(self, input: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        return self.act_fn(self.gate(input)) * self.value(input)


def _from_factorized(
    linear: FactorizedLinear, act_fn: Callable[[Tensor], Tensor], gated_layer_bias: bool, non_gated_layer_bias: bool
) -> GatedLinear:
    """Make gate and value of the same rank as the layer; the gate computes what the layer did."""
    merged = nn.Linear(linear.in_features, linear.out_features, device=torch.device("meta"))
    merged.weight = nn.Parameter(linear.weight.detach())
    merged.bias = linear.expand.bias
    new = GatedLinear.from_linear(merged, act_fn, gated_layer_bias, non_gated_layer_bias)
    for name in ("gate", "value"):
        thin = FactorizedLinear.from_linear(getattr(new, name), latent_features=linear.latent_features)
        setattr(new, name, thin)
    return new.train(linear.training)
