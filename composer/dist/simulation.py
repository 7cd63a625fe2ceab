"""Simulated ranks: one process runs as a rank of many, without the others, for dry runs and memory estimates.

Every other rank is taken to hold what this rank holds: an all-gather returns this rank's tensor N times, and a sum is N
times its value. So one process sets up DDP, FSDP, hybrid sharding and tensor parallelism over 1,024 ranks as each of
them would, with the same shards and the same buffers.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import torch.distributed as torch_dist

from composer._numbers import whole_number
from composer.dist._simulated_group import BACKEND, Observer, observers, register_backend
from composer.dist.ranks import is_initialized

__all__ = ["is_simulated", "observed_collectives", "simulated_ranks"]

_RANKS_PER_NODE: Final = 8


def is_simulated() -> bool:
    """Return whether the other ranks of the process group are simulated.

    >>> is_simulated()
    False
    """
    return is_initialized() and torch_dist.get_backend() == BACKEND


@contextmanager
def simulated_ranks(world_size: int, rank: int = 0, local_world_size: int | None = None) -> Generator[None]:
    """Run the body as one rank of a process group whose other ranks do not exist.

    The variables of a launcher (``RANK``, ``WORLD_SIZE``, ...) are set, so that programs need no change. Collectives
    return at once, as if each rank had called them with the values of this one. A program that initializes the process
    group itself gets this one, and new groups are simulated whatever backend it names.

    Args:
        world_size: Number of ranks.
        rank: The rank of this process.
        local_world_size: Number of ranks on each node; at most 8 if None.

    Raises:
        RuntimeError: The process group is initialized already.
        ValueError: A number is not positive, the rank is not below the world size, or the world size is not a multiple
            of the ranks of a node.

    >>> from composer import dist
    >>> with simulated_ranks(1024):
    ...     dist.get_world_size(), dist.largest(3), len(dist.all_gather_object("a"))
    (1024, 3, 1024)
    """
    variables = _variables(world_size, rank, local_world_size)
    if is_initialized():
        raise RuntimeError("Ranks cannot be simulated: the process group is initialized already.")
    saved = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        register_backend()
        store = torch_dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        torch_dist.init_process_group(BACKEND, store=store, world_size=world_size, rank=rank)
        with _groups_simulated():
            yield
    finally:
        if is_simulated():
            torch_dist.destroy_process_group()
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def observed_collectives(observer: Observer) -> Generator[None]:
    """Call a function with the tensors of each collective between simulated ranks.

    Args:
        observer: ``observer(name, inputs, outputs)`` gets the name of the collective, such as ``"all_gather"``, and its
            tensors, of which some may be views of others.

    >>> with simulated_ranks(2), observed_collectives(lambda name, *tensors: print(name, tensors)):
    ...     torch_dist.all_reduce(torch.ones(1))
    all_reduce ([tensor([2.])], [tensor([2.])])
    """
    observers.append(observer)
    try:
        yield
    finally:
        observers.remove(observer)


@contextmanager
def _groups_simulated() -> Generator[None]:
    """Let ``init_process_group`` do nothing, and let ``new_group`` ignore the backend, such as gloo for checkpoints."""
    c10d: Any = torch_dist.distributed_c10d
    new_group = torch_dist.new_group
    parameters = inspect.signature(new_group)

    def simulated_group(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs).arguments
        return new_group(**{name: value for name, value in given.items() if name not in ("backend", "pg_options")})

    replacements = {"init_process_group": lambda *args, **kwargs: None, "new_group": simulated_group}
    saved = [(module, name, getattr(module, name)) for module in (torch_dist, c10d) for name in replacements]
    try:
        for module, name, _ in saved:
            setattr(module, name, replacements[name])
        yield
    finally:
        for module, name, function in saved:
            setattr(module, name, function)


def _variables(world_size: int, rank: int, local_world_size: int | None) -> dict[str, str]:
    """Return the environment variables of a launcher."""
    world_size, rank = whole_number("world_size", world_size, minimum=1), whole_number("rank", rank, minimum=None)
    local = min(world_size, _RANKS_PER_NODE)
    if local_world_size is not None:
        local = whole_number("local_world_size", local_world_size, minimum=1)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be from 0 to {world_size - 1}, as world_size={world_size}, but got {rank}.")
    if world_size % local:
        raise ValueError(
            f"world_size={world_size} must be a multiple of local_world_size={local}, the number of ranks on each "
            f"node. Pass another local_world_size."
        )
    numbers = {
        "WORLD_SIZE": world_size,
        "RANK": rank,
        "LOCAL_WORLD_SIZE": local,
        "LOCAL_RANK": rank % local,
        "NODE_RANK": rank // local,
    }
    return {name: str(number) for name, number in numbers.items()}
