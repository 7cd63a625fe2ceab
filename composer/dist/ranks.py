"""Rank, local rank, node rank and world size, from the process group or the launcher's environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import torch.distributed as torch_dist

__all__ = [
    "MissingEnvironmentError",
    "check_environment",
    "describe_ranks",
    "get_global_rank",
    "get_local_rank",
    "get_local_world_size",
    "get_node_rank",
    "get_world_size",
    "is_available",
    "is_initialized",
    "missing_environment",
]


class MissingEnvironmentError(Exception):
    """An environment variable that the launcher should set is missing in a distributed run.

    >>> raise MissingEnvironmentError("LOCAL_RANK is not set.")
    Traceback (most recent call last):
    ...
    composer.dist.ranks.MissingEnvironmentError: LOCAL_RANK is not set.
    """


def is_available() -> bool:
    """Return whether this build of PyTorch supports ``torch.distributed``.

    >>> isinstance(is_available(), bool)
    True
    """
    return torch_dist.is_available()


def is_initialized() -> bool:
    """Return whether the default process group is initialized.

    >>> is_initialized()
    False
    """
    return torch_dist.is_available() and torch_dist.is_initialized()


def get_world_size(group: torch_dist.ProcessGroup | None = None) -> int:
    """Return the world size: the number of ranks on all nodes.

    Args:
        group: Return the size of this group instead.

    Raises:
        RuntimeError: The process group and the environment disagree.
        ValueError: An environment variable of the launcher is not a valid number.

    >>> get_world_size()
    1
    """
    if group is not None:
        return torch_dist.get_world_size(group)
    return _group_or_env_value("WORLD_SIZE", 1, torch_dist.get_world_size() if is_initialized() else None)


def get_global_rank(group: torch_dist.ProcessGroup | None = None) -> int:
    """Return the global rank of this process, from 0 to world size - 1.

    Args:
        group: Return the rank within this group instead; -1 for a process outside it.

    Raises:
        RuntimeError: The process group and the environment disagree.
        ValueError: An environment variable of the launcher is not a valid number.

    >>> get_global_rank()
    0
    """
    if group is not None:
        return torch_dist.get_rank(group)
    if is_initialized():
        return _group_or_env_value("RANK", 0, torch_dist.get_rank())
    return _check_below("RANK", _group_or_env_value("RANK", 0, None), "WORLD_SIZE", _env("WORLD_SIZE"))


def get_local_world_size() -> int:
    """Return the number of ranks on this node.

    Raises:
        MissingEnvironmentError: The world size is above 1 and the launcher did not set the variable.
        ValueError: An environment variable of the launcher is not a valid number.

    >>> get_local_world_size()
    1
    """
    size, world_size = _local_env_value("LOCAL_WORLD_SIZE", default=1), get_world_size()
    if size > world_size:
        raise ValueError(
            f"The environment variable LOCAL_WORLD_SIZE is {size}, the number of ranks on this node, but the world "
            f"size is {world_size}. Unset it, or start the processes with `composer -n N script.py` or torchrun, "
            f"which set it."
        )
    return size


def get_local_rank() -> int:
    """Return the rank of this process on its node, from 0.

    Raises:
        MissingEnvironmentError: The world size is above 1 and the launcher did not set the variable.
        ValueError: An environment variable of the launcher is not a valid number.

    >>> get_local_rank()
    0
    """
    return _check_below(
        "LOCAL_RANK", _local_env_value("LOCAL_RANK", default=0), "LOCAL_WORLD_SIZE", _env("LOCAL_WORLD_SIZE")
    )


def get_node_rank() -> int:
    """Return the rank of this node, from 0.

    Raises:
        MissingEnvironmentError: The world size is above 1 and the launcher did not set the variable.
        ValueError: An environment variable of the launcher is not a valid number.

    >>> get_node_rank()
    0
    """
    # torchrun numbers nodes by GROUP_RANK.
    name = "GROUP_RANK" if "NODE_RANK" not in os.environ and "GROUP_RANK" in os.environ else "NODE_RANK"
    return _local_env_value(name, default=0)


def check_environment() -> None:
    """Validate the launcher's environment variables together.

    This runs before anything depends on one of them: torchmetrics reads ``LOCAL_RANK`` on import, and a wrong
    ``NODE_RANK`` would show up in file names only.

    Raises:
        MissingEnvironmentError: ``RANK`` is set and ``WORLD_SIZE`` is not.
        ValueError: A variable is not a valid number, or the local rank is greater than the global rank.

    >>> check_environment()
    """
    names = ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
    from_env = {name: number for name in names if (number := _env(name)) is not None}
    if "RANK" in from_env and "WORLD_SIZE" not in from_env and not is_initialized():
        raise MissingEnvironmentError(
            f"The environment variable RANK is {from_env['RANK']}, but WORLD_SIZE is not set. Unset RANK, or start the "
            "processes with `composer -n N script.py` or torchrun, which set both."
        )
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"):
        if name in from_env:
            _check_below(name, from_env[name], "WORLD_SIZE", from_env.get("WORLD_SIZE"))
    if "LOCAL_RANK" in from_env:
        _check_below("LOCAL_RANK", from_env["LOCAL_RANK"], "LOCAL_WORLD_SIZE", from_env.get("LOCAL_WORLD_SIZE"))
    if "RANK" in from_env and from_env.get("LOCAL_RANK", 0) > from_env["RANK"]:
        raise ValueError(
            f"The environment variable LOCAL_RANK is {from_env['LOCAL_RANK']}, but RANK is {from_env['RANK']}: the "
            f"local rank cannot exceed the global rank. Unset both, or start the processes with "
            f"`composer -n N script.py` or torchrun, which set them."
        )


def _env(name: str) -> int | None:
    """Return the integer in an environment variable, or None if it is not set."""
    text = os.environ.get(name)
    if text is None:
        return None
    least = 1 if name.endswith("SIZE") else 0
    # Stricter than `int`, which accepts "1_0".
    number = int(text) if re.fullmatch(r"\s*\+?[0-9]{1,10}\s*", text) else None
    if number is None or number < least:
        raise ValueError(
            f"The environment variable {name} must be an integer, {least} or more, but is {text!r}. Unset it, or "
            f"start the processes with `composer -n N script.py` or torchrun, which set it."
        )
    return number


def _check_below(name: str, rank: int, size_name: str, size: int | None) -> int:
    """Return a rank, checked to be below the size; only values from the environment can fail this."""
    if size is not None and rank >= size:
        raise ValueError(
            f"The environment variable {name} is {rank}, but {size_name} is {size}: it must be from 0 to {size - 1}. "
            f"Unset both, or start the processes with `composer -n N script.py` or torchrun, which set them."
        )
    return rank


def _group_or_env_value(name: str, default: int, actual: int | None) -> int:
    """Return the process group's value, checked against the environment; else the environment's; else the default."""
    from_env = _env(name)
    if actual is None:
        return default if from_env is None else from_env
    if from_env is not None and from_env != actual:
        raise RuntimeError(
            f"The environment variable {name} is {from_env}, but that of the process group is {actual}. "
            "Unset it, or start the processes with one launcher only."
        )
    return actual


def _local_env_value(name: str, default: int) -> int:
    """Return a rank or size of this node, which only the launcher knows."""
    from_env = _env(name)
    if from_env is not None:
        return from_env
    world_size = get_world_size()
    if world_size > 1:
        raise MissingEnvironmentError(missing_environment(name, world_size))
    return default


def missing_environment(name: str, world_size: int) -> str:
    """Return the message of a :class:`MissingEnvironmentError`.

    Args:
        name: The environment variable.
        world_size: The world size.

    >>> missing_environment("RANK", 2)[:68]
    'The world size is 2, but the environment variable RANK is not set. S'
    """
    return (
        f"The world size is {world_size}, but the environment variable {name} is not set. "
        "Start the processes with `composer -n N script.py` or torchrun, which set it."
    )


def describe_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as text, with consecutive ranks as ranges.

    Args:
        ranks: Ranks in any order.

    >>> describe_ranks([3]), describe_ranks([7, 0, 1, 2, 5])
    ('rank 3', 'ranks 0-2, 5, 7')
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' if sum(map(len, runs)) > 1 else ''} {', '.join(parts)}"
