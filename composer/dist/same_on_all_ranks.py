"""Checking that all processes have the same, where going on with different things would hang or train nonsense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as torch_dist

from composer.dist.collectives import all_gather_object
from composer.dist.ranks import describe_ranks

__all__ = ["check_same", "disagreements"]


def check_same(what: str, value: Any, group: torch_dist.ProcessGroup | None = None) -> None:
    """Refuse to go on where processes have different values; all of them call this, and all raise.

    Args:
        what: Name of the value, for the message.
        value: Picklable and comparable by ``==``; small, since all are sent to everyone.
        group: The processes that take part; all if ``None``.

    Raises:
        ValueError: The values differ; names which ranks have which.
        AbsentRankError: Others did not come in time.

    >>> check_same("optimizer", "SGD")
    """
    members = None if group is None else torch_dist.get_process_group_ranks(group)
    found = disagreements([{what: value} for value in all_gather_object(value, group)], members)
    if found:
        raise ValueError(f"{what} must be the same in all processes. {found[what]}.")


def disagreements(everyone: Sequence[Mapping[str, Any]], members: Sequence[int] | None = None) -> dict[str, str]:
    """Return for each name whose values differ which ranks have which.

    Args:
        everyone: Values by name, of each process; where a name is missing its value is None.
        members: Ranks of the processes; 0, 1, ... if ``None``.

    >>> disagreements([{"seed": 1, "lr": 0.1}, {"seed": 1, "lr": 0.2}, {"seed": 1, "lr": 0.1}])
    {'lr': 'ranks 0, 2: 0.1; rank 1: 0.2'}
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(name for values in everyone for name in values):
        # Not by a dictionary of values, which need not be hashable.
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
