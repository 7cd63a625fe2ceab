"""Types that annotations of user code name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

import torch

from composer.core.phase import TrainerMode

__all__ = ["JSON", "Batch", "Dataset", "MemoryFormat", "TrainerMode"]

Batch: TypeAlias = Any
"""What a data loader yields: a tensor, a tuple, a mapping, anything that the model understands."""

Dataset = torch.utils.data.Dataset

JSON: TypeAlias = str | float | int | Sequence["JSON"] | Mapping[str, "JSON"] | None
"""What the json module can write."""


class MemoryFormat(StrEnum):
    """Order in which a tensor's dimensions lie in memory; the values are the names of :class:`torch.memory_format`.

    >>> getattr(torch, MemoryFormat("channels_last"))
    torch.channels_last
    """

    CONTIGUOUS_FORMAT = "contiguous_format"
    CHANNELS_LAST = "channels_last"
    CHANNELS_LAST_3D = "channels_last_3d"
    PRESERVE_FORMAT = "preserve_format"
