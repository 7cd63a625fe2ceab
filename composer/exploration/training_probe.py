"""The probe of a run: trains a variant as a request says, and records its trajectory."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from composer import dist, rng, trees
from composer.checkpoint.save import save_checkpoint
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.interval import IntervalSchedule, create_interval_scheduler
from composer.core.logger import Logger
from composer.core.metric_names import MetricName
from composer.core.state import State
from composer.core.time import TimeUnit
from composer.exploration.goal import Goal
from composer.exploration.goal_options import evaluated_metric
from composer.exploration.held_out import keep_half
from composer.exploration.runner import Split
from composer.exploration.training_clock import CLOCKS, Clock, TrainingClock
from composer.trainer.arguments import as_evaluators
from composer.trainer.batch_loading import is_at_end
from composer.trainer.evaluate import evaluate_if_due
from composer.trainer.fingerprint.sampled import digest_tensors
from composer.trainer.replay.replay import load_state
from composer.trials.peak_memory import peak_memory, reset_peak_memory
from composer.trials.probe import Finished, Probe

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["CHECKPOINT_FILE", "CLOCK_FILE", "TrainingProbe", "resolve_metric"]

CHECKPOINT_FILE = "checkpoint.pt"
# Beside the checkpoint: the clock at that moment.
CLOCK_FILE = "clock.json"
# A run with fewer evaluations says too little about when it reached something; it then has so many.
_FEWEST, _USUAL = 5, 20
# All ranks must stop after the same step; to agree takes time, so it is done after every so many steps.
_AGREE_EVERY = 8


class TrainingProbe(Probe):
    """Trains until the target is reached, for some seconds, or to the end.

    The data of the evaluators is split into halves (see :func:`.keep_half`). When training stops before its end, a
    checkpoint is saved in the folder of the trial, from which a later trial goes on.

    Args:
        folder: Folder of the trial.
        seed: Seed of the run.
        metric: Name of the metric of the goal, in any of its spellings.
        maximize: Whether larger values are better.
        target: Value at which to stop; None for none.
        seconds: Seconds of training after which to stop, with those of earlier trials; None for none.
        split: Which half of the evaluation data to evaluate on.
        previous: Name of the trial to go on from; empty to begin.
        clock: What seconds of training are counted in.

    >>> Trial("run", target, "composer.exploration.training_probe:TrainingProbe")  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        metric: str,
        maximize: bool = True,
        target: float | None = None,
        seconds: float | None = None,
        split: Split = "selection",
        previous: str = "",
        clock: Clock = "wall",
    ) -> None:
        super().__init__(folder)
        gc.unfreeze()  # the fork server hides what it has imported from the garbage collector
        self._seed, self._metric = seed, metric
        self._split: Split = split
        self._goal = None if target is None else Goal(metric, maximize, target=target)
        self._seconds, self._previous = seconds, folder.parent / previous if previous else None
        self._clock: Clock = clock
        self._notes: list[str] = []
        self._halves: list[Any] = []
        self._result: dict[str, Any] = {}
        rng.seed_all(seed)

    def init(self, arguments: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the trainer with the seed, and with half of the evaluation data."""
        return self._halved({**arguments, "seed": self._seed})

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Train; calls of ``fit`` before the one that is meant are part of the program, and train to their end."""
        if not self.is_meant:
            fit(**arguments)
            return
        recorder = _Recorder(trainer, self._metric, self._goal, self._seconds, self._clock)
        if recorder.has_trained:
            self._notes.append("An earlier call of fit trains the same trainer: longer runs begin again.")
        clock = recorder.clock
        if self._previous is not None:
            load_state(trainer, trainer._run, str(self._previous / CHECKPOINT_FILE))  # pyright: ignore[reportPrivateUsage]
            clock.go_on(json.loads((self._previous / CLOCK_FILE).read_text(encoding="utf-8")))
        recorder.saved_as = None if recorder.has_trained else self.folder
        state = trainer.state
        state.callbacks = [recorder, *state.callbacks]
        is_complete = False
        with contextlib.suppress(Finished):
            fit(**self._halved(arguments))
            is_complete = True
        memory = peak_memory(state.device.torch_device)
        self._result = {
            **clock.to_json(),
            "is_complete": is_complete,
            "can_go_on": recorder.is_saved,
            "memory": max(dist.all_gather_object(memory)),
            "cpu_seconds": time.process_time(),
            "metric": str(recorder.metric),
            "weights": (state.fingerprint or {}).get("weights", {}).get("digests", ""),
            "first_batch": recorder.first_batch,
            "notes": [*self._notes, *recorder.notes],
        }

    def result(self) -> Mapping[str, Any]:
        """Return the trajectory."""
        return self._result

    def _halved(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of the trainer or of ``fit`` with evaluators on half of their data."""
        if arguments.get("eval_dataloader") is None:
            return arguments
        interval, subset = arguments["eval_interval"], arguments["eval_subset_num_batches"]
        evaluators = as_evaluators(arguments["eval_dataloader"], interval, subset)
        # Programs may pass the same data to several trainers, or to a trainer and to fit.
        whole = [one for one in evaluators if not any(one.dataloader.dataloader is half for half in self._halves)]
        for label in keep_half(whole, self._split):
            self._notes.append(
                f"The data of evaluator {label!r} is one batch, which cannot be split: what is selected and what is "
                f"reported are evaluated on the same data."
            )
        self._halves += [one.dataloader.dataloader for one in whole]
        return {**arguments, "eval_dataloader": evaluators}


class _Recorder(Callback):
    """Keeps the clock, notes evaluations, and ends training."""

    def __init__(self, trainer: Trainer, metric: str, goal: Goal | None, seconds: float | None, clock: Clock) -> None:
        self.clock = TrainingClock(CLOCKS[clock])
        self.has_trained = trainer.state.timestamp.count(TimeUnit.BATCH) > 0
        self.saved_as: Path | None = None
        self.is_saved = False
        self.metric = MetricName("", metric)
        self.first_batch = ""
        self.notes: list[str] = []
        self._trainer, self._goal, self._seconds = trainer, goal, seconds
        self._is_reached = self._is_late = False
        self._evaluated_at = -1

    def fit_start(self, state: State, logger: Logger) -> None:
        self.metric = resolve_metric(state, str(self.metric.name))
        self._evaluate_often(state)
        reset_peak_memory(state.device.torch_device)
        self.clock.resume()

    def after_dataloader(self, state: State, logger: Logger) -> None:
        if not self.first_batch:
            tensors = [leaf for leaf in trees.leaves(state.batch) if isinstance(leaf, Tensor)]
            self.first_batch = "".join(digest_tensors(tensors))

    def batch_end(self, state: State, logger: Logger) -> None:
        self.clock.end_step()
        if self._seconds is None:
            return
        # The first steps do not tell yet how much of their time is that of the start.
        late = self.clock.seconds >= self._seconds and self.clock.num_laps > 1
        ranks = dist.get_world_size()
        if ranks == 1:
            self._is_late = late
        elif self.clock.steps % _AGREE_EVERY == 0:
            self._is_late = dist.largest(int(late)) > 0

    def eval_before_all(self, state: State, logger: Logger) -> None:
        _synchronize(state)
        self.clock.pause()

    def eval_end(self, state: State, logger: Logger) -> None:
        if state.dataloader_label != self.metric.label:
            return
        value = float(torch.as_tensor(state.eval_values[self.metric.label][self.metric.name]))
        timestamp = state.timestamp
        self._evaluated_at = timestamp.count(TimeUnit.BATCH)
        self.clock.note(self._evaluated_at, timestamp.count(TimeUnit.SAMPLE), value)
        self._is_reached = self._goal is not None and math.isfinite(value) and self._goal.is_reached(value)

    def eval_after_all(self, state: State, logger: Logger) -> None:
        self.clock.resume()

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        # At the end of an epoch, it is seen below whether training ends by itself.
        if (self._is_reached or self._is_late) and not (state.finished or is_at_end(state.train_phase)):
            self._finish(state)

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        if (self._is_reached or self._is_late) and not state.finished:
            self._finish(state)

    def _finish(self, state: State) -> None:
        """Save a checkpoint, evaluate if that was not done at this step, and end training."""
        _synchronize(state)
        self.clock.pause()
        if self.saved_as is not None:
            callbacks = list(state.callbacks)  # the list itself is changed in place
            state.callbacks = [one for one in callbacks if one is not self]
            try:
                save_checkpoint(state, str(self.saved_as / CHECKPOINT_FILE))
            finally:
                state.callbacks = callbacks
            if dist.get_global_rank() == 0:
                (self.saved_as / CLOCK_FILE).write_text(json.dumps(self.clock.to_json()), encoding="utf-8")
            self.is_saved = True
        if self._evaluated_at != state.timestamp.count(TimeUnit.BATCH):
            for evaluator in state.evaluators:
                is_meant = evaluator.label == self.metric.label
                evaluator.eval_interval = _always if is_meant else _never
            evaluate_if_due(self._trainer._run, Event.BATCH_END)  # pyright: ignore[reportPrivateUsage]
        raise Finished

    def _evaluate_often(self, state: State) -> None:
        """Evaluate more often if the program's own interval gives a few evaluations only."""
        for evaluator in state.evaluators:
            interval = evaluator.eval_interval
            number = _evaluations(state, interval) if isinstance(interval, IntervalSchedule) else math.inf
            if evaluator.label == self.metric.label and number < _FEWEST:
                evaluator.eval_interval = create_interval_scheduler(
                    f"{1 / _USUAL}dur", checkpoint_events=False, final_events={Event.FIT_END}
                )
                self.notes.append(
                    f"The program evaluates {self.metric.label!r} {number:.3g} times, too rarely to tell when it "
                    f"reaches something: it is evaluated {_USUAL} times instead."
                )


def resolve_metric(state: State, name: str) -> MetricName:
    """Return the metric of a goal among those of the evaluators.

    Args:
        state: The state, which has the metrics.
        name: Name of the metric in any of its spellings; "loss" for the only one that is a loss.

    Raises:
        ValueError: No evaluator computes it, or several do.

    >>> from composer import State
    >>> resolve_metric(State(model=torch.nn.Linear(1, 1)), "accuracy")
    Traceback (most recent call last):
    ValueError: metric='accuracy': this run has no metrics. Pass eval_dataloader, and a model with get_metrics.
    """
    return evaluated_metric({one.label: state.eval_metrics.get(one.label, {}) for one in state.evaluators}, name)


def _evaluations(state: State, schedule: IntervalSchedule) -> float:
    """Return how often a run evaluates; infinite if that is not known."""
    interval, duration = schedule.interval, state.max_duration
    if interval.value <= 0:
        return 0.0
    if interval.unit == TimeUnit.DURATION:
        return 1 / interval.value
    if duration is None:
        return math.inf
    if interval.unit == duration.unit:
        return duration.value / interval.value
    epoch = state.dataloader_len
    if epoch is None or not epoch.value or {interval.unit, duration.unit} != {TimeUnit.EPOCH, TimeUnit.BATCH}:
        return math.inf
    ratio = duration.value / interval.value
    return max(ratio * epoch.value if duration.unit == TimeUnit.EPOCH else ratio / epoch.value, 1.0)


def _always(state: State, event: Event) -> bool:
    del state, event
    return True


def _never(state: State, event: Event) -> bool:
    del state, event
    return False


def _synchronize(state: State) -> None:
    if state.device.torch_device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize()
