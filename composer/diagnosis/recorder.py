"""The probe that measures a run as it is: the split of its steps, lines of the user's code, operators, and facts."""

from __future__ import annotations

import contextlib
import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from composer import dist
from composer.callbacks import CheckpointSaver
from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.diagnosis.clock_cost import seconds_per_change
from composer.diagnosis.communication import across_ranks
from composer.diagnosis.device_timeline import DeviceTimeline
from composer.diagnosis.edits import edit
from composer.diagnosis.epoch_start import EpochStarts
from composer.diagnosis.line_sampler import LineSampler
from composer.diagnosis.operator_counter import OperatorCounter, seconds_per_operator
from composer.diagnosis.output_errors import OutputErrors, distinct
from composer.diagnosis.outputs import restore_outputs
from composer.diagnosis.redirected_writes import redirect_writes
from composer.diagnosis.run_facts import facts_of
from composer.diagnosis.step_clock import StepClock
from composer.diagnosis.step_split import seconds_of
from composer.diagnosis.step_timer import StepTimer
from composer.diagnosis.thread_watch import ThreadWatch
from composer.diagnosis.user_lines import in_user_code, in_user_handler
from composer.trainer.compilation import fuses_loss, is_compiled
from composer.trials.block_steps import prefetched_batches
from composer.trials.endless import endless, without_ending_schedules
from composer.trials.probe import Finished, Probe

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["DoctorProbe", "StepRecorder"]

# Steps without which there is no split.
_FEWEST = 3
# Steps of a call of fit before the one that is meant.
_SHORT = 3
# Seconds within which nothing was saved, but only found not to be due.
_CHECKS = 5e-4


