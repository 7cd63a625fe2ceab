"""Deferred initialization: initialize the weights of a transformers model that was created on the meta device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from composer.models._adapters import has_adapters

__all__ = ["initialize_parameters"]


@torch.no_grad()
def initialize_parameters(model: nn.Module, module: nn.Module) -> None:
    """Initialize the direct parameters and buffers of a module as transformers does in a new model.

    Args:
        model: The transformers model that contains the module.
        module: The module; its parameters and buffers are on their device, and its submodules are initialized.

    Raises:
        ValueError: The model has no initialization for a weight of the module, or it has adapters, which need trained
            weights.

    >>> from transformers import GPT2Config, GPT2Model
    >>> with torch.device("meta"):
    ...     model = GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=2))
    >>> norm = model.ln_f.to_empty(device="cpu")
    >>> initialize_parameters(model, norm)
    >>> norm.weight
    Parameter containing:
    tensor([1., 1., 1., 1., 1., 1., 1., 1.], requires_grad=True)
    """
    if has_adapters(model):
        raise ValueError(
            "A model with adapters needs trained weights, but it is on the meta device. Load its weights first."
        )
    direct = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    floating = {name: tensor for name, tensor in direct.items() if tensor.is_floating_point()}
    for tensor in floating.values():
        tensor.fill_(torch.nan)
    # A submodel, such as the text tower of CLIP, has its own initialization rules.
    owners: list[Any] = [
        submodel
        for submodel in model.modules()
        if hasattr(submodel, "_init_weights") and module in set(submodel.modules())
    ]
    if owners:
        owners[-1]._init_weights(module)
    for name, tensor in floating.items():
        if tensor.isnan().any():
            raise ValueError(
                f"{type(model).__name__} does not initialize {name} of a {type(module).__name__}, which is on the meta "
                f"device. Create the model outside of torch.device('meta')."
            )
