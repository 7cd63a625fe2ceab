"""Parallelism strategies for multi-GPU training: DDP, FSDP, tensor parallelism and DeepSpeed.

The modules, in reading order:

- ``strategy``: :class:`Strategy`, what the training loop calls, and the single-process strategy.
- ``strategy_selection``: select the strategy from the Trainer's arguments.
- ``config``: ``parallelism_config``: :class:`FSDPConfig`, :class:`TPConfig`, validated.
- ``config_agreement``: check that all ranks have the same model, optimizers and settings.
- ``ddp``: data parallelism with ``DistributedDataParallel``.
- ``fsdp``: fully sharded data parallelism (FSDP2, HSDP) with ``fully_shard``; gradients, precision, gradient sync.
- ``module_sharder``: apply ``fully_shard`` to one module after another.
- ``added_parameters``: find parameters that are added to optimizers during training.
- ``mesh``: the device mesh of replicas, shards and tensor parallelism.
- ``wrapping``: which modules ``fully_shard`` wraps, and prefetching.
- ``fsdp_units``: whether FSDP shards a model.
- ``mixed_precision``: dtypes of all-gathered parameters and reduced gradients.
- ``meta_init``: deferred initialization of models on the meta device.
- ``optimizer_params``: swap sharded parameters into optimizers.
- ``gather_outside_forward``: all-gather parameters for ``loss``, ``eval_forward`` and ``generate``.
- ``unsharded_parameters``: access the all-gathered parameters and their gradients.
- ``activation_checkpointing``: activation checkpointing and activation offloading.
- ``tensor_parallel``: tensor parallelism with ``parallelize_module``.
- ``grad_scaler``: fp16 loss scaling of sharded gradients.
- ``replicas``: process groups of low-communication training (DiLoCo, local SGD).
- ``buffer_sync``: synchronize BatchNorm statistics across ranks.
- ``unfinished_collectives``: complete the collectives of an interrupted batch after an OOM.
- ``float8_layers``: float8 linear layers of ``precision="amp_fp8"``.
- ``deepspeed``, ``deepspeed_config``: the DeepSpeed engine (ZeRO) and its configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from composer.parallel.config import FSDP2Config as FSDP2Config
    from composer.parallel.config import FSDPConfig as FSDPConfig
    from composer.parallel.config import ParallelismConfig as ParallelismConfig
    from composer.parallel.config import ParallelismType as ParallelismType
    from composer.parallel.config import TPConfig as TPConfig
    from composer.parallel.ddp import DDPStrategy as DDPStrategy
    from composer.parallel.ddp import DDPSyncStrategy as DDPSyncStrategy
    from composer.parallel.ddp import ddp_sync_context as ddp_sync_context
    from composer.parallel.ddp import prepare_ddp_module as prepare_ddp_module
    from composer.parallel.float8_layers import restore_linear_layers as restore_linear_layers
    from composer.parallel.fsdp import FSDPStrategy as FSDPStrategy
    from composer.parallel.fsdp import is_model_fsdp as is_model_fsdp
    from composer.parallel.fsdp import parallelize_composer_model as parallelize_composer_model
    from composer.parallel.fsdp import prepare_fsdp_module as prepare_fsdp_module
    from composer.parallel.strategy import SingleProcess as SingleProcess
    from composer.parallel.strategy import Strategy as Strategy
    from composer.parallel.strategy_selection import choose_strategy as choose_strategy
    from composer.parallel.tensor_parallel import TensorStrategy as TensorStrategy
    from composer.parallel.tensor_parallel import prepare_tp_module as prepare_tp_module
else:
    from composer._lazy import attach

    # Lazy: sharding imports a part of torch that takes as long to import as the rest.
    __getattr__, __dir__, __all__ = attach(
        __name__,
        {
            "DDPStrategy": "composer.parallel.ddp",
            "DDPSyncStrategy": "composer.parallel.ddp",
            "FSDP2Config": "composer.parallel.config",
            "FSDPConfig": "composer.parallel.config",
            "FSDPStrategy": "composer.parallel.fsdp",
            "ParallelismConfig": "composer.parallel.config",
            "ParallelismType": "composer.parallel.config",
            "SingleProcess": "composer.parallel.strategy",
            "Strategy": "composer.parallel.strategy",
            "TPConfig": "composer.parallel.config",
            "TensorStrategy": "composer.parallel.tensor_parallel",
            "choose_strategy": "composer.parallel.strategy_selection",
            "ddp_sync_context": "composer.parallel.ddp",
            "is_model_fsdp": "composer.parallel.fsdp",
            "parallelize_composer_model": "composer.parallel.fsdp",
            "prepare_ddp_module": "composer.parallel.ddp",
            "prepare_fsdp_module": "composer.parallel.fsdp",
            "prepare_tp_module": "composer.parallel.tensor_parallel",
            "restore_linear_layers": "composer.parallel.float8_layers",
        },
    )
    del attach
