"""Order the checkpoints of a folder, the newest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from composer.checkpoint.templates import counters

__all__ = ["Found", "newest_first"]


@dataclass(frozen=True)
class Found:
    """A checkpoint in a folder.

    Attributes:
        name: Relative to the folder.
        modified: When it was written, in seconds since 1970, or nanoseconds where all are so.

    >>> Found("ep1.pt", 0.0).name
    'ep1.pt'
    """

    name: str
    modified: float


def newest_first(found: Sequence[Found], template: str, link: Found | None) -> list[Found]:
    """Return the checkpoints that a run can resume from, the newest first.

    The newest is the one that the link points at, unless a crash has come between a checkpoint and its link. Older
    ones follow, to fall back to. A checkpoint that counts further than what the link points at, but was written before
    the link, was left by another run and is not among them.

    Args:
        found: The checkpoints in the folder.
        template: Their names, with ``{epoch}``, ``{batch}`` and the like.
        link: The name that the link points at, and when the link was written; None if there is no link.

    >>> found = [Found("ep1.pt", 10), Found("ep2.pt", 20), Found("ep9.pt", 5)]
    >>> [one.name for one in newest_first(found, "ep{epoch}.pt", Found("ep2.pt", 21))]
    ['ep2.pt', 'ep1.pt']
    """

    def age(one: Found) -> tuple[float, tuple[int, ...]]:
        # Many stores count whole seconds; then the counters in the names tell.
        return one.modified, counters(one.name, template)

    if link is None:
        return sorted(found, key=age, reverse=True)
    come = counters(link.name, template)
    others = [one for one in found if one.name != link.name]
    # Later by the clock alone is what a copy of the folder may make of any; further alone, what another run left.
    later = [
        one for one in others if one.modified > link.modified and (counters(one.name, template) > come or not come)
    ]
    earlier = [one for one in others if one not in later and (counters(one.name, template) < come or not come)]
    by_count = sorted(earlier, key=(lambda one: (counters(one.name, template), one.modified)) if come else age)
    return [*sorted(later, key=age, reverse=True), link, *reversed(by_count)]
