"""Runners: what trains variants. Strategies only know this protocol, so that tests can simulate training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from composer.exploration.trajectory import Trajectory
from composer.exploration.variant import Variant

__all__ = ["Failure", "Request", "Runner", "Split"]

Split = Literal["selection", "confirmation"]


@dataclass(frozen=True)
class Request:
    """A run that is wanted.

    Args:
        variant: The variant.
        seed: Seed of the run. Runs with the same seed begin with the same weights and see the same data, as far as
            their variants let them.
        seconds: Time of training after which to stop, as in :class:`.Trajectory`; None for the whole duration.
            A run of the same variant, seed and split that has trained for less goes on from there.
        stop_at_target: Whether to stop when the goal is reached.
        split: Which part of the evaluation data is evaluated on: "selection" for whatever decides which variants go on,
            "confirmation" for what is reported.

    >>> Request(Variant("BlurPool"), seed=1).split
    'selection'
    """

    variant: Variant
    seed: int
    seconds: float | None = None
    stop_at_target: bool = True
    split: Split = "selection"


@dataclass(frozen=True)
class Failure:
    """Why a run failed.

    Args:
        error: The error in one line.
        details: The traceback.
        cost: Wall seconds that it took in all, as in :class:`.Trajectory`.

    >>> Failure("out of memory").details
    ''
    """

    error: str
    details: str = ""
    cost: float = 0.0


class Runner(Protocol):
    """Trains variants.

    >>> class Failing:
    ...     spent = 0.0
    ...
    ...     def train(self, requests):
    ...         return [Failure("out of memory") for _ in requests]
    >>> runner: Runner = Failing()
    """

    @property
    def spent(self) -> float:
        """Wall seconds of all runs so far."""
        ...

    def train(self, requests: Sequence[Request]) -> list[Trajectory | Failure]:
        """Run requests one after the other, in the given order, and return their outcomes in this order.

        The outcome of a request that goes on with an earlier run has the evaluations of both.

        Args:
            requests: The runs. Those that are compared stand side by side, so that what else the computer does hits
                them alike.
        """
        ...