class DoctorProbe(Probe):
    """Base class of the probes: trains without end, with the outputs of the program in the folder of the trial.

    Args:
        folder: Folder of the trial.
        changed: Names of the arguments of the trainer that the trial changes.
        edits: Names of changes that are not assignments, see ``edits``.

    >>> Trial("long", target, "composer.diagnosis.recorder:DoctorProbe")  # doctest: +SKIP
    """

    def __init__(self, folder: Path, changed: tuple[str, ...] = (), edits: tuple[str, ...] = ()) -> None:
        super().__init__(folder)
        gc.unfreeze()  # the fork server hides what it has imported from the garbage collector
        self._changed, self._edits = changed, edits
        self._clock = StepClock()
        self._left_out: list[str] = []

    def init(self, arguments: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the trainer with its outputs, the timer, and no end."""
        restored, self._left_out = restore_outputs(arguments, given, self.folder, self._changed)
        for name in self._edits:
            restored = edit(name, restored)
        if restored.get("max_duration") is not None:
            restored["max_duration"] = endless(restored["max_duration"])
        return without_ending_schedules(restored)

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Train until :class:`.Finished` is raised; a ``fit`` before the one that is meant, for a few steps."""
        if arguments.get("duration") is not None:
            arguments["duration"] = endless(arguments["duration"])
        elif trainer.state.max_duration is not None:
            trainer.state.max_duration = endless(trainer.state.max_duration)
        for name in self._edits:
            arguments = edit(name, arguments)
        short = [] if self.is_meant else [_ShortFit()]
        if self.is_meant:
            self.begin(trainer)
        main = threading.main_thread()

        def active() -> bool:
            calls = in_user_handler if threading.current_thread() is main else in_user_code
            return calls(sys._getframe(2))

        trainer.state.callbacks += short
        try:
            with redirect_writes(self.folder, active), contextlib.suppress(Finished):
                fit(**without_ending_schedules(arguments))
        finally:
            trainer.state.callbacks = [each for each in trainer.state.callbacks if each not in short]

    def begin(self, trainer: Trainer) -> None:
        """Prepare before the ``fit`` that is meant.

        Args:
            trainer: The trainer.
        """


class StepRecorder(DoctorProbe):
    """Measures some steps, samples the lines of the same number again, and counts the operators of two.

    Args:
        folder: Folder of the trial.
        steps: Number of steps to measure.
        seconds: Time after which to measure no more steps, if there are three.
        changed: See :class:`DoctorProbe`.
        edits: See :class:`DoctorProbe`.

    >>> trial = Trial(  # doctest: +SKIP
    ...     "measure", target, "composer.diagnosis.recorder:StepRecorder", {"steps": 20}
    ... )
    >>> Study(folder).run([trial])["measure"].result["steps"][0]  # doctest: +SKIP
    {'data': 0.0012, 'forward': 0.0043, ...}
    """

    def __init__(
        self,
        folder: Path,
        steps: int = 20,
        seconds: float = 6.0,
        changed: tuple[str, ...] = (),
        edits: tuple[str, ...] = (),
    ) -> None:
        super().__init__(folder, changed, edits)
        self._steps, self._seconds = steps, seconds
        self._phase, self._count, self._total = "warmup", 0, 0
        self._threads = ThreadWatch()
        self._sampler = LineSampler(lambda: self._clock.part, threads=self._threads)
        self._counter = OperatorCounter(lambda: self._clock.part)
        self._stack, self._starts = contextlib.ExitStack(), EpochStarts()
        self._periodic = {part: {"count": 0, "seconds": 0.0, "steps": 0} for part in ("evaluation", "saving")}
        self._result: dict[str, Any] = {"periodic": self._periodic}
        self._timer: StepTimer | None = None
        self._own: dict[str, Any] = {}  # facts that only the arguments show
        self._errors, self._noting = OutputErrors(), contextlib.ExitStack()
        self._noting.enter_context(self._errors.noted())  # from the hyperparameters on

    def init(self, arguments: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the trainer with the timer."""
        restored = super().init(arguments, given)
        self._timer = StepTimer(self._clock, self._ended, fused=fuses_loss(restored.get("compile_config")))
        own_savers = sum(isinstance(one, CheckpointSaver) for one in restored["callbacks"])
        self._own = {"own_savers": own_savers, "grad_accum": restored.get("grad_accum") is not None}
        restored["callbacks"] = [self._timer, *restored["callbacks"]]
        return restored

    def begin(self, trainer: Trainer) -> None:
        """Watch the trainer."""
        self._timer = next(callback for callback in trainer.state.callbacks if isinstance(callback, StepTimer))
        self._trainer = trainer
        self._timer.watch(trainer)
        self._clock.timeline = DeviceTimeline.of(trainer.state.device.torch_device)
        if self._clock.timeline is None:
            self._clock.cost = seconds_per_change()
        self._began = time.perf_counter()
        self._clock.restart()
        self._clock.steps.clear()

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Train until everything is measured."""
        super().fit(trainer, fit, arguments)
        if not self.is_meant:
            return
        self._stack.close()
        self._noting.close()
        self._note_unfinished()
        if not self._result.get("steps"):
            raise RuntimeError(
                f"The program stopped training after {self._total} steps, too few to measure. Turn off what stops it, "
                "such as early stopping."
            )
        left_out = [*self._left_out, *sorted(self._errors.refused)]
        self._result["errors"] = self._errors.to_json()
        self._result["facts"] = {**facts_of(trainer), "left_out": left_out, **self._own}
        self._result["seconds_per_operator"] = seconds_per_operator()
        if dist.get_world_size() > 1:
            results = dist.all_gather_object(self._result)
            self._result = {**across_ranks(results), "errors": distinct(results)}

    def result(self) -> Mapping[str, Any]:
        """Return the split of the steps, the lines, the operators and the facts."""
        return self._result

    def _ended(self) -> None:
        """Note a step, and go on to the next phase when there are enough."""
        if not self.is_meant:
            return
        assert self._timer is not None
        self._count += 1
        self._total += 1
        if self._phase != "counted":
            self._note_periodic(self._clock.steps[-1])
            self._starts.note(self._trainer.state, self._clock.steps[-1], timed=self._phase == "timed")
        now = time.perf_counter()
        late = self._agreed(now - self._began > self._seconds)
        if self._phase == "warmup":
            if self._count >= 3 + prefetched_batches(self._trainer.state)[1] or (late and self._count >= 2):
                self._next("timed")
                self._forwards = self._timer.forwards
                self._threads.begin()
        elif self._phase == "timed":
            if self._count >= self._steps or (late and self._count >= _FEWEST):
                self._threads.end()
                self._note_steps()
                self._next("sampled")
                self._stack.enter_context(self._sampler)
        elif self._phase == "sampled":
            if self._count >= 4 * self._steps or (late and self._count >= 2):
                self._stack.close()
                self._num_sampled = self._count
                self._note_lines()
                if is_compiled(self._trainer._run):  # pyright: ignore[reportPrivateUsage]
                    self._finish()  # operators of a compiled model cannot be counted
                self._next("counted")
                self._stack.enter_context(self._counter)
        elif self._count >= 2:
            self._stack.close()
            self._result["operators"] = self._counter.to_json(self._count)
            self._finish()

    def _finish(self) -> NoReturn:
        """End the run, after the start of an epoch if it matters and was not among the steps that were timed."""
        state, seconds = self._trainer.state, seconds_of(self._result)
        if self._agreed(self._starts.matters(state, sum(seconds.values()))):
            start, lines = self._starts.measure(state, seconds.get("data", 0.0))
            self._result["epoch_start"] = start
            for line, spent in lines.spent.items():
                self._sampler.spent[line] += spent * self._num_sampled / start["steps"]
            self._note_lines()
        raise Finished

    def _note_unfinished(self) -> None:
        """Note what a phase has measured that the program ended, as early stopping does."""
        if self._phase == "timed" and self._count >= _FEWEST:
            self._note_steps()
        elif self._phase == "sampled" and "lines" not in self._result:
            self._note_lines()

    def _note_lines(self) -> None:
        """Note the lines of the user's code that were running, and the threads."""
        self._result["lines"] = self._sampler.to_json()
        self._result["sampled_seconds"] = self._sampler.total
        self._result["threads"] = self._threads.to_json()

    def _note_periodic(self, step: Mapping[str, float]) -> None:
        """Count the evaluations and checkpoints, which are rarer than steps."""
        for part, each in self._periodic.items():
            each["steps"] += 1
            if step.get(part, 0.0) > _CHECKS:
                each["count"] += 1
                each["seconds"] += step[part]

    def _note_steps(self) -> None:
        """Note the split of the steps: that of the device where it has a time line, else that of the host."""
        assert self._timer is not None
        self._result["forwards"] = (self._timer.forwards - self._forwards) / self._count
        self._result["steps"] = self._clock.steps[:]
        self._result["clock"] = statistics.fmean(self._clock.costs[-self._count :])
        if self._clock.timeline is not None:
            self._result["host_steps"] = self._result["steps"]
            self._result["steps"], self._result["starved"] = self._clock.timeline.split_of_steps()
            self._clock.timeline = None

    def _next(self, phase: str) -> None:
        self._phase, self._count, self._began = phase, 0, time.perf_counter()
        self._clock.steps.clear()
        if self._clock.timeline is not None:
            self._clock.timeline.restart()

    def _agreed(self, found: bool) -> bool:
        """Return whether any rank has found something, such as being late: all ranks must end after the same step."""
        return found if dist.get_world_size() == 1 else dist.largest(int(found)) > 0


class _ShortFit(Callback):
    """Ends a ``fit`` after a few steps."""

    def __init__(self) -> None:
        self._left = _SHORT

    def before_dataloader(self, state: State, logger: Logger) -> None:
        if self._left <= 0:
            raise Finished

    def batch_end(self, state: State, logger: Logger) -> None:
        self._left -= 1
