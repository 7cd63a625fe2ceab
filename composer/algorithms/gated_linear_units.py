"""Gated linear units: a feed-forward network in which one projection gates another.

    W_o (act(W_g x) * (W_v x))          in place of          W_o act(W_i x)

Better per step than the plain network; it has half as many weights again, so per parameter compare with a network
of two thirds the width.

Paper: GLU Variants Improve Transformer, Shazeer 2020, https://arxiv.org/abs/2002.05202
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.nn.gated_linear import GatedLinear
from composer.surgery import update_params_in_optimizer
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["GatedLinearUnits", "apply_gated_linear_units", "register_feed_forward"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class _Places(NamedTuple):
    """Where a module has the linear layer before its activation, and the activation."""

    linear: str
    activation: str


_registered: dict[type[nn.Module], _Places] = {
    nn.TransformerEncoderLayer: _Places("linear1", "activation"),
    nn.TransformerDecoderLayer: _Places("linear1", "activation"),
}
# By name, since the package may be absent; its models of one kind name their parts alike.
_IN_TRANSFORMERS = {"Intermediate": _Places("dense", "intermediate_act_fn"), "GPT2MLP": _Places("c_fc", "act")}


def register_feed_forward(cls: type[nn.Module], linear: str, activation: str) -> None:
    """Let :func:`apply_gated_linear_units` change modules of a class of your own.

    The module has to compute ``self.activation(self.linear(x))``, in which only the names differ.

    Args:
        cls: The class; subclasses follow.
        linear: Name of its attribute that holds the linear layer before the activation.
        activation: Name of its attribute that holds the activation, a module or function.

    Raises:
        TypeError: ``cls`` is no class of modules.

    >>> class FeedForward(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.up, self.act, self.down = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)
    ...
    ...     def forward(self, x):
    ...         return self.down(self.act(self.up(x)))
    >>> register_feed_forward(FeedForward, linear="up", activation="act")
    >>> apply_gated_linear_units(FeedForward(), optimizers=None).up
    GatedLinear(
      (gate): Linear(in_features=4, out_features=8, bias=False)
      (value): Linear(in_features=4, out_features=8, bias=False)
      (act_fn): ReLU()
    )
    """
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise TypeError(f"cls must be a subclass of torch.nn.Module, but got {cls!r}.")
    _registered[cls] = _Places(linear, activation)


def apply_gated_linear_units(
    model: ModuleT,
    optimizers: Optimizer | Sequence[Optimizer] | None,
    act_fn: Callable[[Tensor], Tensor] | None = None,
    gated_layer_bias: bool = False,
    non_gated_layer_bias: bool = False,
) -> ModuleT:
    """Give the feed-forward networks of a model a gate, in place.

    In each, the linear layer before the activation becomes a :class:`.GatedLinear`, whose gate has the weights of the
    layer; all else stays. This works for the BERT kind and GPT-2 of ``transformers``, for
    ``nn.TransformerEncoderLayer`` and ``nn.TransformerDecoderLayer``, and for classes given to
    :func:`register_feed_forward`. Llama and its kin have gates from the start.

    Args:
        model: The model.
        optimizers: Those of the model, or None; the new weights enter the groups of the old.
        act_fn: The activation of the gates; that of each network by default. GELU and ReLU do best in the paper.
        gated_layer_bias: Whether the gate has a bias.
        non_gated_layer_bias: Whether the gated projection has a bias.

    Returns:
        The model itself.

    Raises:
        TypeError: ``act_fn`` cannot be called.

    >>> layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16)
    >>> type(apply_gated_linear_units(layer, optimizers=None).linear1).__name__
    'GatedLinear'

    Paper: https://arxiv.org/abs/2002.05202 (Shazeer 2020)
    """
    if act_fn is not None and not callable(act_fn):
        raise TypeError(f"act_fn must be a module or function of one tensor, but got {act_fn!r}.")
    changed = 0
    for module in list(model.modules()):
        places = _places(module)
        if places is None or isinstance(getattr(module, places.linear), GatedLinear):
            continue
        activation = copy.deepcopy(act_fn) if act_fn is not None else getattr(module, places.activation)
        old = getattr(module, places.linear)
        new = GatedLinear.from_linear(old, activation, gated_layer_bias, non_gated_layer_bias)
        setattr(module, places.linear, new)
        setattr(module, places.activation, nn.Identity())
        if optimizers is not None:
            update_params_in_optimizer(old.parameters(), new.parameters(), optimizers)
        changed += 1
    if changed:
        _leave_fused_path(model)
    else:
        classes = ", ".join(cls.__name__ for cls in _registered)
        warnings.warn(
            f"GatedLinearUnits changes nothing: the model has no feed-forward network without a gate of the BERT kind "
            f"or GPT-2 of transformers, nor of the classes {classes}. Register a class of your own with "
            f"composer.algorithms.gated_linear_units.register_feed_forward.",
            NoEffectWarning,
            stacklevel=2,
        )
    return model


class GatedLinearUnits(Algorithm):
    """Applies :func:`apply_gated_linear_units` at the start.

    When to use it:
        For transformers whose feed-forward networks have no gate (BERT and its kin, GPT-2, those of torch): better at
        the same number of steps.

    When not to:
        In Llama and its kin, which have gates from the start, and in fine-tuning: the new projection starts from
        random numbers.

    How to choose:
        Leave ``act_fn`` to the network; GELU and ReLU did best in the paper. Compare with a network of the same size:
        two thirds of the width.

    Cost:
        Half as many weights and operations again in the feed-forward networks.

    Args:
        act_fn: The activation of the gates; that of each network by default.
        gated_layer_bias: Whether the gate has a bias.
        non_gated_layer_bias: Whether the gated projection has a bias.

    Raises:
        TypeError: ``act_fn`` cannot be called.

    >>> GatedLinearUnits()
    GatedLinearUnits(act_fn=None, gated_layer_bias=False, non_gated_layer_bias=False)

    Paper: https://arxiv.org/abs/2002.05202 (Shazeer 2020)
    """

    __traits__ = Traits(
        slot=Slot.SURGERY,
        sharding=Sharding.SAFE,
        sharding_reason="Layers are replaced before weights are divided.",
    )

    def __init__(
        self,
        act_fn: Callable[[Tensor], Tensor] | None = None,
        gated_layer_bias: bool = False,
        non_gated_layer_bias: bool = False,
    ) -> None:
        if act_fn is not None and not callable(act_fn):
            raise TypeError(f"act_fn must be a module or function of one tensor, but got {act_fn!r}.")
        self.act_fn = act_fn
        self.gated_layer_bias = gated_layer_bias
        self.non_gated_layer_bias = non_gated_layer_bias

    @staticmethod
    def required_on_load() -> bool:
        """Yes: the gates are weights of their own."""
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Change the networks."""
        apply_gated_linear_units(
            state.model, state.optimizers, self.act_fn, self.gated_layer_bias, self.non_gated_layer_bias
        )


def _places(module: nn.Module) -> _Places | None:
    """Where to find the parts of a feed-forward network; None for any other module."""
    for cls, places in _registered.items():
        if isinstance(module, cls):
            return places
    if type(module).__module__.startswith("transformers."):
        for ending, places in _IN_TRANSFORMERS.items():
            if type(module).__name__.endswith(ending) and all(hasattr(module, name) for name in places):
                return places
    return None


def _leave_fused_path(model: nn.Module) -> None:
    """Tell torch's Transformer that its activation is neither ReLU nor GELU now: its fused kernel knows no gate."""
    for module in model.modules():
        parts: Any = module
        if isinstance(module, nn.TransformerEncoderLayer) and isinstance(parts.linear1, GatedLinear):
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
