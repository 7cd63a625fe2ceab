"""NEFTune: add noise to the token embeddings while fine-tuning a language model.

    x' = x + alpha / sqrt(L * d) * u            u uniform in [-1, 1], for L tokens of d features

The model memorizes less from few examples, and its answers in conversation improve.

Paper: NEFTune: Noisy Embeddings Improve Instruction Finetuning, Jain et al. 2023, https://arxiv.org/abs/2310.05914
"""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from composer._numbers import non_negative
from composer._text import did_you_mean
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["NEFTune", "add_embedding_noise"]


def add_embedding_noise(embeddings: Tensor, alpha: float = 5.0, mask: Tensor | None = None) -> Tensor:
    """Add uniform noise whose expected norm does not depend on the number of tokens or features.

        x' = x + alpha / sqrt(L * d) * u            u uniform in [-1, 1]

    Args:
        embeddings: The token embeddings, (B, L, d) or (L, d), of a floating dtype.
        alpha: Strength of the noise, 0 (off) or greater; 5 to 15 in the paper.
        mask: Attention mask, (B, L), 1 or True for tokens that are not padding. Padding then gets no noise and does
            not count in L.

    Raises:
        ValueError: ``alpha`` is negative, or the shapes are not as described.

    >>> noisy = add_embedding_noise(torch.zeros(1, 100, 4), alpha=5.0)
    >>> bool(noisy.abs().max() <= 5 / 400**0.5)
    True

    Paper: https://arxiv.org/abs/2310.05914 (Jain et al. 2023)
    """
    non_negative("alpha", alpha)
    if embeddings.ndim < 2:
        raise ValueError(f"embeddings must be of the shape (B, L, d), but are of the shape {tuple(embeddings.shape)}.")
    if alpha == 0:
        return embeddings
    length, features = embeddings.shape[-2:]
    noise = torch.rand_like(embeddings).mul_(2).sub_(1)
    if mask is None:
        return torch.add(embeddings, noise, alpha=alpha / math.sqrt(max(length * features, 1)))
    if mask.shape != embeddings.shape[:-1]:
        raise ValueError(f"mask must be of the shape {tuple(embeddings.shape[:-1])}, but is {tuple(mask.shape)}.")
    scale = alpha * mask / (mask.sum(-1, keepdim=True).clamp(min=1) * features).sqrt()
    return embeddings + noise.mul_(scale.unsqueeze(-1).to(noise.dtype))


class NEFTune(Algorithm):
    """Applies :func:`add_embedding_noise` to the output of the token embedding, in training.

    It uses a forward hook, which acts while the model is in training mode and :class:`.Trainer` trains; evaluation and
    weights are unaffected. All L tokens of a row count, including padding, as is usual.

    When to use it:
        For fine-tuning a language model on some thousand examples, especially instructions.

    When not to:
        For pretraining, where it only slows learning.

    How to choose:
        ``alpha`` 5 to 15, as in the paper. Set ``embedding`` if the model has several embeddings.

    Cost:
        Random values of the size of the embeddings, once per microbatch.

    Args:
        alpha: Strength of the noise, 0 (off) or greater.
        embedding: Name of the embedding in the model, as in ``model.get_submodule``. By default that of
            ``get_input_embeddings()``, which models of ``transformers`` have, or the only ``nn.Embedding``.

    Raises:
        ValueError: ``alpha`` is negative; at initialization, the embedding is ambiguous.

    >>> NEFTune()
    NEFTune(alpha=5.0, embedding=None)

    Paper: https://arxiv.org/abs/2310.05914 (Jain et al. 2023)
    """

    __traits__ = Traits(
        slot=Slot.AUGMENT,
        sharding=Sharding.PER_RANK,
        sharding_reason="Each rank samples noise for its shard of the batch.",
        neutral={"alpha": 0.0},
    )

    def __init__(self, alpha: float = 5.0, embedding: str | None = None) -> None:
        self.alpha = non_negative("alpha", alpha)
        self.embedding = embedding
        self._module: nn.Module | None = None
        self._handle: RemovableHandle | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Find the embedding, before the model is wrapped."""
        self._module = _find_embedding(state.model, self.embedding)
        if self._module is None:
            message = "NEFTune has no effect: the model has no nn.Embedding. Name the module with embedding=."
            warnings.warn(message, NoEffectWarning, stacklevel=2)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start to add noise."""
        if self._module is not None and self._handle is None and self.alpha:
            self._handle = self._module.register_forward_hook(partial(_add_in_training, self.alpha))

    def fit_end(self, state: State, logger: Logger) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


def _add_in_training(alpha: float, module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return add_embedding_noise(output, alpha) if module.training else output


def _find_embedding(model: nn.Module, name: str | None) -> nn.Module | None:
    """Return the named module, or else the token embedding; None if there is none."""
    modules = dict(model.named_modules())
    if name is not None:
        if name not in modules:
            raise ValueError(f"embedding={name!r} is not a module of the model.{did_you_mean(name, modules)}")
        return modules[name]
    for module in modules.values():
        getter = getattr(module, "get_input_embeddings", None)
        if callable(getter):
            found = getter()
            if isinstance(found, nn.Module):
                return found
    embeddings = {path: module for path, module in modules.items() if isinstance(module, nn.Embedding)}
    if len(embeddings) > 1:
        raise ValueError(
            f"The model has several embeddings: {', '.join(embeddings)}. Select the token embedding, as in "
            f"NEFTune(embedding={next(iter(embeddings))!r})."
        )
    return next(iter(embeddings.values()), None)
