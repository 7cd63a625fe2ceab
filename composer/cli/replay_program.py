"""Run the program of a run so that its ``fit`` replays a step."""

from __future__ import annotations

import bdb
import contextlib
import functools
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer import dist
from composer.checkpoint.at_step import run_folder
from composer.checkpoint.save import get_save_filename
from composer.cli.usage import UsageError, raise_if_stdout_closed
from composer.storage.uris import is_remote, local_path
from composer.trainer.fingerprint.compare import RunChangedError
from composer.trainer.overrides import TrainerOverrides, override_trainers
from composer.trainer.replay.file_guard import FileRefusedError, unchanged_files
from composer.trainer.replay.replay import Replay, not_reached
from composer.trials import assignments
from composer.trials.assignments import Assignment
from composer.trials.isolation import ENVIRONMENT, TRACKER_RUNS, isolated, replaced_variables, silent_trackers

if TYPE_CHECKING:
    from composer.trainer import Trainer
    from composer.trials.target import Target

__all__ = ["ReplayOverrides", "replay_program"]


def replay_program(
    target: Target,
    source: str,
    step: int,
    *,
    last_fit: int | None = None,
    prompt: bool = False,
    quiet: bool = False,
    observe: Callable[..., Any] | None = None,
    changes: Sequence[str] = (),
    allow_changes: bool = False,
    checked: Sequence[str] = (),
) -> Any:
    """Run a program in this process up to a step of its training, and return the record of the step.

    Args:
        target: The program.
        source: Path or URI of the run.
        step: Number of batches trained before the step.
        last_fit: The last call of ``fit`` that may train the step, after which the program does not go on; by default
            the first one, ``target.fit``.
        prompt: Whether to stop in a Python prompt before the step.
        quiet: Whether what the program prints goes to stderr.
        observe: ``(replay, fit, **arguments) -> record``, called instead of :meth:`.Replay.train`; returns None if
            training ends before the step.
        changes: Assignments with which the run was forked, see :class:`.Assignment`.
        allow_changes: Whether to go on if the data or the initial weights are not those of the run.
        checked: Assignments that are only checked.

    Raises:
        UsageError: A checked assignment does not fit the program.
        ValueError: The step is not part of the run, or cannot be repeated exactly.
        RuntimeError: The program exits before the step.
        FileRefusedError: The program would change a file that exists.
        SystemExit: The program fails, and its traceback is printed; or the user quits the prompt.

    >>> from composer.trials.target import Target
    >>> replay_program(Target("module", "this"), "runs/night", 3, quiet=True)
    Traceback (most recent call last):
    ...
    ValueError: The program ended after 0 calls of Trainer.fit, before call 1, which is meant.
    """
    overrides = ReplayOverrides(
        source,
        step,
        target.fit,
        last_fit,
        prompt=prompt,
        observe=observe,
        changes=changes,
        allow_changes=allow_changes,
        checked=checked,
    )
    output = contextlib.redirect_stdout(sys.stderr) if quiet else contextlib.nullcontext()
    try:
        with output, _silent_trackers(), _unchanged_files(source), override_trainers(overrides):
            target.run()
    except _ProgramEnd:
        pass
    except SystemExit as error:
        raise RuntimeError(f"The program exited with {error.code!r} before step {step}.") from error
    except bdb.BdbQuit as error:
        raise SystemExit(0) from error
    except FileRefusedError:
        raise
    except Exception as error:
        raise_if_stdout_closed(error)
        traceback.print_exc()
        raise SystemExit(1) from error
    if overrides.error is not None:
        raise overrides.error
    if overrides.record is None:
        raise ValueError(overrides.describe_end())
    return overrides.record


@contextlib.contextmanager
def _silent_trackers() -> Generator[None]:
    """Keep trackers that the program starts itself from sending anything, and let the program tell."""
    with (
        tempfile.TemporaryDirectory(prefix="composer-replay-") as folder,
        replaced_variables(
            {**dict.fromkeys(TRACKER_RUNS), **silent_trackers(Path(folder)), ENVIRONMENT: "replay"},
        ),
    ):
        yield


def _unchanged_files(source: str) -> contextlib.AbstractContextManager[Any]:
    """Refuse changes of files in this folder and in that of the run."""
    remedy = f"Replays change no files: leave this out where the environment variable {ENVIRONMENT} is set."
    callback = "Replays change no files: set writes_output = True in the class {name}, so that it is left out."
    folder = run_folder(source)
    folders = [".", *([] if is_remote(folder) else [local_path(folder)])]
    return unchanged_files(folders, remedy, callback_remedy=callback)


