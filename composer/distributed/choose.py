"""Which strategy the arguments of a trainer ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer import dist
from composer.distributed.ddp import DDPStrategy
from composer.distributed.strategy import SingleProcess, Strategy

if TYPE_CHECKING:
    from composer.distributed.ddp import DDPSyncStrategy

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
        parallelism_config: Of weights that are divided; None for none.
        deepspeed_config: Of DeepSpeed; None for none.
        ddp_sync_strategy: When data parallelism averages gradients.
        find_unused_parameters: Whether parameters may get no gradient in a step.

    Raises:
        ValueError: The arguments contradict each other.

    >>> choose_strategy().name
    'single'
    """
    if dist.get_world_size() > 1:
        return DDPStrategy(ddp_sync_strategy, find_unused_parameters=find_unused_parameters)
    if ddp_sync_strategy is not None:
        DDPStrategy(ddp_sync_strategy)  # refuses what does not exist, also where it is not needed
    return SingleProcess()
