"""Check that a value is the same on all ranks, since differences would cause a hang or wrong results."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as torch_dist

from composer.dist.collectives import all_gather_object, all_reduce, communicates
from composer.dist.ranks import describe_ranks

__all__ = ["check_same", "disagreements", "have_same_digest"]


def check_same(what: str, value: Any, group: torch_dist.ProcessGroup | None = None) -> None:
    """Raise on all ranks if a value differs between ranks; all ranks must call this.

    Args:
        what: Name of the value, for the message.
        value: Picklable and comparable by ``==``; keep it small, since it is all-gathered if digests differ.
        group: The process group; all ranks if ``None``.

    Raises:
        ValueError: The values differ; the message lists the value of each rank.
        MissingRankError: Other ranks did not join before the timeout.

    >>> check_same("optimizer", "SGD")
    """
    if have_same_digest(value, group):
        return
    members = None if group is None else torch_dist.get_process_group_ranks(group)
    found = disagreements([{what: value} for value in all_gather_object(value, group)], members)
    if found:
        raise ValueError(f"{what} must be the same on all ranks. {found[what]}.")


def have_same_digest(value: Any, group: torch_dist.ProcessGroup | None = None) -> bool:
    """Return whether the pickled value is the same on all ranks; all ranks must call this.

    It costs an all-reduce of two numbers, however large the value is and however many ranks there are. Equal values may
    have different digests, such as sets in different orders: compare them themselves if the result is false.

    Args:
        value: Picklable.
        group: The process group; all ranks if ``None``.

    >>> have_same_digest({"lr": 0.1})
    True
    """
    if not communicates():
        return True
    digest = int.from_bytes(hashlib.sha256(pickle.dumps(value)).digest()[:7], "big")
    extremes = torch.tensor([digest, -digest])
    all_reduce(extremes, "MAX", group)
    return extremes[0].item() == -extremes[1].item()


def disagreements(everyone: Sequence[Mapping[str, Any]], members: Sequence[int] | None = None) -> dict[str, str]:
    """Return, for each name whose values differ, a text that lists the value of each rank.

    Args:
        everyone: One mapping of names to values per rank; a missing name counts as None.
        members: The ranks; 0, 1, ... if ``None``.

    >>> disagreements([{"seed": 1, "lr": 0.1}, {"seed": 1, "lr": 0.2}, {"seed": 1, "lr": 0.1}])
    {'lr': 'ranks 0, 2: 0.1; rank 1: 0.2'}
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(name for values in everyone for name in values):
        # A list of pairs, since values need not be hashable.
        groups: list[tuple[Any, list[int]]] = []
        for rank, values in zip(members or range(len(everyone)), everyone, strict=True):
            value = values.get(name)
            ranks = next((ranks for other, ranks in groups if other == value), None)
            if ranks is None:
                groups.append((value, [rank]))
            else:
                ranks.append(rank)
        if len(groups) > 1:
            found[name] = "; ".join(f"{describe_ranks(ranks)}: {value!r}" for value, ranks in groups)
    return found
