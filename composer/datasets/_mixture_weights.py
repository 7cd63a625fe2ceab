"""The weights of a mixture over time: constants, schedules, functions of the timestamp, and milestones."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

from composer._text import did_you_mean
from composer.core.time import Time
from composer.core.timestamp import Timestamp
from composer.optim.schedule import ComposerScheduler, as_time
from composer.optim.schedule_times import Horizon

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["MixtureWeights", "choose"]

_LARGE = 1e300


class MixtureWeights:
    """The weights of the sources as a function of time, each divided by their sum.

    Args:
        initial: For each name a number, a :class:`.ComposerScheduler`, or a function ``(timestamp) -> number``.
        milestones: Pairs of a time and the weights from then on: a mapping by name, in which others keep theirs.

    Raises:
        TypeError: An entry has the wrong type.
        ValueError: A weight is negative or not finite, all are zero, or a milestone names an unknown source.

    >>> weights = MixtureWeights({"a": 3, "b": 1}, [("10ba", {"a": 0})])
    >>> weights.at(Timestamp(batch=9)), weights.at(Timestamp(batch=10))
    ({'a': 0.75, 'b': 0.25}, {'a': 0.0, 'b': 1.0})
    """

    def __init__(self, initial: Mapping[str, Any], milestones: Sequence[tuple[Any, Mapping[str, float]]] = ()) -> None:
        self._initial = dict(initial)
        for name, weight in self._initial.items():
            if not (_is_number(weight) or isinstance(weight, ComposerScheduler) or callable(weight)):
                raise TypeError(
                    f"The weight of source {name!r} must be a number, a schedule from composer.optim or a function of "
                    f"the timestamp, but got {weight!r}."
                )
            if isinstance(weight, type):
                raise TypeError(f"The weight of source {name!r} is the class {weight.__name__}; give an object of it.")
        self._milestones = [self._milestone(number, entry) for number, entry in enumerate(milestones)]
        units = {time.unit for time, _ in self._milestones}
        if len(units) > 1:
            raise ValueError(
                f"milestones must have times in one unit, but got {sorted(map(str, units))}: their order is not known."
            )
        times = [float(time.value) for time, _ in self._milestones]
        if times != sorted(set(times)):
            raise ValueError(f"milestones must be in order of time, but got {[str(t) for t, _ in self._milestones]}.")
        for name, weight in self._initial.items():
            if _is_number(weight):
                _checked(name, weight)
        self._check_sums()

    def _milestone(self, number: int, entry: Any) -> tuple[Time, dict[str, float]]:
        argument = f"milestones[{number}]"
        if not isinstance(entry, Sequence) or isinstance(entry, str) or len(cast("Sequence[Any]", entry)) != 2:
            raise TypeError(f"{argument} must be a pair of a time and weights by source name, but got {entry!r}.")
        when, weights = cast("tuple[Any, Any]", entry)
        time = as_time(argument, when)
        if not isinstance(weights, Mapping):
            raise TypeError(f"{argument} must map the names of sources to weights, but got {weights!r}.")
        found = dict(cast("Mapping[str, Any]", weights))
        for name, weight in found.items():
            if name not in self._initial:
                hint = did_you_mean(str(name), self._initial)
                raise ValueError(
                    f"{argument} has a weight for {name!r}, but the sources are {list(self._initial)}.{hint}"
                )
            if not _is_number(weight):
                raise TypeError(
                    f"{argument}: the weight of {name!r} must be a number, but got {weight!r}. For a weight that "
                    f"follows a schedule, pass the schedule as the weight of the source."
                )
            _checked(name, weight, prefix=f"{argument}: ")
        return time, found

    def _check_sums(self) -> None:
        """Raise if all weights are 0 at the start, or from a milestone on, whatever schedules and functions return."""
        starts_later = not self._milestones or self._milestones[0][0].value > 0
        steps = [("", self._initial)] if starts_later else []
        current = dict(self._initial)
        for number, (time, weights) in enumerate(self._milestones):
            current.update(weights)
            steps.append((f" from milestones[{number}], at '{time}', on", dict(current)))
        for when, weights in steps:
            if all(_is_number(weight) and not weight for weight in weights.values()):
                raise _all_zero(weights, when)

    @property
    def are_constant(self) -> bool:
        """Whether the weights never change."""
        return not self._milestones and all(map(_is_number, self._initial.values()))

    def at(
        self,
        now: Timestamp,
        state: State | None = None,
        epoch_length: int | None = None,
        horizon: Horizon | None = None,
    ) -> dict[str, float]:
        """Return the normalized weights by name.

        Args:
            now: The time.
            state: The run, for times that depend on its duration; None outside of a run.
            epoch_length: Number of batches in an epoch outside of a run, if known.
            horizon: The horizon outside of a run, if its duration is known.

        Raises:
            ValueError: A weight is negative or not finite, all are zero, or a time requires a run.
        """
        if state is not None:
            horizon = Horizon.of(state)
        elif horizon is None:
            horizon = Horizon.of_run(None, epoch_length)
        found = {name: _value(name, weight, now, state, horizon) for name, weight in self._initial.items()}
        for time, weights in self._milestones:
            if horizon.span(time, scaled=False).reached(now):
                found.update(weights)
        largest = max(found.values())
        if largest > _LARGE:  # their sum may be infinite
            found = {name: weight / largest for name, weight in found.items()}
        total = math.fsum(found.values())
        if total <= 0:
            raise _all_zero(found, f" at '{now.batch}'")
        return {name: weight / total for name, weight in found.items()}


def _value(name: str, weight: Any, now: Timestamp, state: State | None, horizon: Horizon) -> float:
    if isinstance(weight, ComposerScheduler):
        weight = weight.__plan__(horizon)(now) if state is None else weight(state)
    elif callable(weight):
        weight = weight(now)
    return _checked(name, weight, now)


def _checked(name: str, weight: Any, now: Timestamp | None = None, prefix: str = "") -> float:
    """Return a weight as a number."""
    when = "" if now is None else f" at '{now.batch}'"
    if not _is_number(weight):
        raise TypeError(f"{prefix}The weight of source {name!r}{when} must be a number, but is {weight!r}.")
    if not 0 <= weight <= sys.float_info.max:
        raise ValueError(
            f"{prefix}The weight of source {name!r} must be finite and 0 or greater, but is {weight!r}{when}."
        )
    return float(weight)


def _all_zero(weights: Mapping[str, Any], when: str) -> ValueError:
    return ValueError(f"The weights of all sources {list(weights)} are 0{when}; one must be greater than 0.")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def choose(weights: Mapping[str, float], credits: dict[str, float], amount: float, uniform: float) -> str:
    """Choose the source of the next batch at random, such that every source stays close to its weight.

    A source's credit is what it should have contributed until now minus what it did; credits sum to 0. The source is
    sampled with probabilities proportional to max(0, credit + weight * amount): one that is ahead of its weight by a
    batch waits. With batches of equal size, no source is ever ahead by a full batch.

    Args:
        weights: Weights by name, which sum to 1.
        credits: Credits by name, in samples or tokens. Those of sources with weight 0 are handed to the others.
        amount: Mean number of samples or tokens of a batch; 0 if unknown.
        uniform: A random number from 0 to 1, exclusive.

    >>> credits = {"a": -4.0, "b": 4.0}
    >>> choose({"a": 0.5, "b": 0.5}, credits, amount=8.0, uniform=0.0)
    'b'
    """
    stray = sum(credits[name] for name, weight in weights.items() if not weight)
    if stray:
        for name, weight in weights.items():
            credits[name] = credits[name] + weight * stray if weight else 0.0
    targets = {name: credits[name] + weight * (amount or 1.0) for name, weight in weights.items() if weight}
    point = uniform * sum(max(target, 0.0) for target in targets.values())
    for name, target in targets.items():
        if target > 0:
            if point < target:
                return name
            point -= target
    return max(targets, key=targets.__getitem__)  # by rounding
