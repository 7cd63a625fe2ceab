"""Which strategy the arguments of a trainer ask for."""

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
    """Return the strategy: what the configuration says, else data parallelism where there are several processes.

    Args:
        parallelism_config: Of weights that are divided, or a :class:`.Strategy` of one's own; None for none.
        deepspeed_config: Of DeepSpeed; None for none.
        ddp_sync_strategy: When data parallelism averages gradients.
        find_unused_parameters: Whether parameters may get no gradient in a step.

    Raises:
        ValueError: The arguments contradict each other.

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
                    f"{name} is an argument of data parallelism, which {type(parallelism_config).__name__}, given as "
                    f"parallelism_config, takes the place of; leave one of them out."
                )
        return parallelism_config
    config = as_parallelism_config(parallelism_config)
    if config is not None:
        return _dividing(config, ddp_sync_strategy, find_unused_parameters)
    if dist.get_world_size() > 1:
        return DDPStrategy(ddp_sync_strategy, find_unused_parameters=find_unused_parameters)
    if ddp_sync_strategy is not None:
        DDPStrategy(ddp_sync_strategy)  # refuses what does not exist, also where it is not needed
    return SingleProcess()


def _dividing(config: ParallelismConfig, sync: str | None, find_unused_parameters: bool) -> Strategy:
    """The strategy for weights that are divided."""
    # Imported when used: both bring in a part of torch that takes as long to import as all the rest.
    from composer.parallel.fsdp import FSDPStrategy
    from composer.parallel.tensor_parallel import TensorStrategy

    if config.tp is not None and config.tp.tensor_parallel_degree == dist.get_world_size():
        if config.fsdp is not None:
            raise ValueError(
                f"tp: tensor_parallel_degree={config.tp.tensor_parallel_degree} takes all processes, so that none are "
                f"left for 'fsdp'; leave it out, or lower the degree."
            )
        if sync is not None:
            raise ValueError(
                "ddp_sync_strategy is about processes with data of their own, which 'tp' alone does not have."
            )
        return TensorStrategy(config.tp)
    return FSDPStrategy(config, sync, find_unused_parameters=find_unused_parameters)
