"""Low-precision group norm: run GroupNorm in the autocast dtype (bfloat16, float16) instead of float32.

See https://pytorch.org/docs/stable/amp.html for the default behavior of autocast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from torch import nn
from torch.optim import Optimizer

from composer.algorithms._low_precision import LowPrecisionNorm, lower_norms
from composer.core.event import Event
from composer.nn.low_precision_norm import LPGroupNorm
from composer.precision import Precision

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["LPGroupNorm", "LowPrecisionGroupNorm", "apply_low_precision_groupnorm"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def apply_low_precision_groupnorm(
    model: ModuleT,
    precision: str | Precision | None = None,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
) -> ModuleT:
    """Make the group norms of a model run in the autocast dtype, in place.

    On accelerators, autocast casts the input of a norm to float32 and returns float32. With bfloat16 or float16 inputs
    and outputs, half the bytes are moved, and later layers need not cast back; sums are still accumulated in float32.
    It is for models with many norms, such as diffusion models. Without autocast it has no effect.

    ``nn.GroupNorm`` is replaced; its parameters stay the same objects with the same names. Subclasses with a custom
    forward pass are unchanged.

    Args:
        model: The model.
        precision: Precision of the run; with ``fp32`` nothing is done. None relies on autocast alone.
        optimizers: The model's optimizers. Parameters stay the same objects, so the optimizers do not change.

    Returns:
        The model itself.

    >>> model = apply_low_precision_groupnorm(nn.Sequential(nn.GroupNorm(2, 8)), "amp_bf16")
    >>> type(model[0]).__name__
    'LPGroupNorm'
    """
    return lower_norms(model, "LowPrecisionGroupNorm", (nn.GroupNorm,), precision, optimizers)


class LowPrecisionGroupNorm(LowPrecisionNorm):
    """Applies :func:`apply_low_precision_groupnorm` before training.

    When to use it:
        In mixed precision on accelerators, for models with many norms, such as diffusion models.

    When not to:
        In fp32 and without autocast: it has no effect.

    How to choose:
        ``apply_at`` is ``"init"`` unless loading a checkpoint changes the layers.

    Cost:
        None: half the bytes are moved through each norm, and later layers need not cast back; sums are still
        accumulated in float32.

    Args:
        apply_at: When to replace: ``INIT``, or ``BEFORE_LOAD`` or ``AFTER_LOAD`` if a checkpoint changes the layers.

    Raises:
        ValueError: ``apply_at`` is another event.

    >>> LowPrecisionGroupNorm()
    LowPrecisionGroupNorm(apply_at='init')
    """

    def __init__(self, apply_at: Event | str = Event.INIT) -> None:
        super().__init__(apply_at)

    def lower(self, state: State) -> None:
        """Replace the norms of the model."""
        apply_low_precision_groupnorm(state.model, state.precision, state.optimizers)
