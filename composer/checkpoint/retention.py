"""Which checkpoints of a run to keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, cast

from composer._text import one_of

__all__ = ["BestCheckpoint", "Retention", "SavedCheckpoint", "retention_of"]


class BestCheckpoint(NamedTuple):
    """The best of the checkpoints that are kept.

    Attributes:
        path: Where it is, a path or URI.
        value: Value of the monitored metric.

    >>> BestCheckpoint("night/best/ep3.pt", 0.9).value
    0.9
    """

    path: str
    value: float


@dataclass(frozen=True)
class SavedCheckpoint:
    """One that was saved.

    Attributes:
        name: Its name relative to the folder that the run saves to.
        batch: After how many batches of training.
        number: How many the run had saved before.
        score: Value of the metric that tells which are best, or None.

    >>> SavedCheckpoint("ep1.pt", batch=100, number=0).state_dict()
    {'name': 'ep1.pt', 'batch': 100, 'number': 0, 'score': None}
    """

    name: str
    batch: int
    number: int
    score: float | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Any) -> SavedCheckpoint | None:
        """Return what :meth:`state_dict` has described; None if a value is of another type.

        Args:
            state: The fields by name. Earlier versions wrote ``path`` in place of ``name``.

        >>> SavedCheckpoint.from_state({"name": "ep1.pt", "batch": 100, "number": 0, "score": None}).batch
        100
        """
        if not isinstance(state, dict):
            return None
        fields = cast("dict[str, Any]", state)
        name, batch, number = fields.get("name", fields.get("path")), fields.get("batch"), fields.get("number")
        score = fields.get("score")
        if not isinstance(name, str) or not isinstance(batch, int) or not isinstance(number, int):
            return None
        return cls(name, batch, number, score) if score is None or isinstance(score, (int, float)) else None


@dataclass(frozen=True)
class Retention:
    """What is kept; the newest always is, since resumption needs it.

    Attributes:
        newest: How many of the newest; -1 is all.
        best: How many of those with the best score.
        every: Keep every so-manieth for ever, counted from the first; 0 is none.
        mode: Whether a small score is good ("min") or a large one ("max").

    >>> saved = [SavedCheckpoint(f"{i}.pt", i, i, score) for i, score in enumerate([3.0, 1.0, 2.0, 4.0])]
    >>> [one.name for one in Retention(newest=1, best=1, mode="min").superfluous(saved)]
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
        kept |= {one.number for one in self.ranked(saved)[: self.best]}
        kept |= {one.number for one in saved if self.every and one.number % self.every == 0}
        return [one for one in saved if one.number not in kept]

    def ranked(self, saved: Sequence[SavedCheckpoint]) -> list[SavedCheckpoint]:
        """Return those that have a score, the best first; of equal scores, the earlier first.

        Args:
            saved: In the order in which they were saved.
        """
        sign = 1 if self.mode == "min" else -1
        # A score that is no number is none of the best.
        scored = [
            (sign * one.score, one.number, one) for one in saved if one.score is not None and not math.isnan(one.score)
        ]
        return [one for _, _, one in sorted(scored, key=lambda entry: entry[:2])]


def retention_of(newest: int, best: int, every: int, mode: Literal["min", "max"], monitor: str | None) -> Retention:
    """Return what is kept, as the arguments of a saver say.

    Args:
        newest: ``num_checkpoints_to_keep``. With ``best`` or ``every``, which choose among those that are not kept
            otherwise, -1 is 1.
        best: ``keep_best``.
        every: ``keep_every``.
        mode: Whether a small or a large score is good.
        monitor: Name of the metric that is the score, or None.

    Raises:
        ValueError: They do not go together.

    >>> retention_of(2, 0, 10, "min", None)
    Retention(newest=2, best=0, every=10, mode='min')
    >>> retention_of(-1, 3, 0, "min", "eval/Loss")
    Retention(newest=1, best=3, every=0, mode='min')
    """
    if newest < -1:
        raise ValueError(f"num_checkpoints_to_keep must be a number, or -1 for all; got {newest}.")
    if newest == 0 and not best:
        raise ValueError("num_checkpoints_to_keep=0 would remove what was just saved; give 1 to keep the newest.")
    if best < 0 or every < 0:
        raise ValueError(f"keep_best and keep_every must not be negative; got {best} and {every}.")
    if newest == -1 and (best or every):
        newest = 1
    if (best > 0) != (monitor is not None):
        raise ValueError("keep_best and monitor go together: the number to keep, and 'eval/<metric>' to compare by.")
    return Retention(newest, best, every, one_of("mode", mode, ("min", "max")))
