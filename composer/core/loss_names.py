"""The losses that the ranks of a run have agreed to average, and those that one of them has had since."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

__all__ = ["LossNames"]


@dataclass
class LossNames:
    """Names and precision of the losses that are averaged over all ranks, the same on each; saved in checkpoints.

    Attributes:
        known: Names of the losses of all ranks, and whether only some ranks had them.
        new: Losses that this rank had since then, or in another precision, with their dtypes: of the next step on, all
            ranks know them.
        dtype: The dtype in which they are averaged.
        is_agreed: Whether the ranks have exchanged names; they do so with the first losses.

    >>> LossNames().known
    {}
    """

    known: dict[str, bool] = field(default_factory=dict[str, bool])
    new: dict[str, torch.dtype] = field(default_factory=dict[str, torch.dtype])
    dtype: torch.dtype = torch.float32
    is_agreed: bool = False
