"""The runner of real programs: each request is a trial, or goes on from the checkpoint of an earlier one."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer._numbers import positive
from composer._text import plural
from composer.exploration.goal import Goal
from composer.exploration.runner import Failure, Request, Split
from composer.exploration.training_clock import Clock
from composer.exploration.training_probe import CHECKPOINT_FILE
from composer.exploration.trajectory import Evaluation, Trajectory
from composer.trials import ForkServer, Record, Study, Target, Trial
from composer.trials.study import Display
from composer.trials.workspace import Workspace, threads_each

__all__ = ["PROBE", "TrialRunner"]

PROBE = "composer.exploration.training_probe:TrainingProbe"
_LONGEST_NAME = 40


class TrialRunner:
    """Trains variants of a program, one run at a time, each in processes of its own.

    A study keeps the records: a request of which there is a record is not run again, also after an interruption at any
    moment. A run that stopped is continued from its checkpoint, bit for bit.

    Args:
        target: The program.
        goal: What runs are to reach.
        workspace: Folder of the records, and what forks the processes.
        ranks: Number of processes of a run.
        time_limit: Wall seconds after which a run is ended: it fails.
        changes: Assignments that hold for all runs, the baseline's too.
        first_seed: Is added to the seeds of all runs.
        display: Shows which trials run.
        clock: What seconds are counted in, those of the cost too.

    Raises:
        ValueError: ``time_limit`` is not positive.

    >>> from composer.trials.workspace import workspace
    >>> with workspace(None, [PROBE]) as where:  # doctest: +SKIP
    ...     runner = TrialRunner(
    ...         Target("script", "train.py"), Goal.parse("MulticlassAccuracy>=0.96"), where
    ...     )
    ...     runner.train([Request(BASELINE, seed=0)])
    """

    def __init__(
        self,
        target: Target,
        goal: Goal,
        workspace: Workspace,
        *,
        ranks: int = 1,
        time_limit: float = 86400.0,
        changes: Sequence[str] = (),
        first_seed: int = 0,
        display: Display | None = None,
        clock: Clock = "wall",
    ) -> None:
        self._target, self._goal, self._ranks, self._first_seed = target, goal, ranks, first_seed
        self._clock: Clock = clock
        self._time_limit, self._changes = positive("time_limit", time_limit), tuple(changes)
        server: ForkServer | None = workspace.server
        self._study = Study(workspace.folder, server=server, keep_failures=True, display=display)
        self._runs: dict[tuple[tuple[str, ...], int, Split], _Run] = {}
        self._starts: dict[int, tuple[str, str]] = {}  # of the baseline, by seed
        self._notes: dict[str, None] = {}

    @property
    def spent(self) -> float:
        """Wall seconds of all runs so far, those of earlier sessions included."""
        return sum(run.cost for run in self._runs.values())

    @property
    def notes(self) -> list[str]:
        """What a reader of the results should know, such as that the program fixes its own seed."""
        return [*self._notes, *self._seed_notes()]

    def aim_at(self, goal: Goal) -> None:
        """Replace the goal. Runs that have trained to their end are not repeated.

        Args:
            goal: A goal of the same metric.
        """
        self._goal = goal

    def train(self, requests: Sequence[Request]) -> list[Trajectory | Failure]:
        """Run requests one after the other, and return their outcomes in this order.

        Args:
            requests: The runs.
        """
        return [self._outcome(request) for request in requests]

    def _outcome(self, request: Request) -> Trajectory | Failure:
        key = request.variant.changes, request.seed, request.split
        run = self._runs.setdefault(key, _Run())
        if run.failure is None and not self._suffices(run, request):
            self._go_on(run, request)
        if run.failure is not None:
            return Failure(run.failure.error, run.failure.details, run.cost)
        if not request.variant.changes:
            first = run.records[0].result  # what goes on from it begins with a later batch
            self._starts.setdefault(request.seed, (first["weights"], first["first_batch"]))
        return run.trajectory()

    def _suffices(self, run: _Run, request: Request) -> bool:
        """Return whether a run needs not go on."""
        if not run.records:
            return False
        if run.last["is_complete"]:
            return True
        if request.stop_at_target and any(self._goal.is_reached(one.value) for one in run.evaluations.values()):
            return True
        return request.seconds is not None and run.last["seconds"] >= request.seconds

    def _go_on(self, run: _Run, request: Request) -> None:
        """Run a trial that goes on from the last one, or begins if there is none or it left no checkpoint."""
        last = run.trials[-1] if run.trials else None
        trial = self._trial(request, last)
        if last is not None and not (self._study.knows(trial) or self._has_checkpoint(run)):
            last, trial = None, self._trial(request, None)
            run.begin_again()
        record = self._study.run([*run.trials, trial])[trial.name]
        if last is not None and record.is_completed:
            # What went on is not needed again. Its clock and record stay.
            _remove(self._study.folder / last.name / CHECKPOINT_FILE)
        run.trials.append(trial)
        run.add(record, self._clock)
        if record.is_completed and record.result["is_complete"]:
            _remove(self._study.folder / trial.name / CHECKPOINT_FILE)
        for note in record.result.get("notes", ()):
            self._notes[note] = None

    def _has_checkpoint(self, run: _Run) -> bool:
        """Return whether the last trial of a run left a checkpoint that is still there."""
        return run.last["can_go_on"] and (self._study.folder / run.trials[-1].name / CHECKPOINT_FILE).exists()

    def _trial(self, request: Request, last: Trial | None) -> Trial:
        goal, seed = self._goal, self._first_seed + request.seed
        arguments: Mapping[str, Any] = {
            "seed": seed,
            "metric": goal.metric,
            "maximize": goal.maximize,
            "target": goal.target if request.stop_at_target else None,
            "seconds": request.seconds,
            "split": request.split,
            "previous": "" if last is None else last.name,
            "clock": self._clock,
        }
        changes = (*self._changes, *request.variant.changes)
        told = json.dumps([arguments, changes, self._target.fingerprint, self._ranks], sort_keys=True)
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", request.variant.name)[:_LONGEST_NAME]
        return Trial(
            f"{name}-{seed}-{hashlib.sha256(told.encode()).hexdigest()[:12]}",
            self._target,
            PROBE,
            arguments,
            changes,
            ranks=self._ranks,
            time_limit=self._time_limit,
            after=() if last is None else (last.name,),
            threads=threads_each(self._ranks) if self._ranks > 1 else 0,
        )

    def _seed_notes(self) -> list[str]:
        """Return what seeds do not change, of the baseline."""
        starts = list(self._starts.values())
        if len(starts) < 2:
            return []
        same = [len({start[part] for start in starts}) == 1 for part in (0, 1)]
        found = [what for what, is_same in zip(("weights", "batch"), same, strict=True) if is_same]
        if not found:
            return []
        return [
            f"Runs with {plural(len(starts), 'seed')} begin with the same {' and the same '.join(found)}: the program "
            f"fixes its own seed{' or loads weights' if same[0] else ''}. What differs between runs is less than "
            f"between trainings from other beginnings."
        ]


@dataclass
class _Run:
    """A run of a variant with a seed, in one trial or several that go on from each other."""

    trials: list[Trial] = field(default_factory=list[Trial])
    records: list[Record] = field(default_factory=list[Record])
    evaluations: dict[int, Evaluation] = field(default_factory=dict[int, Evaluation])
    failure: Failure | None = None
    cost: float = 0.0

    @property
    def last(self) -> Mapping[str, Any]:
        """The result of the last trial."""
        return self.records[-1].result

    def begin_again(self) -> None:
        """Forget what was trained, whose clock the new beginning does not go on with. Its cost stays."""
        self.trials.clear()
        self.records.clear()
        self.evaluations.clear()

    def add(self, record: Record, clock: Clock) -> None:
        """Add the record of a further trial."""
        self.cost += record.result.get("cpu_seconds", record.seconds) if clock == "cpu" else record.seconds
        if not record.is_completed:
            error = {"out_of_memory": "out of memory", "timed_out": "timed out"}.get(record.outcome, record.outcome)
            self.failure = Failure(f"{error}: {record.error}", record.details)
            return
        self.records.append(record)
        # That at a stop, which a longer run does not have, stays; of two at the same step the later one counts.
        self.evaluations |= {each[1]: Evaluation(*each) for each in record.result["evaluations"]}

    def trajectory(self) -> Trajectory:
        """Return the trajectory of all trials."""
        last = self.last
        return Trajectory(
            tuple(self.evaluations[batch] for batch in sorted(self.evaluations)),
            last["seconds"],
            last["steps"],
            last["startup"],
            self.cost,
            last["is_complete"],
            max(record.result["memory"] for record in self.records),
        )


def _remove(checkpoint: Any) -> None:
    """Remove a checkpoint: a file, or a folder of shards."""
    if checkpoint.is_dir():
        shutil.rmtree(checkpoint)
    else:
        checkpoint.unlink(missing_ok=True)
