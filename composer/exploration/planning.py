"""The plan of an exploration: A/A runs of the baseline, what can be told within the budget, and how long it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from composer._text import plural, printable
from composer.exploration.budgeted_runner import BudgetedRunner
from composer.exploration.curves import Reference, time_to_target
from composer.exploration.goal import Goal
from composer.exploration.missed_target import missed_target
from composer.exploration.runner import Failure, Request
from composer.exploration.trajectory import Trajectory
from composer.exploration.variant import BASELINE
from composer.statistics.power import Prospect, prospect

__all__ = [
    "LEAST_PAIRS",
    "LEAST_SEARCH_COST",
    "SEARCH_COST",
    "BaselineError",
    "Plan",
    "baseline_runs",
    "clock",
    "final_quality",
    "make_plan",
]

# The search takes at most so many trainings of the baseline by default, the A/A runs included.
SEARCH_COST = 15
# With less, a search would compare hardly more than noise.
LEAST_SEARCH_COST = 6
# With more than this, the attribution has the first claim to what is left.
_USUAL_SEARCH = 12.0
LEAST_PAIRS = 6
# Runs of the attribution for each pair: of a combination, of it without each of its parts, and of it without two; and
# of the parts that pay with the tuned baseline.
_ATTRIBUTED, _PAYING = 5, 2
# Spread of runs that are equal as far as can be seen.
_LEAST_SPREAD = 1e-3
# Evaluations until the target below which times are interpolated over long distances.
_FEW = 8


class BaselineError(RuntimeError):
    """The baseline fails, or does not reach the target.

    >>> raise BaselineError("No run of the baseline reached accuracy>=0.99.")
    Traceback (most recent call last):
    ...
    composer.exploration.planning.BaselineError: No run of the baseline reached accuracy>=0.99.
    """


@dataclass(frozen=True)
class Plan:
    """What an exploration will do, and what it can tell, stated before the time is spent.

    Args:
        goal: The goal.
        times: Seconds of training of each A/A run to the target, or to the time of the goal.
        qualities: The metric of each A/A run at its end.
        cost: Wall seconds of an A/A run in the mean, with start and evaluations.
        spread: Standard deviation of the outcomes of pairs of equal runs: of the log ratio of times, or of the
            difference of the metric.
        pairs: Number of pairs of the confirmation; 0 if the budget does not suffice for one.
        search: Wall seconds of the search at most, the A/A runs included.
        confirmation: Wall seconds of the confirmation at most, as estimated.
        attribution: Wall seconds of the attribution at most, as estimated.
        budget: Wall seconds that may be spent.
        num_methods: Number of methods.
        evaluations: Number of evaluations of the A/A run that has fewest.

    >>> goal = Goal("accuracy", True, target=0.9)
    >>> Plan(goal, (10.0, 11.0), (0.9, 0.9), 12.0, 0.1, 8, 180.0, 192.0, 96.0, 1e9, 5, 20).limit
    22.0
    """

    goal: Goal
    times: tuple[float, ...]
    qualities: tuple[float, ...]
    cost: float
    spread: float
    pairs: int
    search: float
    confirmation: float
    attribution: float
    budget: float
    num_methods: int
    evaluations: int

    @property
    def seconds(self) -> float:
        """Seconds of training of the baseline: the geometric mean of the A/A runs."""
        return math.exp(fmean(math.log(time) for time in self.times))

    @property
    def limit(self) -> float:
        """Seconds of training after which a run that has not reached the target is censored."""
        return 2 * max(self.times) if self.goal.seconds is None else self.goal.seconds

    @property
    def total(self) -> float:
        """Wall seconds in all, at most."""
        return self.search + self.confirmation + self.attribution

    @property
    def prospect(self) -> Prospect | None:
        """What the pairs can tell; None without a confirmation, and for a difference of quality."""
        if not self.pairs or self.goal.target is None:
            return None
        return prospect(self.pairs, self.spread)

    def to_json(self) -> dict[str, Any]:
        """Return the plan in JSON types."""
        told = self.prospect
        return {
            "times": list(self.times),
            "qualities": list(self.qualities),
            "cost": self.cost,
            "spread": self.spread,
            "pairs": self.pairs,
            "search_seconds": self.search,
            "confirmation_seconds": self.confirmation,
            "attribution_seconds": self.attribution,
            "budget": None if math.isinf(self.budget) else self.budget,
            "smallest_gain": None if told is None or math.isinf(told.smallest_gain) else told.smallest_gain,
        }

    def __str__(self) -> str:
        """What will be done, what it can tell, and how long it takes."""
        runs = f"{plural(len(self.times), 'run')}: {min(self.times):.3g} to {max(self.times):.3g} s"
        if self.goal.target is None:
            low, high = min(self.qualities), max(self.qualities)
            lines = [
                f"After {self.seconds:.3g} s of training, the baseline has {printable(self.goal.metric)} = "
                f"{fmean(self.qualities):.4g} ({plural(len(self.times), 'run')}: {low:.4g} to {high:.4g})."
            ]
        else:
            lines = [f"The baseline reaches {self.goal} after {self.seconds:.3g} s of training ({runs})."]
        lines[0] += f" A run takes {clock(self.cost)} with start and evaluations."
        if self.evaluations < _FEW:
            lines.append(
                f"It is evaluated only {plural(self.evaluations, 'time')}, and times between evaluations are "
                "interpolated: a shorter eval_interval tells more."
            )
        if self.prospect is not None:
            lines.append(f"{self.prospect}.")
        search = f"The search among {plural(self.num_methods, 'method')} takes"
        if not self.num_methods:
            search = "The A/A runs and the tuning of the baseline take"
        if self.pairs:
            lines.append(
                f"{search} at most {clock(self.search)}, the confirmation "
                f"{clock(self.confirmation)}, and the attribution {clock(self.attribution)}: "
                f"{clock(self.total)} in all."
            )
        else:
            needed = (LEAST_SEARCH_COST + 2 * LEAST_PAIRS) * self.cost
            if self.search >= LEAST_SEARCH_COST * self.cost:
                lines.append(f"{search} at most {clock(self.search)}.")
            else:
                lines += self._hardly_a_search()
            lines[-1] += (
                f" The budget of {clock(self.budget)} does not suffice to confirm what it finds; that takes about "
                f"{clock(needed)} in all."
            )
        return "\n".join(lines)

    def _hardly_a_search(self) -> list[str]:
        """What a budget that is too small for a search is good for."""
        noise = len(self.times) * self.cost
        compared = f"of {plural(self.num_methods, 'method')}, few or none are compared"
        if not self.num_methods:
            compared = "the baseline is hardly tuned"
        lines = [f"The A/A runs took {clock(noise)} of the budget of {clock(self.budget)}: {compared}."]
        if self.num_methods:
            lines[0] += f" A search takes {clock(LEAST_SEARCH_COST * self.cost)} or more."
        return lines


def baseline_runs(runner: BudgetedRunner, num_runs: int = 3) -> list[Trajectory]:
    """Run the baseline several times with different seeds (A/A runs), and return the runs.

    Args:
        runner: What trains.
        num_runs: The number of runs; fewer if the budget ends before, but at least two.

    Raises:
        BaselineError: A run fails, or does not reach the target, or is evaluated less than twice, or a metric that
            counts after a time is not finite then. The first run alone shows that, so that no more time is lost.

    >>> from composer.exploration.trajectory import Evaluation
    >>> class Simulation:  # learns as 1 - exp(-t)
    ...     spent = 0.0
    ...
    ...     def train(self, requests):
    ...         times = [(0.1 + 0.001 * requests[0].seed) * n for n in range(1, 31)]
    ...         values = [1 - math.exp(-time) for time in times]
    ...         curve = tuple(Evaluation(t, 1, 1, value) for t, value in zip(times, values))
    ...         return [Trajectory(curve, times[-1], 30, cost=times[-1], is_complete=True)]
    >>> runner = BudgetedRunner(Simulation(), Goal("accuracy", True, target=0.9))
    >>> [round(time_to_target(run, runner.goal), 2) for run in baseline_runs(runner)]
    [2.3, 2.3, 2.3]
    """
    goal = runner.goal
    runs: list[Trajectory] = []
    for seed in range(num_runs):
        seconds = goal.seconds if not runs or goal.seconds is not None else 2 * max(one.seconds for one in runs)
        request = Request(BASELINE, seed, seconds, stop_at_target=goal.target is not None)
        if len(runs) > 1 and not runner.fits([request], most=runs[-1].seconds):
            break
        (outcome,) = runner.train("noise", [request])
        if goal.target is not None and isinstance(outcome, Trajectory) and time_to_target(outcome, goal) is None:
            # On a busy host a run may take more than twice as long as another: only its end shows what it reaches.
            (outcome,) = runner.train("noise", [Request(BASELINE, seed)])
        if isinstance(outcome, Failure):
            raise BaselineError(f"The program fails as it is: {printable(outcome.error)}")
        runs.append(outcome)
        _check(goal, runs)
    return runs


def final_quality(runner: BudgetedRunner, num_runs: int = 3) -> float:
    """Train the baseline to its end with different seeds, and return the mean of its last values of the metric.

    Args:
        runner: What trains.
        num_runs: The number of runs; fewer if the budget ends before, but at least two.

    Raises:
        BaselineError: A run fails, or was never evaluated, or its last value of the metric is not finite.

    >>> from composer.exploration.trajectory import Evaluation
    >>> class Simulation:
    ...     spent = 0.0
    ...
    ...     def train(self, requests):
    ...         return [Trajectory((Evaluation(1.0, 1, 1, 0.5 + one.seed),), 2.0, 2) for one in requests]
    >>> final_quality(BudgetedRunner(Simulation(), Goal("accuracy", True, seconds=math.inf)))
    1.5
    """
    found: list[float] = []
    seconds = 0.0
    for seed in range(num_runs):
        request = Request(BASELINE, seed, None, stop_at_target=False)
        if len(found) > 1 and not runner.fits([request], most=seconds):
            break
        (outcome,) = runner.train("noise", [request])
        if isinstance(outcome, Failure):
            raise BaselineError(f"The program fails as it is: {printable(outcome.error)}")
        if outcome.last is None:
            raise BaselineError("The baseline was never evaluated: pass a shorter eval_interval to the Trainer.")
        _check_last(runner.goal, outcome)
        found.append(outcome.last)
        seconds = outcome.seconds
    return fmean(found)


def _check(goal: Goal, runs: Sequence[Trajectory]) -> None:
    """Raise an error that says what to write if the last run is of no use."""
    last = runs[-1]
    known = [one.value for one in last.evaluations if math.isfinite(one.value)]
    if len(known) == 1 and goal.is_reached(known[0]) and not last.is_complete:
        raise BaselineError(
            f"The baseline has {printable(goal.metric)} = {known[0]:.4g} at its first evaluation, after "
            f"{last.seconds:.3g} s of training: choose a target that is harder to reach than {goal}, or pass a "
            "shorter eval_interval to the Trainer."
        )
    if len(known) < 2 <= len(last.evaluations):
        raise BaselineError(
            f"{printable(goal.metric)} of the baseline is finite in {len(known)} of {len(last.evaluations)} "
            "evaluations, and at least 2 such values are needed: choose another metric, or find out why it is NaN or "
            "infinite."
        )
    if len(known) < 2:
        raise BaselineError(
            f"The baseline was evaluated {plural(len(last.evaluations), 'time')} in {last.seconds:.3g} s, and at least "
            "2 values are needed: pass a shorter eval_interval to the Trainer."
        )
    if goal.target is None:
        _check_last(goal, last)
        return
    if time_to_target(last, goal) is not None:
        return
    raise BaselineError(missed_target(goal, runs))


def _check_last(goal: Goal, run: Trajectory) -> None:
    """Raise an error if the last value of the metric is not finite."""
    if run.last is not None and not math.isfinite(run.last):
        raise BaselineError(
            f"{printable(goal.metric)} of the baseline is {run.last} at its last evaluation, after "
            f"{run.evaluations[-1].seconds:.3g} s of training, so that no method can be compared with it: choose "
            "another metric, or find out why it is not finite."
        )


def make_plan(
    runner: BudgetedRunner,
    runs: Sequence[Trajectory],
    num_methods: int,
    pairs: int = 8,
    *,
    search: float = SEARCH_COST,
) -> Plan:
    """Return the plan: how many pairs and how much search fit into the budget.

    Args:
        runner: What has trained the runs.
        runs: The A/A runs, at least two.
        num_methods: Number of methods; 0 if the baseline is only tuned.
        pairs: Number of pairs of the confirmation, if they fit; at least 6.
        search: Cost of the search at most, the A/A runs included, in trainings of the baseline.

    Raises:
        ValueError: There are fewer than two runs, or pairs is less than 6.

    >>> from composer.exploration.trajectory import Evaluation
    >>> curve = (Evaluation(10.0, 1, 1, 0.5), Evaluation(20.0, 2, 2, 0.95))
    >>> runner = BudgetedRunner(None, Goal("accuracy", True, target=0.9), budget=2000.0)
    >>> print(make_plan(runner, [Trajectory(curve, 20.0, 2, cost=25.0)] * 3, num_methods=20))
    The baseline reaches accuracy>=0.9 after 18.9 s of training (3 runs: 18.9 to 18.9 s). A run takes 25 s ...
    It is evaluated only 2 times, and times between evaluations are interpolated: a shorter eval_interval tells more.
    8 pairs with a spread of 0.1 % can tell gains of at least 0.0998 % (power 80 %, alpha 5 %).
    The search among 20 methods takes at most 6 min, the confirmation 7 min, and the attribution 20 min: 33 min in all.
    """
    if len(runs) < 2:
        raise ValueError(f"runs must hold at least 2 A/A runs, but got {len(runs)}; a budget for one tells nothing.")
    if pairs < LEAST_PAIRS:
        raise ValueError(f"pairs must be at least {LEAST_PAIRS}, but got {pairs}; fewer tell no gain from noise.")
    goal = runner.goal
    times = [time or run.seconds for run, time in zip(runs, Reference(goal, tuple(runs)).times, strict=True)]
    qualities = [float(run.last or 0.0) for run in runs]
    # Pairs share their seed, so that this is what they spread at most.
    if goal.target is None:
        spread = math.sqrt(2) * stdev(qualities)
    else:
        spread = max(math.sqrt(2) * stdev(math.log(time) for time in times), _LEAST_SPREAD)
    cost = fmean(run.cost for run in runs)
    fitting = [
        number
        for number in range(pairs - pairs % 2, LEAST_PAIRS - 1, -2)
        if runner.budget >= (min(LEAST_SEARCH_COST, search) + 2 * number) * cost
    ]
    chosen = fitting[0] if fitting else 0
    left = runner.budget - 2 * chosen * cost
    attribution = min(_ATTRIBUTED * chosen * cost, max(left - _USUAL_SEARCH * cost, 0.0))
    searched = min(search * cost, left - attribution)
    attribution += min(_PAYING * chosen * cost, left - searched - attribution)
    return Plan(
        goal=goal,
        times=tuple(times),
        qualities=tuple(qualities),
        cost=cost,
        spread=spread,
        pairs=chosen,
        search=searched,
        confirmation=2 * chosen * cost,
        attribution=attribution,
        budget=runner.budget,
        num_methods=num_methods,
        evaluations=min(len(run.evaluations) for run in runs),
    )


def clock(seconds: float) -> str:
    """Return a duration as text, in the unit that people would use.

    Args:
        seconds: The duration.

    >>> clock(0.42), clock(12.3), clock(600), clock(9000), clock(math.inf)
    ('0.42 s', '12 s', '10 min', '2.5 h', 'unlimited')
    """
    if math.isinf(seconds):
        return "unlimited"
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
