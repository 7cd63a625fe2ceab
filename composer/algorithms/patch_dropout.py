"""PatchDropout: train a vision transformer on a random subset of the patches of each image.

    keep max(1, round((1 - p) * N)) of N patches, different for each image and step

Attention and all later layers process fewer tokens: with half of them, the encoder needs less than half the time and
memory in training, at nearly the same accuracy, and the model is regularized.

Paper: PatchDropout: Economizing Vision Transformers, Liu et al. 2023, https://arxiv.org/abs/2208.07220
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from composer._numbers import in_unit_interval, whole_number
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

__all__ = ["PatchDropout", "drop_patches"]

# Modules whose output is the token sequence with positions: (class name of an ancestor, name in it).
_KNOWN = (("VisionTransformer", "encoder.dropout"), ("VisionTransformer", "patch_drop"), ("ViTModel", "embeddings"))


def drop_patches(tokens: Tensor, drop_rate: float = 0.5, num_prefix_tokens: int = 1) -> Tensor:
    """Keep a random subset of the tokens of each sample, in their order.

    Args:
        tokens: Embeddings with positions added, (B, P + N, d).
        drop_rate: Fraction of the N patches to drop, from 0 to below 1.
        num_prefix_tokens: P, the leading tokens that are always kept, such as the class token.

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
    num_prefix_tokens = whole_number("num_prefix_tokens", num_prefix_tokens)
    if tokens.ndim != 3 or tokens.shape[1] <= num_prefix_tokens:
        raise ValueError(
            f"tokens must be of the shape (B, P + N, d) with P = {num_prefix_tokens} and N at least 1, but are of the "
            f"shape {tuple(tokens.shape)}."
        )
    samples, size, features = tokens.shape
    patches = size - num_prefix_tokens
    kept = max(1, round((1 - drop_rate) * patches))
    # The indices of the largest of N random values: a sample without replacement, whose size the host knows.
    indices = torch.rand(samples, patches, device=tokens.device).topk(kept, dim=1).indices.sort(dim=1).values
    indices += num_prefix_tokens
    part = tokens.gather(1, indices.unsqueeze(-1).expand(-1, -1, features))
    return torch.cat((tokens[:, :num_prefix_tokens], part), dim=1) if num_prefix_tokens else part


class PatchDropout(Algorithm):
    """Applies :func:`drop_patches` in a vision transformer, in training.

    It uses a forward hook on the module whose output enters the encoder, which acts while the model is in training mode
    and :class:`.Trainer` trains; evaluation sees all patches.

    When to use it:
        To train or fine-tune vision transformers on large images, which have many redundant tokens.

    When not to:
        For models that need the image position of a token after its embedding: windows, rotary positions, dense
        prediction; and with few patches (16 x 16 pixels of 32).

    How to choose:
        ``drop_rate=0.5``, more for larger images, whose patches are more redundant. Set ``module`` for models that
        are not detected.

    Cost:
        A gather of the kept tokens; all later layers process ``1 - drop_rate`` of them, attention the square of
        that.

    Args:
        drop_rate: Fraction of the patches to drop, from 0 (off) to below 1.
        num_prefix_tokens: Leading tokens that are always kept.
        module: Name of the module whose output is the tokens with positions, as in ``model.get_submodule``. By
            default detected in the ``VisionTransformer`` of torchvision or timm and the ``ViTModel`` of transformers.

    Raises:
        ValueError: ``drop_rate`` is not in [0, 1); at initialization, the model has no such module.

    >>> PatchDropout()
    PatchDropout(drop_rate=0.5, num_prefix_tokens=1, module=None)

    Paper: https://arxiv.org/abs/2208.07220 (Liu et al. 2023)
    """

    __traits__ = Traits(
        slot=Slot.AUGMENT,
        sharding=Sharding.PER_RANK,
        sharding_reason="Each rank samples patches for its shard of the batch.",
        neutral={"drop_rate": 0.0},
    )

    def __init__(self, drop_rate: float = 0.5, num_prefix_tokens: int = 1, module: str | None = None) -> None:
        self.drop_rate = _check_rate(drop_rate)
        self.num_prefix_tokens = whole_number("num_prefix_tokens", num_prefix_tokens)
        self.module = module
        self._module: nn.Module | None = None
        self._handle: RemovableHandle | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Find the module, before the model is wrapped."""
        self._module = _find_tokens(state.model, self.module)
        if self._module is None:
            warnings.warn(
                "PatchDropout has no effect: the model has no VisionTransformer of torchvision or timm and no "
                "ViTModel of transformers. Name the module whose output is the tokens with module=.",
                NoEffectWarning,
                stacklevel=2,
            )

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start to drop patches."""
        if self._module is not None and self._handle is None and self.drop_rate:
            self._handle = self._module.register_forward_hook(
                partial(_drop_in_training, self.drop_rate, self.num_prefix_tokens)
            )

    def fit_end(self, state: State, logger: Logger) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


def _drop_in_training(drop_rate: float, num_prefix_tokens: int, module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return drop_patches(output, drop_rate, num_prefix_tokens) if module.training else output


def _check_rate(drop_rate: float) -> float:
    if in_unit_interval("drop_rate", drop_rate) == 1:
        raise ValueError("drop_rate must be less than 1, otherwise no patches remain.")
    return float(drop_rate)


def _find_tokens(model: nn.Module, name: str | None) -> nn.Module | None:
    modules = dict(model.named_modules())
    if name is not None:
        if name not in modules:
            raise ValueError(f"module={name!r} is not a module of the model.{did_you_mean(name, modules)}")
        return modules[name]
    for path, module in modules.items():
        for cls, part in _KNOWN:
            found = modules.get(f"{path}.{part}".lstrip("."))
            if type(module).__name__ == cls and found is not None:
                return found
    return None
