"""Low-precision group norm: keep the short format of autocast where torch would widen to float32.

See https://pytorch.org/docs/stable/amp.html for what autocast does by itself.
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
    """Let the group norms of a model compute in the format of autocast, in place.

    On accelerators autocast widens what a norm gets to float32, and hands float32 on. With bfloat16 or float16 in and
    out half the bytes are moved, and what follows need not narrow again; within, sums are float32 all the same. It is
    for models with many norms, such as those that make images by diffusion. Where autocast is off nothing changes.

    ``nn.GroupNorm`` is replaced; its weights stay the same objects with the same names. Classes derived from it that
    compute something of their own stay.

    Args:
        model: The model.
        precision: That of the training; with ``fp32`` nothing is done. None leaves it to autocast alone.
        optimizers: Those of the model. Weights stay the same objects, so these need no change.

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
        In mixed precision on accelerators, for models with many norms, such as those that make images by diffusion.

    When not to:
        In fp32, and where autocast is off: nothing changes.

    How to choose:
        ``apply_at`` is ``"init"`` unless a checkpoint brings other layers.

    Cost:
        None: half the bytes are moved through each norm, and what follows need not narrow again; sums are float32 all
        the same.

    Args:
        apply_at: When: ``INIT``, or with other layers that a checkpoint brings ``BEFORE_LOAD`` or ``AFTER_LOAD``.

    Raises:
        ValueError: It is another event.

    >>> LowPrecisionGroupNorm()
    LowPrecisionGroupNorm(apply_at='init')
    """

    def __init__(self, apply_at: Event | str = Event.INIT) -> None:
        super().__init__(apply_at)

    def lower(self, state: State) -> None:
        """Replace the norms of the model."""
        apply_low_precision_groupnorm(state.model, state.precision, state.optimizers)
