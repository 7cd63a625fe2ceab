"""Which checkpoints of a run to keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Retention", "SavedCheckpoint"]


@dataclass(frozen=True)
class SavedCheckpoint:
    """One that was saved.

    Attributes:
        path: Where.
        batch: After how many batches of training.
        number: How many the run had saved before.
        score: Value of the metric that tells which are best, or None.

    >>> SavedCheckpoint("ep1.pt", batch=100, number=0).state_dict()
    {'path': 'ep1.pt', 'batch': 100, 'number': 0, 'score': None}
    """

    path: str
    batch: int
    number: int
    score: float | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


@dataclass(frozen=True)
class Retention:
    """What is kept; the newest always is, since resumption needs it.

    Attributes:
        newest: How many of the newest; -1 is all.
        best: How many of those with the best score.
        every: Keep every so-manieth for ever, counted from the first; 0 is none.
        mode: Whether a small score is good ("min") or a large one ("max").

    >>> saved = [SavedCheckpoint(f"{i}.pt", i, i, score) for i, score in enumerate([3.0, 1.0, 2.0, 4.0])]
    >>> [one.path for one in Retention(newest=1, best=1, mode="min").superfluous(saved)]
    ['0.pt', '2.pt']
    """

    newest: int = -1
    best: int = 0
    every: int = 0
    mode: Literal["min", "max"] = "min"

    def superfluous(self, saved: Sequence[SavedCheckpoint]) -> list[SavedCheckpoint]:
        """Return those that are not kept.

        Args:
            saved: In the order in which they were saved.
        """
        if self.newest < 0:
            return []
        kept = {one.number for one in saved[-max(self.newest, 1) :]}
        # A score that is no number is none of the best.
        scored = [one for one in saved if one.score is not None and not math.isnan(one.score)]
        # Of equal scores the earlier is kept.
        sign = 1 if self.mode == "min" else -1
        ranked = sorted(scored, key=lambda one: (sign * one.score if one.score is not None else 0.0, one.number))
        kept |= {one.number for one in ranked[: self.best]}
        kept |= {one.number for one in saved if self.every and one.number % self.every == 0}
        return [one for one in saved if one.number not in kept]
