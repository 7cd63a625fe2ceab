"""Which process this is, of how many: from the process group, else from the launcher's environment variables."""

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
    """Several processes run, but an environment variable that the launcher should set is missing.

    >>> raise MissingEnvironmentError("LOCAL_RANK is not set.")
    Traceback (most recent call last):
    ...
    composer.dist.ranks.MissingEnvironmentError: LOCAL_RANK is not set.
    """


def is_available() -> bool:
    """Return whether this build of PyTorch can communicate between processes.

    >>> isinstance(is_available(), bool)
    True
    """
    return torch_dist.is_available()


def is_initialized() -> bool:
    """Return whether the process group has been set up.

    >>> is_initialized()
    False
    """
    return torch_dist.is_available() and torch_dist.is_initialized()


def get_world_size(group: torch_dist.ProcessGroup | None = None) -> int:
    """Return the number of processes, on all nodes together.

    Args:
        group: Count the processes of this group only.

    Raises:
        RuntimeError: The process group and the environment disagree.
        ValueError: An environment variable of the launcher is no number that is possible.

    >>> get_world_size()
    1
    """
    if group is not None:
        return torch_dist.get_world_size(group)
    return _identity("WORLD_SIZE", 1, torch_dist.get_world_size() if is_initialized() else None)


def get_global_rank(group: torch_dist.ProcessGroup | None = None) -> int:
    """Return the number of this process among all, from 0 to world size - 1.

    Args:
        group: Count within this group; -1 for a process outside it.

    Raises:
        RuntimeError: The process group and the environment disagree.
        ValueError: An environment variable of the launcher is no number that is possible.

    >>> get_global_rank()
    0
    """
    if group is not None:
        return torch_dist.get_rank(group)
    if is_initialized():
        return _identity("RANK", 0, torch_dist.get_rank())
    return _check_below("RANK", _identity("RANK", 0, None), "WORLD_SIZE", _env("WORLD_SIZE"))


def get_local_world_size() -> int:
    """Return the number of processes on this node.

    Raises:
        MissingEnvironmentError: Several processes run and the launcher did not say.
        ValueError: An environment variable of the launcher is no number that is possible.

    >>> get_local_world_size()
    1
    """
    size, world_size = _local("LOCAL_WORLD_SIZE", default=1), get_world_size()
    if size > world_size:
        raise ValueError(
            f"The environment variable LOCAL_WORLD_SIZE is {size}, the number of processes on this node, but there "
            f"{'is one process' if world_size == 1 else f'are {world_size} processes'} in all. Unset it, or start the "
            f"processes with `composer -n N script.py` or torchrun, which set it."
        )
    return size


def get_local_rank() -> int:
    """Return the number of this process on its node, from 0.

    Raises:
        MissingEnvironmentError: Several processes run and the launcher did not say.
        ValueError: An environment variable of the launcher is no number that is possible.

    >>> get_local_rank()
    0
    """
    return _check_below("LOCAL_RANK", _local("LOCAL_RANK", default=0), "LOCAL_WORLD_SIZE", _env("LOCAL_WORLD_SIZE"))


def get_node_rank() -> int:
    """Return the number of this node, from 0.

    Raises:
        MissingEnvironmentError: Several processes run and the launcher did not say.
        ValueError: An environment variable of the launcher is no number that is possible.

    >>> get_node_rank()
    0
    """
    # torchrun numbers nodes by GROUP_RANK.
    name = "GROUP_RANK" if "NODE_RANK" not in os.environ and "GROUP_RANK" in os.environ else "NODE_RANK"
    return _local(name, default=0)


def check_environment() -> None:
    """Refuse environment variables of a launcher that are no numbers, or that contradict one another.

    They are looked at together, before anything depends on one of them: torchmetrics reads ``LOCAL_RANK`` when it is
    imported, and a wrong ``NODE_RANK`` is in the names of files only.

    Raises:
        MissingEnvironmentError: ``RANK`` is set, and ``WORLD_SIZE`` is not.
        ValueError: One is no number that is possible, or the rank on a node is greater than that among all.

    >>> check_environment()
    """
    names = ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
    stated = {name: number for name in names if (number := _env(name)) is not None}
    if "RANK" in stated and "WORLD_SIZE" not in stated and not is_initialized():
        raise MissingEnvironmentError(
            f"The environment variable RANK is {stated['RANK']}, but WORLD_SIZE is not set. Unset RANK, or start the "
            "processes with `composer -n N script.py` or torchrun, which set both."
        )
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"):
        if name in stated:
            _check_below(name, stated[name], "WORLD_SIZE", stated.get("WORLD_SIZE"))
    if "LOCAL_RANK" in stated:
        _check_below("LOCAL_RANK", stated["LOCAL_RANK"], "LOCAL_WORLD_SIZE", stated.get("LOCAL_WORLD_SIZE"))
    if "RANK" in stated and stated.get("LOCAL_RANK", 0) > stated["RANK"]:
        raise ValueError(
            f"The environment variable LOCAL_RANK is {stated['LOCAL_RANK']}, but RANK is {stated['RANK']}: the rank on "
            f"a node is at most that among all. Unset both, or start the processes with `composer -n N script.py` or "
            f"torchrun, which set them."
        )


def _env(name: str) -> int | None:
    """The whole number in an environment variable, if it is set."""
    text = os.environ.get(name)
    if text is None:
        return None
    least = 1 if name.endswith("SIZE") else 0
    # Not all that `int` takes: of "1_0" nobody knows what was meant.
    number = int(text) if re.fullmatch(r"\s*\+?[0-9]{1,10}\s*", text) else None
    if number is None or number < least:
        raise ValueError(
            f"The environment variable {name} must be a whole number, {least} or more, but is {text!r}. Unset it, or "
            f"start the processes with `composer -n N script.py` or torchrun, which set it."
        )
    return number


def _check_below(name: str, rank: int, size_name: str, size: int | None) -> int:
    """The number of a process, which must be less than that of all; only what the environment says may not be."""
    if size is not None and rank >= size:
        raise ValueError(
            f"The environment variable {name} is {rank}, but {size_name} is {size}: it must be from 0 to {size - 1}. "
            f"Unset both, or start the processes with `composer -n N script.py` or torchrun, which set them."
        )
    return rank


def _identity(name: str, default: int, actual: int | None) -> int:
    """The process group's value, checked against the environment; else the environment's; else the default."""
    stated = _env(name)
    if actual is None:
        return default if stated is None else stated
    if stated is not None and stated != actual:
        raise RuntimeError(
            f"The environment variable {name} is {stated}, but the process group says {actual}. "
            "Unset it, or start the processes with one launcher only."
        )
    return actual


def _local(name: str, default: int) -> int:
    """A number on this node, which only the launcher knows."""
    stated = _env(name)
    if stated is not None:
        return stated
    world_size = get_world_size()
    if world_size > 1:
        raise MissingEnvironmentError(missing_environment(name, world_size))
    return default


def missing_environment(name: str, world_size: int) -> str:
    """Return the text of a :class:`MissingEnvironmentError`.

    Args:
        name: The environment variable.
        world_size: Number of processes.

    >>> missing_environment("RANK", 2)[:68]
    'The world size is 2, but the environment variable RANK is not set. S'
    """
    return (
        f"The world size is {world_size}, but the environment variable {name} is not set. "
        "Start the processes with `composer -n N script.py` or torchrun, which set it."
    )


def describe_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as words, runs of them in short.

    Args:
        ranks: In any order.

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
