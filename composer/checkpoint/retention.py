"""Which checkpoints of a run to keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from composer._text import one_of

__all__ = ["Retention", "SavedCheckpoint", "retention_of"]


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


def retention_of(newest: int, best: int, every: int, mode: Literal["min", "max"], monitor: str | None) -> Retention:
    """Return what is kept, as the arguments of a saver say.

    Args:
        newest: ``num_checkpoints_to_keep``.
        best: ``keep_best``.
        every: ``keep_every``.
        mode: Whether a small or a large score is good.
        monitor: Name of the metric that is the score, or None.

    Raises:
        ValueError: They do not go together.

    >>> retention_of(2, 0, 10, "min", None)
    Retention(newest=2, best=0, every=10, mode='min')
    """
    if newest < -1:
        raise ValueError(f"num_checkpoints_to_keep must be a number, or -1 for all; got {newest}.")
    if newest == 0 and not best:
        raise ValueError("num_checkpoints_to_keep=0 would remove what was just saved; give 1 to keep the newest.")
    if best < 0 or every < 0:
        raise ValueError(f"keep_best and keep_every must not be negative; got {best} and {every}.")
    if newest == -1 and (best or every):
        raise ValueError(
            "keep_best and keep_every choose among what num_checkpoints_to_keep would remove, and -1 keeps all; give "
            "num_checkpoints_to_keep=1 to keep the newest beside those."
        )
    if (best > 0) != (monitor is not None):
        raise ValueError("keep_best and monitor go together: the number to keep, and 'eval/<metric>' to compare by.")
    return Retention(newest, best, every, one_of("mode", mode, ("min", "max")))
