"""What the methods that lower the precision of norms share: the replacement, and when in a run it is done."""

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


class LowPrecisionNorm(Algorithm):
    """Abstract: lowers the norms of a model at one of the events before training at which models may change.

    A method says in :meth:`lower` which norms these are.
    """

    __traits__ = Traits(
        slot=Slot.PRECISION,
        sharding=Sharding.SAFE,
        sharding_reason="Layers are replaced before weights are divided.",
    )

    def __init__(self, apply_at: Event | str) -> None:
        self.apply_at = one_of("apply_at", Event(apply_at), (Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD))

    @staticmethod
    def required_on_load() -> bool:
        """Yes: the weights fit without it, and the model would do something else."""
        return True

    def lower(self, state: State) -> None:
        """Replace the norms of the model."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Show the arguments so that Python can read them."""
        return f"{type(self).__name__}(apply_at={self.apply_at.value!r})"

    def __listens__(self, event: Event) -> bool:
        """Act at one event only."""
        return event is self.apply_at

    def init(self, state: State, logger: Logger) -> None:
        """Replace the layers."""
        self.lower(state)

    before_load = init
    after_load = init
