"""Select the parallelism strategy (single process, DDP, FSDP, tensor parallelism, DeepSpeed) from Trainer arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer import dist
from composer.parallel.config import ParallelismConfig, as_parallelism_config
from composer.parallel.ddp import DDPStrategy
from composer.parallel.deepspeed import DeepSpeedStrategy
from composer.parallel.strategy import SingleProcess, Strategy

if TYPE_CHECKING:
    from composer.parallel.ddp import DDPSyncStrategy

__all__ = ["choose_strategy"]


def choose_strategy(
    parallelism_config: Any = None,
    *,
    deepspeed_config: dict[str, Any] | None = None,
    ddp_sync_strategy: str | DDPSyncStrategy | None = None,
    find_unused_parameters: bool = False,
) -> Strategy:
    """Return the configured strategy; by default DDP if the world size is above 1, else a single process.

    Args:
        parallelism_config: The FSDP and tensor parallelism configuration, a custom :class:`.Strategy`, or None.
        deepspeed_config: The DeepSpeed configuration, or None.
        ddp_sync_strategy: When DDP averages gradients.
        find_unused_parameters: Whether parameters may get no gradient in a step.

    Raises:
        ValueError: The arguments conflict.

    >>> choose_strategy().name
    'single'
    """
    data_parallelism = {
        "ddp_sync_strategy": ddp_sync_strategy is not None,
        "find_unused_parameters": find_unused_parameters,
    }
    if deepspeed_config is not None:
        for name, is_given in {"parallelism_config": parallelism_config is not None, **data_parallelism}.items():
            if is_given:
                raise ValueError(f"{name} and deepspeed_config are both given; leave one of them out.")
        return DeepSpeedStrategy(deepspeed_config)
    if isinstance(parallelism_config, Strategy):
        for name, is_given in data_parallelism.items():
            if is_given:
                raise ValueError(
                    f"{name} is an argument of DDP, which parallelism_config={type(parallelism_config).__name__} "
                    f"replaces; leave one of them out."
                )
        return parallelism_config
    config = as_parallelism_config(parallelism_config)
    if config is not None:
        return _sharding_strategy(config, ddp_sync_strategy, find_unused_parameters)
    if dist.get_world_size() > 1:
        return DDPStrategy(ddp_sync_strategy, find_unused_parameters=find_unused_parameters)
    if ddp_sync_strategy is not None:
        DDPStrategy(ddp_sync_strategy)  # validates the name, although a single process does not use it
    return SingleProcess()


def _sharding_strategy(config: ParallelismConfig, sync: str | None, find_unused_parameters: bool) -> Strategy:
    """Return the strategy for sharded weights."""
    # Imported when used: both import a part of torch that takes as long to import as the rest.
    from composer.parallel.fsdp import FSDPStrategy
    from composer.parallel.tensor_parallel import TensorStrategy

    if config.tp is not None and config.tp.tensor_parallel_degree == dist.get_world_size():
        if config.fsdp is not None:
            raise ValueError(
                f"tp: tensor_parallel_degree={config.tp.tensor_parallel_degree} uses all ranks, so none are left for "
                f"'fsdp'; leave it out, or lower the degree."
            )
        if sync is not None:
            raise ValueError(
                "ddp_sync_strategy does not work with 'tp' alone: all ranks train on the same batch; leave it out."
            )
        return TensorStrategy(config.tp)
    return FSDPStrategy(config, sync, find_unused_parameters=find_unused_parameters)
