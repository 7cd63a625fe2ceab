"""Beginning a run in several processes: they join, and agree on what has to be the same in all."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from composer import dist
from composer.core.traits import traits_of
from composer.parallel.strategy import Strategy

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.devices import Device

__all__ = ["agreed", "check_algorithms", "join"]

Value = TypeVar("Value")


def join(device: Device, timeout: float, *, alone: bool = False) -> None:
    """Set up the process group, where there are several processes.

    Args:
        device: On which they train.
        timeout: Seconds until a collective that not all processes have joined fails.
        alone: Whether a single process gets a group too.

    >>> from composer.devices import get_device
    >>> join(get_device("cpu"), timeout=300)
    >>> dist.is_initialized()
    False
    """
    if alone or dist.get_world_size() > 1:
        dist.initialize_dist(device, timeout)


def agreed(value: Value) -> Value:
    """Return the value of the first process.

    Args:
        value: Picklable.

    >>> agreed("run-1")
    'run-1'
    """
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def check_algorithms(state: State, strategy: Strategy) -> None:
    """Refuse algorithms that need whole weights where weights are divided.

    Args:
        state: The state of the run.
        strategy: How the processes train together.

    Raises:
        ValueError: There is such an algorithm.
    """
    if not strategy.shards_weights:
        return
    for algorithm in state.algorithms:
        traits = traits_of(algorithm)
        if not traits.sharding.supports_sharded_weights:
            raise ValueError(
                f"{type(algorithm).__name__} needs whole weights in each process, but {strategy.name} divides them: "
                f"{traits.sharding_reason} Leave it out, or train with data parallelism (parallelism_config=None)."
            )
