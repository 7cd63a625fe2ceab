"""The trainer's arguments, grouped by what they steer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["LoopOptions"]


@dataclass(frozen=True)
class LoopOptions:
    """How the loops go.

    Attributes:
        weight_by_tokens: Whether microbatches are weighted by the tokens that the loss averages over rather than by
            samples; None decides by the batch.
        step_schedulers_every_batch: Whether schedules move with the batches rather than with the epochs.
        create_graph: Whether gradients are to be differentiable.
        compile_config: Arguments of :func:`torch.compile`, or None for eager mode.
        spin_dataloaders: Whether training that is resumed goes on in the middle of the data, or begins it anew.
        overfit_batches: Number of batches that every epoch repeats, or 0 for all of the data.

    >>> LoopOptions().step_schedulers_every_batch
    False
    """

    weight_by_tokens: bool | None = None
    step_schedulers_every_batch: bool = False
    create_graph: bool = False
    compile_config: dict[str, Any] | None = None
    overfit_batches: int = 0
    spin_dataloaders: bool = True
