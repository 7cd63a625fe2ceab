"""The first values of a model of transformers that was made without any, on the meta device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from composer.models._adapters import has_adapters

__all__ = ["give_first_values"]


@torch.no_grad()
def give_first_values(model: nn.Module, module: nn.Module) -> None:
    """Give a module the values that transformers gives it in a new model.

    Args:
        model: The model of transformers that has it.
        module: The module; its own weights and buffers are where they are to be, those of its parts have values.

    Raises:
        ValueError: The model does not tell how a weight of the module is made, or has adapters, which are made to
            change trained weights.

    >>> from transformers import GPT2Config, GPT2Model
    >>> with torch.device("meta"):
    ...     model = GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=2))
    >>> norm = model.ln_f.to_empty(device="cpu")
    >>> give_first_values(model, norm)
    >>> norm.weight
    Parameter containing:
    tensor([1., 1., 1., 1., 1., 1., 1., 1.], requires_grad=True)
    """
    if has_adapters(model):
        raise ValueError(
            "A model with adapters needs trained weights, but has none on the meta device. Load them first."
        )
    own = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    numbers = {name: tensor for name, tensor in own.items() if tensor.is_floating_point()}
    for tensor in numbers.values():
        tensor.fill_(torch.nan)
    # A part that is a model of its own, such as the text tower of CLIP, has rules of its own.
    holders: list[Any] = [
        part for part in model.modules() if hasattr(part, "_init_weights") and module in set(part.modules())
    ]
    if holders:
        holders[-1]._init_weights(module)
    for name, tensor in numbers.items():
        if tensor.isnan().any():
            raise ValueError(
                f"{type(model).__name__} does not tell how {name} of a {type(module).__name__} is made, which is on "
                f"the meta device. Make the model outside of torch.device('meta')."
            )
