"""Goodput: how much of the time of all ranks trained steps of the resulting model, and what the rest was spent on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from composer.ledger.category import Category

if TYPE_CHECKING:
    from composer.ledger.ledger import Ledger

__all__ = ["Goodput"]

_TRAINED = (Category.TRAINING, Category.REPEATED)
# What the worst rank must have trained less than the mean, of the mean, to give a reason.
_SHORTFALL = 0.01


@dataclass(frozen=True)
class Goodput:
    """The time of a run on all its ranks: that of the processes, what crashes cost, and the time between processes.

        goodput = (training + repeated seconds of all ranks) / (seconds from first start to last end * number of ranks)

    If a later process had fewer ranks, the time of the missing ones counts as :attr:`missing`.

    Attributes:
        wall: Seconds from the first start to the last end.
        seconds: Seconds by category, summed over the ranks.
        missing: Seconds in which ranks were missing that other processes of the run had, summed over these ranks.
        by_rank: Goodput of each rank, from 0 to 1.
        reason: What the worst rank spends more time on than the mean, if that is at least half of what it trained less;
            None if there is no such category, or it hardly differs from the others.

    >>> from composer.ledger import Ledger, Segment
    >>> ranks = ({Category.TRAINING: 8.0, Category.DATA: 2.0}, {Category.TRAINING: 2.0, Category.DATA: 8.0})
    >>> goodput = Ledger([Segment("a", 0.0, ranks[0], ranks=ranks)]).of_all_ranks()
    >>> goodput.share, goodput.by_rank, goodput.worst_rank, goodput.seconds[Category.DATA]
    (0.5, (0.8, 0.2), 1, 10.0)
    >>> print(goodput)
    50.0 % goodput of 2 ranks, 20.0 % of rank 1 (waiting for data)
    """

    wall: float
    seconds: Mapping[Category, float]
    missing: float
    by_rank: tuple[float, ...]
    reason: Category | None = None

    @property
    def share(self) -> float:
        """Goodput of all ranks, from 0 to 1."""
        return sum(self.by_rank) / len(self.by_rank)

    @property
    def worst_rank(self) -> int:
        """The rank with the least goodput: in synchronous training, the one that the others wait for."""
        return _worst(self.by_rank)

    def __str__(self) -> str:
        """Return one line."""
        text = f"{100 * self.share:.1f} % goodput"
        if len(self.by_rank) == 1:
            return text
        reason = "" if self.reason is None else f" ({self.reason.label})"
        worst = self.worst_rank
        return f"{text} of {len(self.by_rank)} ranks, {100 * self.by_rank[worst]:.1f} % of rank {worst}{reason}"

    @staticmethod
    def of(ledgers: Sequence[Ledger], absent: Sequence[float], wall: float) -> Goodput:
        """Return the goodput of a run.

        Args:
            ledgers: The ledger of each rank.
            absent: For each rank, the seconds of the processes that did not have it.
            wall: Seconds from the first start to the last end.
        """
        seconds = {each: sum(ledger.seconds[each] for ledger in ledgers) for each in Category}
        # In the ledger of a rank, a process that did not have it is a time between processes, but for the last one.
        beyond = sum(max(0.0, wall - ledger.total) for ledger in ledgers)
        seconds[Category.NOT_RUNNING] = max(0.0, seconds[Category.NOT_RUNNING] - (sum(absent) - beyond))
        trained = [sum(ledger.seconds[each] for each in _TRAINED) for ledger in ledgers]
        by_rank = tuple(min(each / wall, 1.0) if wall > 0 else 0.0 for each in trained)
        worst = _worst(by_rank)
        # Only what processes measured: the time between them is that of rank 0 for all.
        excess = {
            each: _measured(ledgers[worst], each) - sum(_measured(ledger, each) for ledger in ledgers) / len(ledgers)
            for each in Category
            if each not in _TRAINED
        }
        most, mean = max(excess, key=excess.__getitem__), sum(trained) / len(trained)
        shortfall = mean - trained[worst]
        is_reason = shortfall > _SHORTFALL * mean and excess[most] >= shortfall / 2
        return Goodput(wall, seconds, sum(absent), by_rank, most if is_reason else None)


def _worst(by_rank: Sequence[float]) -> int:
    return min(range(len(by_rank)), key=by_rank.__getitem__)


def _measured(ledger: Ledger, category: Category) -> float:
    return sum(segment.seconds.get(category, 0.0) for segment in ledger.segments)
