"""Order the checkpoints of a folder from newest to oldest, for resuming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from composer.checkpoint.name_templates import counters

__all__ = ["Found", "newest_first"]


@dataclass(frozen=True)
class Found:
    """A checkpoint in a folder.

    Attributes:
        name: Relative to the folder.
        modified: Modification time since the epoch, in seconds or nanoseconds; the same unit in all that are compared.

    >>> Found("ep1.pt", 0.0).name
    'ep1.pt'
    """

    name: str
    modified: float


def newest_first(found: Sequence[Found], template: str, link: Found | None) -> list[Found]:
    """Return the checkpoints that a run can resume from, newest first.

    The first is the target of the link, unless a crash came between saving a checkpoint and updating the link. Older
    ones follow as fallbacks. A checkpoint with higher counters than the target of the link, but written before the
    link, belongs to another run and is left out.

    Args:
        found: The checkpoints in the folder.
        template: Template of their names, with ``{epoch}``, ``{batch}`` and the like.
        link: Name of the link's target, and when the link was written; None if there is no link.

    >>> found = [Found("ep1.pt", 10), Found("ep2.pt", 20), Found("ep9.pt", 5)]
    >>> [one.name for one in newest_first(found, "ep{epoch}.pt", Found("ep2.pt", 21))]
    ['ep2.pt', 'ep1.pt']
    """

    def age(one: Found) -> tuple[float, tuple[int, ...]]:
        # Many object stores have a resolution of seconds; the counters in the names break ties.
        return one.modified, counters(one.name, template)

    if link is None:
        return sorted(found, key=age, reverse=True)
    come = counters(link.name, template)
    others = [one for one in found if one.name != link.name]
    # A copy of the folder can change any modification time, and another run may have left higher counters: a newer
    # checkpoint needs both.
    later = [
        one for one in others if one.modified > link.modified and (counters(one.name, template) > come or not come)
    ]
    earlier = [one for one in others if one not in later and (counters(one.name, template) < come or not come)]
    by_count = sorted(earlier, key=(lambda one: (counters(one.name, template), one.modified)) if come else age)
    return [*sorted(later, key=age, reverse=True), link, *reversed(by_count)]
