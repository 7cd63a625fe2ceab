"""The progress of an exploration as lines: the plan, what runs, and how much time is left."""

from __future__ import annotations

from collections.abc import Callable

from composer._text import printable
from composer.exploration.planning import Plan, clock
from composer.exploration.runner import Request
from composer.trials import Record, Trial

__all__ = ["Progress"]


class Progress:
    """Says which runs start; those of which there is a record are silent. It is the display of a study.

    Args:
        say: Called with each line; None says nothing.

    >>> from composer.exploration.variant import BASELINE
    >>> progress = Progress(print)
    >>> progress.asked("noise", Request(BASELINE, seed=0, seconds=12.0), spent=0.0)
    >>> progress.started(None)
    noise: baseline, seed 0, up to 12 s of training
    """

    def __init__(self, say: Callable[[str], None] | None) -> None:
        self._say = say
        self._plan: Plan | None = None
        self._line = ""
        self._spent = 0.0

    def say(self, text: str) -> None:
        """Say each line of a text.

        Args:
            text: The text.
        """
        if self._say is not None:
            for line in text.splitlines():
                self._say(printable(line))

    def planned(self, plan: Plan) -> None:
        """Show the plan.

        Args:
            plan: The plan.
        """
        self._plan = plan
        self.say(str(plan))

    def asked(self, stage: str, request: Request, spent: float) -> None:
        """Note a run that may start.

        Args:
            stage: What it is for.
            request: The run.
            spent: Wall seconds so far.
        """
        seconds = "" if request.seconds is None else f", up to {clock(request.seconds)} of training"
        left = "" if self._plan is None else f"; at most {clock(max(self._plan.total - spent, 0.0))} left"
        self._line = f"{stage}: {request.variant.name}, seed {request.seed}{seconds}{left}"

    def started(self, trial: Trial | None) -> None:
        """Show what has started.

        Args:
            trial: Its trial.
        """
        del trial
        self.say(self._line)

    def ended(self, trial: Trial, record: Record, *, known: bool) -> None:
        """Show nothing: the result is in the report."""
        del trial, record, known
