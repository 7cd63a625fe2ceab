"""Segment: what one trainer in one process adds to the ledger of a run, and its line in ``ledger.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from composer.ledger.category import MEASURED, Category

__all__ = ["Position", "Ranks", "Segment"]

Ranks: TypeAlias = tuple[Mapping[Category, float], ...]
"""Seconds by category of each rank."""

_MAX_SECONDS = 1e12
_STATES = ("running", "finished", "stopped", "failed")


@dataclass(frozen=True)
class Position:
    """A moment in a segment, such as that of a checkpoint.

    Attributes:
        segment: The ``id`` of the segment.
        seconds: Its seconds by category until then.
        ranks: The same of every rank, if there are several.

    >>> Position.of_saved({"segment": "a1", "seconds": {"training": 2.5}}).seconds
    {<Category.TRAINING: 'training'>: 2.5}
    """

    segment: str
    seconds: Mapping[Category, float]
    ranks: Ranks = ()

    def to_saved(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"segment": self.segment, "seconds": _rounded(self.seconds), **_table(self.ranks)}

    @staticmethod
    def of_saved(saved: object) -> Position:
        """Return the position of plain values.

        Args:
            saved: The return value of :meth:`to_saved`.

        Raises:
            ValueError: It is not one.
        """
        content = _mapping("position", saved)
        return Position(_text("segment", content), _seconds(content), _ranks(content))


@dataclass(frozen=True)
class Segment:
    """The time of one trainer in one process, from the start of the process or of the trainer to its last call.

    Attributes:
        id: Identifies the segment.
        started: When it started, in seconds since 1970.
        seconds: Seconds by category.
        state: "running" while ``fit`` runs, also forever after a crash; "finished"; "stopped" by a signal; "failed" by
            an exception.
        first_batch: Number of batches trained when it began to train.
        last_batch: The same at the last write.
        resumed: The position of the checkpoint that it resumed from; None for none, or one without a position.
        begins_run: Whether the segments before it belong to another run.
        process: Identifies the process; several trainers in one process share it.
        folder: Path or URI of the checkpoint folder, without secrets; empty without one.
        ranks: Seconds by category of every rank, if there are several, when the ranks last exchanged them.

    >>> segment = Segment("a1", 0.0, {Category.TRAINING: 2.5}, last_batch=10)
    >>> Segment.parse(segment.line()) == segment, segment.ended
    (True, 2.5)
    """

    id: str
    started: float
    seconds: Mapping[Category, float]
    state: Literal["running", "finished", "stopped", "failed"] = "running"
    first_batch: int = 0
    last_batch: int = 0
    resumed: Position | None = None
    begins_run: bool = False
    process: str = ""
    folder: str = field(default="", compare=False)
    ranks: Ranks = ()

    @property
    def ended(self) -> float:
        """When it ended, or was last written, in seconds since 1970."""
        return self.started + sum(self.seconds.values())

    def line(self) -> str:
        """Return the segment as a line of JSON, without its line break."""
        content = {
            "segment": self.id,
            "started": round(self.started, 3),
            "state": self.state,
            "first_batch": self.first_batch,
            "last_batch": self.last_batch,
            "seconds": _rounded(self.seconds),
            "resumed": None if self.resumed is None else self.resumed.to_saved(),
            "begins_run": self.begins_run,
            "process": self.process,
            "folder": self.folder,
            **_table(self.ranks),
        }
        return json.dumps(content)

    @staticmethod
    def parse(line: str) -> Segment:
        """Return the segment of a line.

        Args:
            line: The line.

        Raises:
            ValueError: It is not one.
        """
        try:
            content = _mapping("line", json.loads(line))
        except RecursionError as error:
            raise ValueError("The line is nested too deeply.") from error
        resumed, state = content.get("resumed"), content.get("state")
        if state not in _STATES:
            raise ValueError(f"'state' is {state!r}, but must be one of {_STATES}.")
        return Segment(
            id=_text("segment", content),
            started=_number("started", content),
            seconds=_seconds(content),
            state=state,
            first_batch=_count("first_batch", content),
            last_batch=_count("last_batch", content),
            resumed=None if resumed is None else Position.of_saved(resumed),
            begins_run=content.get("begins_run") is True,
            process=_text("process", content),
            folder=_text("folder", content),
            ranks=_ranks(content),
        )


def _rounded(seconds: Mapping[Category, float]) -> dict[str, float]:
    return {category.value: round(value, 4) for category, value in seconds.items()}


def _table(ranks: Ranks) -> dict[str, Any]:
    """Return the seconds of ranks as one list for each category, which is shorter than one mapping for each rank."""
    if not ranks:
        return {}
    return {"ranks": {each.value: [round(rank.get(each, 0.0), 3) for rank in ranks] for each in MEASURED}}


def _ranks(content: Mapping[str, Any]) -> Ranks:
    if "ranks" not in content:  # a single rank
        return ()
    columns = _mapping("'ranks'", content["ranks"])
    sizes = {len(column) if isinstance(column, list) else -1 for column in columns.values()}
    if len(sizes) != 1 or -1 in sizes:
        raise ValueError("'ranks' must have a list of seconds for each category, all of one length.")
    return tuple(
        _seconds({"seconds": {name: column[rank] for name, column in columns.items()}}) for rank in range(sizes.pop())
    )


def _mapping(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"The {name} is {type(value).__name__}, but must be an object.")
    return cast("dict[str, Any]", value)


def _text(name: str, content: Mapping[str, Any]) -> str:
    value = content.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name!r} is {value!r}, but must be a string.")
    return value


def _number(name: str, content: Mapping[str, Any]) -> float:
    value = content.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _MAX_SECONDS:  # nor NaN
        raise ValueError(f"{name!r} is {value!r}, but must be a number of seconds.")
    return float(value)


def _count(name: str, content: Mapping[str, Any]) -> int:
    value = content.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"{name!r} is {value!r}, but must be a number of batches.")
    return value


def _seconds(content: Mapping[str, Any]) -> dict[Category, float]:
    given = _mapping("'seconds'", content.get("seconds"))
    known = {category.value for category in MEASURED}
    if unknown := given.keys() - known:
        raise ValueError(f"'seconds' has the unknown categories {sorted(map(str, unknown))}.")
    found = {Category(name): _number(name, given) for name in given}
    if negative := [category.value for category, value in found.items() if value < 0]:
        raise ValueError(f"'seconds' of {negative} are negative.")
    return found
