"""Ledger: where the wall time of a run went, over all its processes, and what crashes cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Self

from composer.ledger.category import Category
from composer.ledger.goodput import Goodput
from composer.ledger.segment import Segment

__all__ = ["FILENAME", "Ledger", "parse_segments"]

FILENAME = "ledger.jsonl"
"""Name of the file in a checkpoint folder."""

# What is lost if no checkpoint keeps it. Start-up and compilation are what any new process costs.
_WORK = frozenset(
    {
        Category.TRAINING,
        Category.REPEATED,
        Category.DATA,
        Category.EVALUATION,
        Category.SAVING,
        Category.LOGGING,
    }
)


class Ledger:
    """The seconds of a run by category. Each second from the first start to the last end is in one category.

    Each process adds a segment. If a process resumes from a checkpoint, work of earlier processes after that
    checkpoint was lost: with a crash, everything since the checkpoint; otherwise only if steps are trained again. Steps
    that are trained again are "repeated"; they count for :attr:`goodput`, since each step of the resulting model is
    trained once in ``TRAINING`` or ``REPEATED``.

    A segment that was interrupted by a crash ends when it was last written, or saved the checkpoint from which another
    one resumed. Segments that belong to another run, such
    as the ones in a copy of its folder, do not count.

    Args:
        segments: All segments, in the order in which they began; None for one that cannot be read: the time between its
            neighbors is ``OTHER``.

    Attributes:
        segments: The segments of the run.
        earlier: The segments of other runs before it.

    >>> from composer.ledger import Category, Ledger, Position, Segment
    >>> crashed = Segment("a", 0.0, {Category.START_UP: 2.0, Category.TRAINING: 8.0}, last_batch=80)
    >>> checkpoint = Position("a", {Category.START_UP: 2.0, Category.TRAINING: 5.0})
    >>> resumed = Segment(
    ...     "b",
    ...     15.0,
    ...     {Category.START_UP: 2.0, Category.REPEATED: 3.0},
    ...     "finished",
    ...     first_batch=50,
    ...     last_batch=80,
    ...     resumed=checkpoint,
    ... )
    >>> ledger = Ledger([crashed, resumed])
    >>> ledger.total, ledger.goodput, ledger.explained
    (20.0, 0.4, 1.0)
    >>> print(ledger)
    20.0 s in 2 processes; 40.0 % goodput, 100.0 % explained
      training                      5.0 s   25.0 %
      repeated after a crash        3.0 s   15.0 %
      start-up                      4.0 s   20.0 %
      lost to a crash               3.0 s   15.0 %
      not running                   5.0 s   25.0 %
    """

    def __init__(self, segments: Sequence[Segment | None]) -> None:
        starts = [number for number, segment in enumerate(segments) if segment is not None and segment.begins_run]
        first = starts[-1] if starts else 0
        self._entries = _extended(segments[first:])
        self.segments = tuple(segment for segment in self._entries if segment is not None)
        self.earlier = tuple(segment for segment in segments[:first] if segment is not None)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Return the ledger of a checkpoint folder.

        Args:
            path: The folder, or the file in it; of a remote folder, a downloaded copy.

        Raises:
            FileNotFoundError: It has no ledger.
        """
        file = Path(path)
        file = file / FILENAME if file.is_dir() else file
        if not file.is_file():
            raise FileNotFoundError(
                f"{str(file)!r} does not exist. A run writes it from its first call of fit on, if it has a save_folder."
            )
        return cls(parse_segments(file.read_bytes().decode(errors="replace")))

    @cached_property
    def seconds(self) -> Mapping[Category, float]:
        """Seconds by category."""
        total = dict.fromkeys(Category, 0.0)
        for segment, kept in zip(self.segments, self._kept, strict=True):
            for category, value in segment.seconds.items():
                lost = max(0.0, value - kept.get(category, value)) if category in _WORK else 0.0
                total[category] += value - lost
                total[Category.LOST] += lost
        before, is_known = None, True
        for segment in self._entries:
            if segment is None:
                is_known = False
                continue
            if before is not None:
                is_same = bool(segment.process) and segment.process == before.process
                gap = Category.OTHER if is_same or not is_known else Category.NOT_RUNNING
                total[gap] += max(0.0, segment.started - before.ended)
            before, is_known = segment, True
        return total

    @property
    def total(self) -> float:
        """Seconds from the start of the first process to the end of the last one; processes at a time count each."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """Share of the time that trained steps of the resulting model, from 0 to 1; 0 if no time has passed."""
        return self._share(self.seconds[Category.TRAINING] + self.seconds[Category.REPEATED])

    @property
    def explained(self) -> float:
        """Share of the time in categories other than ``OTHER``, from 0 to 1; 0 if no time has passed."""
        return self._share(self.total - self.seconds[Category.OTHER])

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the process with the most."""
        return max([1, *(len(segment.ranks) for segment in self.segments)])

    def of_rank(self, rank: int) -> Ledger:
        """Return the ledger of another rank, as far as rank 0 knows it.

        Ranks exchange their times when training begins, with each checkpoint, and when it ends. Since then, a rank is
        taken to spend its time as rank 0 does.

        Args:
            rank: The rank; one that a process did not have has no time in it.

        Raises:
            ValueError: The run had no such rank.

        >>> ranks = ({Category.TRAINING: 3.0}, {Category.DATA: 1.0, Category.TRAINING: 2.0})
        >>> Ledger([Segment("a", 0.0, {Category.TRAINING: 4.0}, ranks=ranks)]).of_rank(1).seconds[
        ...     Category.TRAINING
        ... ]
        3.0
        """
        if not 0 <= rank < self.num_ranks:
            raise ValueError(f"rank={rank} is not one of the {self.num_ranks} ranks of the run, counted from 0.")
        return Ledger([None if segment is None else _of_rank(segment, rank) for segment in self._entries])

    def of_all_ranks(self) -> Goodput:
        """Return the goodput of all ranks, with the worst of them.

        >>> print(Ledger([Segment("a", 0.0, {Category.TRAINING: 3.0, Category.SAVING: 1.0})]).of_all_ranks())
        75.0 % goodput
        """
        ranks = range(self.num_ranks)
        absent = [
            sum(sum(each.seconds.values()) for each in self.segments if rank >= max(len(each.ranks), 1))
            for rank in ranks
        ]
        return Goodput.of([self.of_rank(rank) for rank in ranks], absent, self.total)

    def repeated_until(self, batch: int) -> int:
        """Return the number of batches until which training from some batch repeats steps of this run.

        Args:
            batch: Number of batches trained.

        >>> Ledger([Segment("a", 0.0, {}, last_batch=80)]).repeated_until(50)
        80
        """
        return max([batch, *(segment.last_batch for segment in self.segments)])

    @property
    def shares(self) -> dict[Category, float]:
        """Shares of the time by category, from 0 to 1, largest first; without categories of no time.

        >>> Ledger([Segment("a", 0.0, {Category.SAVING: 1.0, Category.TRAINING: 3.0})]).shares
        {<Category.TRAINING: 'training'>: 0.75, <Category.SAVING: 'saving'>: 0.25}
        """
        by_size = sorted(self.seconds.items(), key=lambda item: -item[1])
        return {category: self._share(value) for category, value in by_size if value > 0}

    def __str__(self) -> str:
        """Return a table."""
        number = len({segment.process or segment.id for segment in self.segments})
        lines = [
            f"{self.total:,.1f} s in {number} {'process' if number == 1 else 'processes'}; "
            f"{100 * self.goodput:.1f} % goodput, {100 * self.explained:.1f} % explained"
        ]
        for category, value in self.seconds.items():
            if value > 0:
                lines.append(f"  {category.label:<24}{value:>9,.1f} s  {100 * self._share(value):5.1f} %")
        return "\n".join(lines)

    @cached_property
    def _kept(self) -> list[Mapping[Category, float]]:
        """For each segment, how much of each category later ones continued; a category that is absent was not cut."""
        kept: list[dict[Category, float]] = [{} for _ in self.segments]
        place = {segment.id: number for number, segment in enumerate(self.segments)}
        for number, segment in enumerate(self.segments[1:], 1):
            resumed = segment.resumed
            if resumed is None:
                if segment.first_batch:
                    continue  # from a checkpoint without a position
                origin = -1
            else:
                origin = place.get(resumed.segment, number)
            for between in range(origin + 1, number):
                kept[between] = dict.fromkeys(_WORK, 0.0)
            if resumed is not None and origin < number and _was_cut(self.segments[origin], segment):
                for category in _WORK:
                    at_save = resumed.seconds.get(category, 0.0)
                    kept[origin][category] = min(at_save, kept[origin].get(category, at_save))
        return list(kept)

    def _share(self, seconds: float) -> float:
        return seconds / self.total if self.total > 0 else 0.0


