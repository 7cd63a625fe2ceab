"""Optuna's default study on a program: which changes reach a target soonest, on one seed, with a median pruner."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.training import Watch
from composer import Callback, Trainer, rng
from composer.exploration import Goal, Variant
from composer.exploration.held_out import keep_half
from composer.trainer.arguments import as_evaluators
from composer.trainer.overrides import TrainerOverrides, override_trainers
from composer.trials import Assignment
from composer.trials.assignments import apply
from composer.trials.probe import Finished

__all__ = ["Best", "Problem", "study"]

_RATE, _OFF, _SPENT = "optimizers.lr", "off", "cpu_seconds"


@dataclass(frozen=True)
class Problem:
    """What is searched.

    Attributes:
        program: Returns a trainer.
        goal: The target.
        variants: What may be changed; those of one group exclude each other.
        rate: The learning rate of the program as it is.
        limit: Seconds of training after which a run is ended.
    """

    program: Callable[[], Trainer]
    goal: Goal
    variants: tuple[Variant, ...]
    rate: float
    limit: float


@dataclass(frozen=True)
class Best:
    """What a study ends with.

    Attributes:
        variant: The best trial's changes.
        seconds: Its time to the target; the limit if no trial reached it.
        trials: Number of trials.
        pruned: How many of them were pruned.
        failed: How many failed.
        spent: CPU seconds of all trials.
    """

    variant: Variant
    seconds: float
    trials: int
    pruned: int
    failed: int
    spent: float


class _Report(Callback):
    """Reports each evaluation to the pruner, and ends the run when it has reached the target."""

    def __init__(self, watch: Watch, goal: Goal, limit: float, trial: Any) -> None:
        self._watch, self._goal, self._limit, self._trial = watch, goal, limit, trial
        self.reached: float | None = None

    def eval_after_all(self, state: Any, logger: Any) -> None:
        from optuna import TrialPruned

        curve = self._watch.curve
        value, seconds = curve.values[-1], curve.cpu[-1]
        if self._goal.is_reached(value):
            self.reached = seconds
            raise Finished
        if seconds >= self._limit:
            raise Finished
        self._trial.report(-value if self._goal.maximize else value, step=len(curve.values))
        if self._trial.should_prune():
            raise TrialPruned


class _Changed(TrainerOverrides):
    """Creates trainers with changes, a seed and callbacks, on the half of the evaluation data to choose by."""

    def __init__(self, changes: Sequence[str], callbacks: Sequence[Callback]) -> None:
        self._changes, self._callbacks = changes, callbacks

    def init(self, trainer: Trainer, init: Callable[..., None], arguments: dict[str, Any]) -> None:
        changed = apply([Assignment.parse(one) for one in self._changes], arguments)
        evaluators = as_evaluators(
            changed["eval_dataloader"], changed["eval_interval"], changed["eval_subset_num_batches"]
        )
        keep_half(evaluators, "selection")
        init(**{**changed, "eval_dataloader": evaluators, "seed": 0, "callbacks": list(self._callbacks)})


def study(problem: Problem, budget: float, seed: int, file: Path) -> Best:
    """Let Optuna search for a time, with its default sampler (TPE) and pruner (median).

    The program as it is is the first trial, as somebody who knows it would do. Trials whose run fails count as failed.

    Args:
        problem: What is searched.
        budget: CPU seconds of all trials; the last one may take longer.
        seed: Of the sampler.
        file: Journal of the study, which goes on with it.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = optuna.create_study(
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(file))),
        study_name=file.stem,
        load_if_exists=True,
        direction="minimize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.MedianPruner(),
    )
    if not found.trials:
        found.enqueue_trial(_unchanged(problem))
    if _spent(found) < budget:

        def stop(study: Any, trial: Any) -> None:
            if _spent(study) >= budget:
                study.stop()

        found.optimize(lambda trial: _timed(problem, trial), catch=(Exception,), callbacks=[stop])
    best = found.best_trial
    states = [one.state.name for one in found.trials]
    changes = _changes(problem, best.params)
    seconds = float(best.values[0])
    number, pruned, failed = len(states), states.count("PRUNED"), states.count("FAIL")
    return Best(Variant("Optuna", changes, "combination"), seconds, number, pruned, failed, _spent(found))


def _spent(found: Any) -> float:
    """CPU seconds of the trials that have ended."""
    return sum(one.user_attrs.get(_SPENT, 0.0) for one in found.trials)


def _timed(problem: Problem, trial: Any) -> float:
    """The objective, which notes its CPU seconds."""
    begin = time.process_time()
    try:
        return _objective(problem, trial)
    finally:
        trial.set_user_attr(_SPENT, time.process_time() - begin)


def _objective(problem: Problem, trial: Any) -> float:
    """The seconds of training to the target, or the limit."""
    watch = Watch(problem.goal.metric)
    report = _Report(watch, problem.goal, problem.limit, trial)
    changes = _changes(problem, _suggested(problem, trial))
    with override_trainers(_Changed(changes, [watch, report])):
        rng.seed_all(0)
        with problem.program() as trainer, contextlib.suppress(Finished):
            trainer.fit()
    return problem.limit if report.reached is None else report.reached


def _suggested(problem: Problem, trial: Any) -> dict[str, Any]:
    """The values of a trial: a learning rate, and one of each group of variants or none."""
    rates = _rates(problem)
    params: dict[str, Any] = {}
    if rates:
        params[_RATE] = trial.suggest_float(_RATE, min(rates), max(rates), log=True)
    for group, names in _choices(problem).items():
        params[group] = trial.suggest_categorical(group, [_OFF, *names])
    return params


def _unchanged(problem: Problem) -> dict[str, Any]:
    """The values of the program as it is."""
    rate = {_RATE: problem.rate} if _rates(problem) else {}
    return {**rate, **dict.fromkeys(_choices(problem), _OFF)}


def _changes(problem: Problem, params: Mapping[str, Any]) -> tuple[str, ...]:
    """The changes that values stand for."""
    rate = params.get(_RATE, problem.rate)
    found = () if rate == problem.rate else (f"{_RATE}={rate:.6g}",)
    choices = _choices(problem)
    for group, name in params.items():
        if group in choices and name != _OFF:
            found += choices[group][name].changes
    return found


def _rates(problem: Problem) -> list[float]:
    """The learning rates of the variants."""
    return [float(one.changes[0].partition("=")[2]) for one in problem.variants if one.kind == "learning_rate"]


def _choices(problem: Problem) -> dict[str, dict[str, Variant]]:
    """Variants other than learning rates by name, of each group."""
    found: dict[str, dict[str, Variant]] = {}
    for one in problem.variants:
        if one.kind != "learning_rate":
            found.setdefault(one.group or one.name, {})[one.name] = one
    return found
