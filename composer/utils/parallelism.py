"""The configurations of weights that are divided among processes; they live in ``composer.distributed``."""

from __future__ import annotations

from composer.distributed.config import FSDP2Config, FSDPConfig, ParallelismConfig, TPConfig

__all__ = ["FSDP2Config", "FSDPConfig", "ParallelismConfig", "TPConfig"]