def _extended(segments: Sequence[Segment | None]) -> tuple[Segment | None, ...]:
    """Return the segments with what later ones know of them: that they saved a checkpoint after their last write."""
    found = list(segments)
    place = {segment.id: number for number, segment in enumerate(found) if segment is not None}
    for later in segments:
        number = None if later is None or later.resumed is None else place.get(later.resumed.segment)
        known = None if number is None else found[number]
        if later is None or later.resumed is None or number is None or known is None or known is later:
            continue
        saved = later.resumed.seconds
        if sum(saved.values()) > sum(known.seconds.values()):
            last = max(known.last_batch, later.first_batch)
            ranks = later.resumed.ranks or known.ranks
            found[number] = replace(known, seconds=saved, last_batch=last, ranks=ranks)
    return tuple(found)


def _of_rank(segment: Segment, rank: int) -> Segment:
    """Return what a segment of rank 0 says of another rank."""
    ranks, resumed = segment.ranks or (segment.seconds,), segment.resumed
    seconds: dict[Category, float] = {}
    if rank < len(ranks):
        since = {each: max(0.0, value - ranks[0].get(each, 0.0)) for each, value in segment.seconds.items()}
        seconds = {each: ranks[rank].get(each, 0.0) + since.get(each, 0.0) for each in {*ranks[rank], *since}}
    if resumed is not None and resumed.ranks:
        known = resumed.ranks[rank] if rank < len(resumed.ranks) else {}
        resumed = replace(resumed, seconds=known, ranks=())
    return replace(segment, seconds=seconds, resumed=resumed, ranks=())


def _was_cut(segment: Segment, after: Segment) -> bool:
    """Return whether work of a segment after its checkpoint is lost in a segment that resumed from there."""
    return segment.state in ("running", "failed") or segment.last_batch > after.first_batch


def parse_segments(text: str) -> list[Segment | None]:
    """Return the segments of a file, None for a line that cannot be read, such as one that a crash truncated.

    Args:
        text: The content of ``ledger.jsonl``.

    >>> [segment is None for segment in parse_segments(Segment("a", 0.0, {}).line() + "\\n{\\n")]
    [False, True]
    """
    return [_parsed(line) for line in text.split("\n") if line.strip("\0 \t\r")]


def _parsed(line: str) -> Segment | None:
    try:
        return Segment.parse(line)
    except ValueError:
        return None
