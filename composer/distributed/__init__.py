"""Training by several processes."""

from __future__ import annotations

from composer.distributed.choose import choose_strategy
from composer.distributed.ddp import DDPStrategy, DDPSyncStrategy, ddp_sync_context, prepare_ddp_module
from composer.distributed.strategy import SingleProcess, Strategy

__all__ = [
    "DDPStrategy",
    "DDPSyncStrategy",
    "SingleProcess",
    "Strategy",
    "choose_strategy",
    "ddp_sync_context",
    "prepare_ddp_module",
]
