"""What to do about a target that the program does not reach."""

from __future__ import annotations

import math
from collections.abc import Sequence

from composer._text import plural
from composer.exploration.goal import Goal
from composer.exploration.trajectory import Trajectory

__all__ = ["missed_target"]

# Part of a run in which it has reached a target that is recommended.
_SAFE = 0.8


def missed_target(goal: Goal, runs: Sequence[Trajectory]) -> str:
    """Return what a run reached, and which target to write; or that the program does not learn.

    Args:
        goal: The goal, with a target that the last run did not reach.
        runs: Runs of the program with different seeds, each with two evaluations that are finite or more.

    >>> from composer.exploration.trajectory import Evaluation
    >>> run = Trajectory(tuple(Evaluation(t, 1, 1, t / 10) for t in (2.0, 4.0, 6.0, 9.0)), 9.0, 4)
    >>> print(missed_target(Goal("accuracy", True, target=0.95), [run]))
    A run of the baseline did not reach accuracy>=0.95 in 9 s of training: the best value was 0.9. Write --target ...
    """
    last = runs[-1]
    reached = _best(goal, last, last.seconds)
    text = f"A run of the baseline did not reach {goal} in {last.seconds:.3g} s of training: the best value was "
    text += f"{reached:.4g}"
    numbers = [one.value for one in last.evaluations]
    lost = sum(not math.isfinite(value) for value in numbers)
    if lost:
        text += f", and in {lost} of {plural(len(numbers), 'evaluation')} it was not finite: the program diverged"
        return f"{text}. Lower its learning rate, or clip its gradients."
    # A target that is reached at the first evaluation tells nothing: that may be all that a run has in its safe part.
    for share in (_SAFE, 1.0):
        worth = _rounded(goal, [_best(goal, run, share * run.seconds) for run in runs])
        recommended = Goal(goal.metric, goal.maximize, target=worth)
        if not any(recommended.is_reached(_best(goal, run, 0.0)) for run in runs):
            return f"{text}. Write --target '{recommended}', or let the program train for longer."
    return (
        f"{text}, as good as at the first evaluation: the program does not learn, or its loss is not finite. Look at "
        "its training loss, lower its learning rate, or let it train for longer."
    )


def _rounded(goal: Goal, values: Sequence[float]) -> float:
    """The worst of some values to three digits, in the direction in which it is reached."""
    worst = min(values) if goal.maximize else max(values)
    digits = 3 - math.ceil(math.log10(abs(worst))) if worst else 3
    scale = 10**digits
    return math.floor(worst * scale) / scale if goal.maximize else math.ceil(worst * scale) / scale


def _best(goal: Goal, run: Trajectory, seconds: float) -> float:
    """The best value until a time, or the first one."""
    known = [one for one in run.evaluations if math.isfinite(one.value)]
    values = [one.value for one in known if one.seconds <= seconds] or [known[0].value]
    return max(values) if goal.maximize else min(values)
