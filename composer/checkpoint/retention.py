"""Decide which checkpoints to keep: the newest, the best by a metric, and every n-th; the rest are deleted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, cast

from composer._numbers import whole_number
from composer._text import one_of

__all__ = ["BestCheckpoint", "Retention", "SavedCheckpoint", "retention_of"]


class BestCheckpoint(NamedTuple):
    """The checkpoint with the best value of the monitored metric.

    Attributes:
        path: Its path or URI.
        value: Value of the monitored metric.

    >>> BestCheckpoint("night/best/ep3.pt", 0.9).value
    0.9
    """

    path: str
    value: float


@dataclass(frozen=True)
class SavedCheckpoint:
    """A saved checkpoint.

    Attributes:
        name: Its name relative to the folder that the run saves to.
        batch: Number of training batches when it was saved.
        number: Number of checkpoints that the run had saved before.
        score: Value of the monitored metric, or None.

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
        """Create an instance from :meth:`state_dict`; None if a value has another type.

        Args:
            state: The fields by name. Earlier versions wrote ``path`` instead of ``name``.

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
    """Retention policy; the newest checkpoint is always kept, since resuming needs it.

    Attributes:
        newest: Number of newest checkpoints to keep; -1 keeps all.
        best: Number of checkpoints with the best score to keep.
        every: Keep every n-th checkpoint forever, counted from the first; 0 keeps none.
        mode: Whether a lower ("min") or a higher ("max") score is better.

    >>> saved = [SavedCheckpoint(f"{i}.pt", i, i, score) for i, score in enumerate([3.0, 1.0, 2.0, 4.0])]
    >>> [one.name for one in Retention(newest=1, best=1, mode="min").to_delete(saved)]
    ['0.pt', '2.pt']
    """

    newest: int = -1
    best: int = 0
    every: int = 0
    mode: Literal["min", "max"] = "min"

    def to_delete(self, saved: Sequence[SavedCheckpoint]) -> list[SavedCheckpoint]:
        """Return the checkpoints to delete.

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
        """Return the checkpoints with a score, best first; ties are ordered by age, oldest first.

        Args:
            saved: In the order in which they were saved.
        """
        sign = 1 if self.mode == "min" else -1
        # NaN is never among the best.
        scored = [
            (sign * one.score, one.number, one) for one in saved if one.score is not None and not math.isnan(one.score)
        ]
        return [one for _, _, one in sorted(scored, key=lambda entry: entry[:2])]


def retention_of(newest: int, best: int, every: int, mode: Literal["min", "max"], monitor: str | None) -> Retention:
    """Create the retention policy from the arguments of :class:`.CheckpointSaver`.

    Args:
        newest: ``num_checkpoints_to_keep``. With ``best`` or ``every``, which select further checkpoints, -1 means 1.
        best: ``keep_best``.
        every: ``keep_every``.
        mode: Whether a lower or a higher score is better.
        monitor: Name of the monitored metric, or None.

    Raises:
        ValueError: The arguments are invalid or conflict.

    >>> retention_of(2, 0, 10, "min", None)
    Retention(newest=2, best=0, every=10, mode='min')
    >>> retention_of(-1, 3, 0, "min", "eval/Loss")
    Retention(newest=1, best=3, every=0, mode='min')
    """
    newest = whole_number("num_checkpoints_to_keep", newest, minimum=None)
    best, every = whole_number("keep_best", best), whole_number("keep_every", every)
    if newest < -1:
        raise ValueError(f"num_checkpoints_to_keep must be a number, or -1 for all; got {newest}.")
    if newest == 0 and not best:
        raise ValueError(
            "num_checkpoints_to_keep=0 would delete the checkpoint that was just saved; use 1 to keep the newest."
        )
    if newest == -1 and (best or every):
        newest = 1
    if (best > 0) != (monitor is not None):
        raise ValueError(
            "keep_best and monitor must be given together: the number to keep, and 'eval/<metric>' to compare."
        )
    return Retention(newest, best, every, one_of("mode", mode, ("min", "max")))
