"""PatchDropout: train a vision transformer on a random part of the patches of each image.

    keep max(1, round((1 - p) * N)) of N patches, others for each image and step

Attention and everything after it is computed for fewer tokens: with half of them training needs less than half of the
time and memory of the encoder, at nearly the same accuracy, and it regularises.

Paper: PatchDropout: Economizing Vision Transformers, Liu et al. 2023, https://arxiv.org/abs/2208.07220
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from composer._text import did_you_mean, in_unit_interval, non_negative
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["PatchDropout", "drop_patches"]

# Modules whose output is the sequence of tokens with their positions: (class of an ancestor, name in it).
_KNOWN = (("VisionTransformer", "encoder.dropout"), ("VisionTransformer", "patch_drop"), ("ViTModel", "embeddings"))


def drop_patches(tokens: Tensor, drop_rate: float = 0.5, num_prefix_tokens: int = 1) -> Tensor:
    """Keep a random part of the tokens of each sample, in their order.

    Args:
        tokens: Embeddings to which positions were added, (B, P + N, d).
        drop_rate: Share of the N patches to leave out, from 0 to below 1.
        num_prefix_tokens: P, the tokens in front that always stay, such as that of the class.

    Returns:
        Tokens (B, P + K, d), K = max(1, round((1 - drop_rate) * N)).

    Raises:
        ValueError: ``drop_rate`` is not in [0, 1), or there is no patch.

    >>> drop_patches(torch.zeros(2, 1 + 16, 8), drop_rate=0.75).shape
    torch.Size([2, 5, 8])

    Paper: https://arxiv.org/abs/2208.07220 (Liu et al. 2023)
    """
    _check_rate(drop_rate)
    if drop_rate == 0:
        return tokens
    if tokens.ndim != 3 or tokens.shape[1] <= num_prefix_tokens:
        raise ValueError(
            f"tokens must be of the shape (B, P + N, d) with P = {num_prefix_tokens} and N at least 1, but are of the "
            f"shape {tuple(tokens.shape)}."
        )
    samples, size, features = tokens.shape
    patches = size - num_prefix_tokens
    kept = max(1, round((1 - drop_rate) * patches))
    # The places of the largest of N random numbers: a sample without replacement, of a size known on the host.
    places = torch.rand(samples, patches, device=tokens.device).topk(kept, dim=1).indices.sort(dim=1).values
    places += num_prefix_tokens
    part = tokens.gather(1, places.unsqueeze(-1).expand(-1, -1, features))
    return torch.cat((tokens[:, :num_prefix_tokens], part), dim=1) if num_prefix_tokens else part


class PatchDropout(Algorithm):
    """Applies :func:`drop_patches` in a vision transformer, in training.

    In a forward hook on the module whose output the encoder gets, while the model is in training mode and
    :class:`.Trainer` trains; evaluation sees all patches.

    When to use it:
        To train or fine-tune vision transformers on large images, where tokens are many and redundant.

    When not to:
        In models that need to know where in the image a token is after its embedding: windows, rotary positions,
        dense prediction; and with few patches (16 x 16 pixels of 32).

    How to choose:
        ``drop_rate=0.5``, and more the larger the images: the more patches there are, the less each tells. Name
        ``module`` for models that are not found by themselves.

    Cost:
        A gather of the tokens kept; all layers after it work on ``1 - drop_rate`` of them, attention on the square of
        it.

    Args:
        drop_rate: Share of the patches to leave out, from 0 (off) to below 1.
        num_prefix_tokens: Tokens in front that always stay.
        module: Name of the module whose output are the tokens with their positions, as in ``model.get_submodule``. By
            default found in the ``VisionTransformer`` of torchvision or timm and the ``ViTModel`` of transformers.

    Raises:
        ValueError: ``drop_rate`` is not in [0, 1), or at the start that the model has no such module.

    >>> PatchDropout()
    PatchDropout(drop_rate=0.5, num_prefix_tokens=1, module=None)

    Paper: https://arxiv.org/abs/2208.07220 (Liu et al. 2023)
    """

    __traits__ = Traits(
        slot=Slot.AUGMENT,
        sharding=Sharding.PER_RANK,
        sharding_reason="Each process draws patches for its own part of the batch.",
    )

    def __init__(self, drop_rate: float = 0.5, num_prefix_tokens: int = 1, module: str | None = None) -> None:
        self.drop_rate = _check_rate(drop_rate)
        self.num_prefix_tokens = non_negative("num_prefix_tokens", num_prefix_tokens)
        self.module = module
        self._module: nn.Module | None = None
        self._handle: RemovableHandle | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Find the module, before the model is wrapped."""
        self._module = _find_tokens(state.model, self.module)
        if self._module is None:
            warnings.warn(
                "PatchDropout changes nothing: the model has no VisionTransformer of torchvision or timm and no "
                "ViTModel of transformers. Name the module whose output are the tokens with module=.",
                NoEffectWarning,
                stacklevel=2,
            )

    def fit_start(self, state: State, logger: Logger) -> None:
        """Begin to drop patches."""
        if self._module is not None and self._handle is None and self.drop_rate:
            self._handle = self._module.register_forward_hook(
                partial(_drop_in_training, self.drop_rate, self.num_prefix_tokens)
            )

    def fit_end(self, state: State, logger: Logger) -> None:
        """Leave the model as it was."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


def _drop_in_training(drop_rate: float, num_prefix_tokens: int, module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return drop_patches(output, drop_rate, num_prefix_tokens) if module.training else output


def _check_rate(drop_rate: float) -> float:
    if in_unit_interval("drop_rate", drop_rate) == 1:
        raise ValueError("drop_rate must be less than 1, or nothing is left to train on.")
    return float(drop_rate)


def _find_tokens(model: nn.Module, name: str | None) -> nn.Module | None:
    modules = dict(model.named_modules())
    if name is not None:
        if name not in modules:
            raise ValueError(f"module={name!r} is no module of the model.{did_you_mean(name, modules)}")
        return modules[name]
    for path, module in modules.items():
        for cls, part in _KNOWN:
            found = modules.get(f"{path}.{part}".lstrip("."))
            if type(module).__name__ == cls and found is not None:
                return found
    return None
