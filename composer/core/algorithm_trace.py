"""Records of which algorithms ran at an event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from composer.core.event import Event

__all__ = ["Trace", "Traces"]


@dataclass(slots=True)
class Trace:
    """The record of one algorithm at one event.

    Attributes:
        name: Class name of the algorithm.
        event: The event, or None in an empty record.
        exit_code: The return value of ``apply``.
        order: Position in the order of the event, from 0.
        run: Whether it ran; false if its ``match`` returned false.

    >>> Trace(name="MixUp", event=Event.BEFORE_LOSS, order=0, run=True).run
    True
    """

    name: str = ""
    event: Event | None = None
    exit_code: int | None = None
    order: int | None = None
    run: bool = False


Traces: TypeAlias = dict[str, Trace]
"""The records of one event by ``"<order>.<class name>/<event>"``."""
