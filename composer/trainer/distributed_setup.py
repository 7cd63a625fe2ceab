"""Set up distributed training: initialize the process group, broadcast settings, check algorithms for sharding."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from composer import dist
from composer.core.traits import traits_of
from composer.parallel.strategy import Strategy

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.devices import Device

__all__ = ["broadcast_from_rank_zero", "check_algorithms", "init_process_group"]

Value = TypeVar("Value")


def init_process_group(device: Device, timeout: float, *, single_process: bool = False) -> None:
    """Initialize the process group if there are multiple ranks.

    Args:
        device: The device to train on.
        timeout: Timeout of collectives in seconds.
        single_process: Whether to initialize it for a single process too.

    >>> from composer.devices import get_device
    >>> init_process_group(get_device("cpu"), timeout=300)
    >>> dist.is_initialized()
    False
    """
    if single_process or dist.get_world_size() > 1:
        dist.initialize_dist(device, timeout)


def broadcast_from_rank_zero(value: Value) -> Value:
    """Broadcast a value from rank 0 and return it.

    Args:
        value: A picklable value.

    >>> broadcast_from_rank_zero("run-1")
    'run-1'
    """
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def check_algorithms(state: State, strategy: Strategy) -> None:
    """Raise if an algorithm requires unsharded parameters but the strategy shards them.

    Args:
        state: The state of the run.
        strategy: The parallelism strategy.

    Raises:
        ValueError: An algorithm does not support sharded parameters.
    """
    if not strategy.shards_weights:
        return
    for algorithm in state.algorithms:
        traits = traits_of(algorithm)
        if not traits.sharding.supports_sharded_weights:
            raise ValueError(
                f"{type(algorithm).__name__} requires unsharded parameters on each rank, but {strategy.name} shards "
                f"them: {traits.sharding_reason} Remove it, or train with DDP (parallelism_config=None)."
            )
