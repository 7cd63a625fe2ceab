"""Training by several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from composer.distributed.choose import choose_strategy as choose_strategy
    from composer.distributed.config import FSDP2Config as FSDP2Config
    from composer.distributed.config import FSDPConfig as FSDPConfig
    from composer.distributed.config import ParallelismConfig as ParallelismConfig
    from composer.distributed.config import ParallelismType as ParallelismType
    from composer.distributed.config import TPConfig as TPConfig
    from composer.distributed.ddp import DDPStrategy as DDPStrategy
    from composer.distributed.ddp import DDPSyncStrategy as DDPSyncStrategy
    from composer.distributed.ddp import ddp_sync_context as ddp_sync_context
    from composer.distributed.ddp import prepare_ddp_module as prepare_ddp_module
    from composer.distributed.fsdp import FSDPStrategy as FSDPStrategy
    from composer.distributed.fsdp import is_model_fsdp as is_model_fsdp
    from composer.distributed.fsdp import parallelize_composer_model as parallelize_composer_model
    from composer.distributed.fsdp import prepare_fsdp_module as prepare_fsdp_module
    from composer.distributed.strategy import SingleProcess as SingleProcess
    from composer.distributed.strategy import Strategy as Strategy
    from composer.distributed.tensor import TensorStrategy as TensorStrategy
    from composer.distributed.tensor import prepare_tp_module as prepare_tp_module
else:
    from composer._lazy import attach

    # Dividing weights brings in a part of torch that takes as long to import as all the rest.
    __getattr__, __dir__, __all__ = attach(
        __name__,
        {
            "DDPStrategy": "composer.distributed.ddp",
            "DDPSyncStrategy": "composer.distributed.ddp",
            "FSDP2Config": "composer.distributed.config",
            "FSDPConfig": "composer.distributed.config",
            "FSDPStrategy": "composer.distributed.fsdp",
            "ParallelismConfig": "composer.distributed.config",
            "ParallelismType": "composer.distributed.config",
            "SingleProcess": "composer.distributed.strategy",
            "Strategy": "composer.distributed.strategy",
            "TPConfig": "composer.distributed.config",
            "TensorStrategy": "composer.distributed.tensor",
            "choose_strategy": "composer.distributed.choose",
            "ddp_sync_context": "composer.distributed.ddp",
            "is_model_fsdp": "composer.distributed.fsdp",
            "parallelize_composer_model": "composer.distributed.fsdp",
            "prepare_ddp_module": "composer.distributed.ddp",
            "prepare_fsdp_module": "composer.distributed.fsdp",
            "prepare_tp_module": "composer.distributed.tensor",
        },
    )
    del attach
