"""Base of the low-precision norm algorithms: replace norms at a configurable event before training."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from torch import nn
from torch.optim import Optimizer

from composer._text import one_of
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.event import Event
from composer.core.traits import Traits
from composer.nn.low_precision_norm import lower_norm
from composer.precision import Precision
from composer.surgery import replace_module_classes
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["LowPrecisionNorm", "lower_norms"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def lower_norms(
    model: ModuleT,
    method: str,
    norm_classes: Sequence[type[nn.Module]],
    precision: str | Precision | None,
    optimizers: Optimizer | Sequence[Optimizer] | None,
) -> ModuleT:
    """Replace norms of the given classes, unless the precision is fp32."""
    if precision is not None and Precision(precision) is Precision.FP32:
        message = f"{method} has no effect: the precision is fp32. Use amp_bf16 or amp_fp16."
        warnings.warn(message, NoEffectWarning, stacklevel=3)
    elif not replace_module_classes(model, dict.fromkeys(norm_classes, lower_norm), optimizers):
        message = (
            f"{method} has no effect: the model has no {' or '.join(cls.__name__ for cls in norm_classes)} of torch "
            f"that is not replaced already."
        )
        warnings.warn(message, NoEffectWarning, stacklevel=3)
    return model


class LowPrecisionNorm(Algorithm):
    """Abstract base of algorithms that replace norms at one of the events before training.

    Subclasses implement :meth:`lower`.
    """

    __traits__ = Traits(
        slot=Slot.PRECISION,
        sharding=Sharding.SAFE,
        sharding_reason="Layers are replaced before parameters are sharded.",
        why_not_neutral="it has no setting",
    )

    def __init__(self, apply_at: Event | str) -> None:
        self.apply_at = one_of("apply_at", Event(apply_at), (Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD))

    @staticmethod
    def required_on_load() -> bool:
        """Return True: the parameters would load without it, but the model would compute something else."""
        return True

    def lower(self, state: State) -> None:
        """Replace the norms of the model."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Show the arguments as valid Python."""
        return f"{type(self).__name__}(apply_at={self.apply_at.value!r})"

    def __listens__(self, event: Event) -> bool:
        """Subscribe to one event only."""
        return event is self.apply_at

    def init(self, state: State, logger: Logger) -> None:
        """Replace the layers."""
        self.lower(state)

    before_load = init
    after_load = init
