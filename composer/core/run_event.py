"""RunEvent: something that happened in a run once, such as an evaluation, a checkpoint or a resumption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["RunEvent"]


@dataclass(frozen=True)
class RunEvent:
    """Something that happened in a run once.

    Attributes:
        kind: "start", "resumption", "evaluation", "checkpoint", "spike", "nan", "stop", "interruption", "error" or
            "end"; others are allowed.
        step: Number of batches trained before.
        text: What happened, in one line.
        seconds: Time trained before, in seconds; None if unknown.
        time: When, in seconds since 1970 (Unix time); None if unknown.
        details: Further facts by name: of a checkpoint its ``path``, and ``monitor``, ``mode`` and ``score`` if the
            saver compares a metric.

    >>> RunEvent("checkpoint", 100, "saved ep1.pt").seconds is None
    True
    """

    kind: str
    step: int
    text: str = ""
    seconds: float | None = None
    time: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
