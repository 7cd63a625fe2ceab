"""Type aliases for annotations in user code: Batch, Dataset, JSON, MemoryFormat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

import torch

from composer.core.phase import TrainerMode

__all__ = ["JSON", "Batch", "Dataset", "MemoryFormat", "TrainerMode"]

Batch: TypeAlias = Any
"""A batch of a data loader: a tensor, a tuple, a mapping, or any other type that the model accepts."""

Dataset = torch.utils.data.Dataset

JSON: TypeAlias = str | float | int | Sequence["JSON"] | Mapping[str, "JSON"] | None
"""A value that the json module can serialize."""


class MemoryFormat(StrEnum):
    """Memory layout of a tensor's dimensions; the values are the names of :class:`torch.memory_format`.

    >>> getattr(torch, MemoryFormat("channels_last"))
    torch.channels_last
    """

    CONTIGUOUS_FORMAT = "contiguous_format"
    CHANNELS_LAST = "channels_last"
    CHANNELS_LAST_3D = "channels_last_3d"
    PRESERVE_FORMAT = "preserve_format"