class _ProgramEnd(BaseException):
    """Ends the program; not an Exception, which programs catch."""


class ReplayOverrides(TrainerOverrides):
    """Leaves out the outputs of trainers, and replays a step in a call of ``fit`` or in those that follow it.

    Args:
        source: Path or URI of the run.
        step: Number of batches trained before the step.
        number: The first call of ``fit`` of the run, from 1; earlier ones run as they are.
        last: The last call of ``fit`` that may train the step; by default the first one.
        prompt: Whether to stop in a Python prompt before the step.
        observe: Called instead of :meth:`.Replay.train`, see :func:`replay_program`.
        changes: Assignments with which the run was forked.
        allow_changes: Whether to go on if the data or the initial weights are not those of the run.
        checked: Assignments that are only checked.

    Attributes:
        record: The step, or what ``observe`` returned, once it ran.
        error: Why it cannot be replayed.

    >>> ReplayOverrides("runs/night", 1203, number=1).describe_end()
    'The program ended after 0 calls of Trainer.fit, before call 1, which is meant.'
    """

    def __init__(
        self,
        source: str,
        step: int,
        number: int,
        last: int | None = None,
        *,
        prompt: bool = False,
        observe: Callable[..., Any] | None = None,
        changes: Sequence[str] = (),
        allow_changes: bool = False,
        checked: Sequence[str] = (),
    ) -> None:
        self._allow_changes = allow_changes
        self._changes, self._checked = tuple(map(Assignment.parse, changes)), tuple(map(Assignment.parse, checked))
        self._source, self._step, self._number = source, step, number
        self._last = number if last is None else last
        self._observe = functools.partial(Replay.train, prompt=prompt) if observe is None else observe
        self._calls = 0
        self._absent: tuple[str, ...] = ()
        self._replay: tuple[Trainer, Replay] | None = None
        self.record: Any = None
        self.error: Exception | None = None

    def init(self, trainer: Trainer, init: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Initialize a trainer without outputs."""
        kept = {name: arguments[name] for name in ("run_name", "eval_batches_before_fit") if name in arguments}
        arguments = assignments.apply(self._changes, arguments)
        with self._checks():
            assignments.apply(self._checked, arguments, dry=True)
        self._absent = tuple(name for name, value in arguments.items() if value is None)
        init(**{**isolated(arguments, "replay"), **kept})

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Train up to the step; the program ends after it."""
        self._calls += 1
        arguments = assignments.apply_to_fit(self._changes, arguments)
        with self._checks():
            assignments.apply_to_fit(self._checked, arguments, self._absent, dry=True)
        if self._calls < self._number:
            fit(**arguments)
            return
        if self._replay is None:
            try:
                run = trainer._run  # pyright: ignore[reportPrivateUsage]
                replay = Replay(trainer, run, self._step, self._source, allow_changes=self._allow_changes)
                replay.load()
            except Exception as error:
                self.error = error
                raise _ProgramEnd from error
            self._replay = trainer, replay
        elif self._replay[0] is not trainer:
            fit(**arguments)  # of another run, between two calls of this one
            return
        try:
            self.record = self._observe(self._replay[1], fit, **arguments)
        except RunChangedError as error:
            self.error = error
            raise _ProgramEnd from error
        if self.record is not None:
            trainer.close()
        if self.record is not None or self._calls >= self._last:  # what follows belongs to the end of the run
            raise _ProgramEnd

    @contextlib.contextmanager
    def _checks(self) -> Generator[None]:
        try:
            yield
        except ValueError as error:
            self.error = UsageError(str(error))
            raise _ProgramEnd from error

    def save(self, trainer: Trainer, save: Callable[..., Any], arguments: dict[str, Any]) -> str | None:
        """Save nothing, since the run has saved there; return the path of its file, which the program may load."""
        if "name" not in arguments or dist.get_global_rank() != 0:
            return None
        path = get_save_filename(
            trainer.state, os.fspath(arguments["name"]), weights_only=bool(arguments["weights_only"])
        )
        return path if is_remote(path) or local_path(path).exists() else None

    def describe_end(self) -> str:
        """Return why the program ended without the step."""
        if self._replay is None:
            called = f"{self._calls} calls of Trainer.fit"
            return f"The program ended after {called}, before call {self._number}, which is meant."
        return not_reached(self._step, self._replay[0]._run)  # pyright: ignore[reportPrivateUsage]
