"""What the methods that lower the precision of norms share."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TypeVar

from torch import nn
from torch.optim import Optimizer

from composer._text import one_of
from composer.core.event import Event
from composer.nn.low_precision_norm import lower_norm
from composer.precision import Precision
from composer.surgery import replace_module_classes
from composer.warnings import NoEffectWarning

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def lower_norms(
    model: ModuleT,
    method: str,
    kinds: Sequence[type[nn.Module]],
    precision: str | Precision | None,
    optimizers: Optimizer | Sequence[Optimizer] | None,
) -> ModuleT:
    """Replace the norms of some kinds, unless the precision has no short format."""
    if precision is not None and Precision(precision) is Precision.FP32:
        message = f"{method} changes nothing: the precision is fp32. It takes amp_bf16 or amp_fp16 to act."
        warnings.warn(message, NoEffectWarning, stacklevel=3)
    elif not replace_module_classes(model, dict.fromkeys(kinds, lower_norm), optimizers):
        message = (
            f"{method} changes nothing: the model has no {' or '.join(kind.__name__ for kind in kinds)} of torch that "
            f"is not lowered already."
        )
        warnings.warn(message, NoEffectWarning, stacklevel=3)
    return model


def checked_event(apply_at: Event | str) -> Event:
    """One of the events before training at which models may change."""
    return one_of("apply_at", Event(apply_at), (Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD))
