"""Run the program of a run so that it makes a checkpoint at a step, or trains on from there as a fork."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer import dist
from composer.callbacks._memory_files import TraceFiles
from composer.checkpoint.at_step import run_folder
from composer.cli.usage import UsageError, raise_if_stdout_closed
from composer.core.callback import Callback
from composer.core.name_placeholders import placeholders, with_braces
from composer.profiler._output_files import WindowFiles
from composer.storage.uris import is_remote, local_path
from composer.trainer.fork import StateSaver, fork
from composer.trainer.overrides import TrainerOverrides, override_trainers
from composer.trainer.replay.file_guard import FileRefusedError, unchanged_files
from composer.trainer.replay.replay import Replay
from composer.trainer.short_names import instances
from composer.trials import assignments
from composer.trials.assignments import Assignment
from composer.trials.isolation import TRACKER_RUNS, replaced_variables
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.trainer import Trainer
    from composer.trials.target import Target

__all__ = ["ForkOverrides", "fork_program", "save_state"]

# Arguments of the trainer's methods that save, and attributes of callbacks and of their parts, with paths.
_PATHS = frozenset({"name", "save_path"})
_TEMPLATES = ("root_folder", "folder", "filename", "save_path")
_PARTS = (Callback, TraceFiles, WindowFiles)


def save_state(
    target: Target,
    source: str,
    at: int,
    path: str,
    run_name: str,
    changes: Sequence[str] = (),
    *,
    last_fit: int | None = None,
    checked: Sequence[str] = (),
) -> None:
    """Run a program in this process up to a step of its run, and save the state there.

    Args:
        target: The program.
        source: Path or URI of the run.
        at: Number of batches trained before the step.
        path: Where to save.
        run_name: Name of the run.
        changes: Assignments with which the run itself was forked.
        last_fit: The last call of ``fit`` of the trainer; by default the first.
        checked: Assignments of the fork, which are checked before the program trains.

    Raises:
        UsageError: An assignment does not fit the program.
        ValueError: The step is beyond the end of the run, or cannot be repeated exactly.

    >>> from composer.trials.target import Target
    >>> save_state(Target("module", "this"), "runs/night", 3, "state.pt", "night")
    Traceback (most recent call last):
    ...
    ValueError: The program ended after 0 calls of Trainer.fit, before call 1, which is meant.
    """
    from composer.cli.replay_program import replay_program

    def observe(replay: Replay, fit: Callable[..., None], **arguments: Any) -> bool | None:
        replay.run.state.run_name = run_name
        saver = StateSaver(at, path)
        replay.train_with(saver, fit, **arguments)
        return saver.is_saved or None

    replay_program(target, source, at, last_fit=last_fit, quiet=True, observe=observe, changes=changes, checked=checked)


def fork_program(target: Target, overrides: ForkOverrides) -> None:
    """Run a program in this process so that it trains on from a step of its run, as a new run.

    Args:
        target: The program.
        overrides: The fork.

    Raises:
        ValueError: The program makes no trainer or several, or nothing is left to train.
        SystemExit: The program fails; its traceback is printed.

    >>> from composer.trials.target import Target
    >>> overrides = ForkOverrides("ep1.pt", 3, parent="night", name="fork", folder="fork")
    >>> fork_program(Target("module", "this"), overrides)
    Traceback (most recent call last):
    ...
    ValueError: The program ended without a call of Trainer.fit.
    """
    remedy = "A fork changes no files of the run: write to a path with {run_name}."
    with (
        overrides.errors(),
        replaced_variables(dict.fromkeys(TRACKER_RUNS)),
        unchanged_files(overrides.folders_of_run, remedy),
        override_trainers(overrides),
    ):
        target.run()
    overrides.check_end()


class _ProgramEnd(BaseException):
    """Ends the program; not an Exception, which programs catch."""


class ForkOverrides(TrainerOverrides):
    """Makes the trainer of a program with changes, its own name and folder, and lets it train on from a checkpoint.

    Args:
        source: Path or URI of the checkpoint.
        at: Number of batches that both runs share.
        parent: Path or URI of the run.
        name: Name of the new run.
        folder: Path or URI of the folder in which it saves checkpoints.
        changes: Assignments, see :class:`.Assignment`.
        inherited: Assignments with which the run itself was forked.

    Attributes:
        error: Why the program cannot be forked.

    >>> ForkOverrides("ep1.pt", 3, parent="night", name="fork", folder="fork").error is None
    True
    """

    def __init__(
        self,
        source: str,
        at: int,
        *,
        parent: str,
        name: str,
        folder: str,
        changes: Sequence[str] = (),
        inherited: Sequence[str] = (),
    ) -> None:
        self._source, self._at, self._parent, self._name, self._folder = source, at, parent, name, folder
        self._described = [*inherited, *changes]
        self._inherited, self._own = tuple(map(Assignment.parse, inherited)), tuple(map(Assignment.parse, changes))
        self._trainer: Trainer | None = None
        self._replay: Replay | None = None
        self.error: Exception | None = None

    def init(self, trainer: Trainer, init: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Initialize the trainer with the changes."""
        if self._trainer is not None:
            if self._replay is None:
                message = (
                    "The program makes several trainers before it trains. Call Trainer.fork in the program instead."
                )
                self.error = ValueError(message)
            # What follows belongs to the run, whose results it would replace.
            raise _ProgramEnd
        self._trainer = trainer
        try:
            changed = assignments.apply((*self._inherited, *self._own), {**arguments, **self._outputs(arguments)})
            _check_files(changed)
        except ValueError as error:
            self.error = UsageError(str(error))
            raise _ProgramEnd from error
        except Exception as error:
            self.error = error
            raise _ProgramEnd from error
        init(**changed)

    def save(self, trainer: Trainer, save: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Save to the folder of the fork, unless the path has the name of the run: the run has saved there."""
        for name in _PATHS & arguments.keys():
            path = os.fspath(arguments[name])
            if "run_name" not in placeholders(path):
                moved = f"{self._escaped_folder}/{path.replace(os.sep, '/').rpartition('/')[2]}"
                arguments = {**arguments, name: moved}
        return save(**arguments)

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Train on; a call of ``fit`` that had ended before the step does nothing."""
        state, run = trainer.state, trainer._run  # pyright: ignore[reportPrivateUsage]
        is_first = self._replay is None
        if self._replay is None:
            try:
                self._replay = Replay(trainer, run, self._at)
                names = [each.path for each in (*self._inherited, *self._own)]
                fork(trainer, run, self._at, self._source, names, parent=self._parent, described=self._described)
            except Exception as error:
                self.error = error
                raise _ProgramEnd from error
        changes = (*self._inherited, *self._own)
        kept = assignments.apply_to_fit(changes, arguments)
        if not is_first and any(each.path == "max_duration" for each in changes) and state.finished:
            return  # a changed max_duration holds for all calls of fit
        if is_first:
            kept.pop("spin_dataloaders", None)  # the run did not start its data again at the checkpoint
        with warnings.catch_warnings():
            # Of a program that calls fit repeatedly, some calls are complete.
            warnings.filterwarnings("ignore", "autoresume: this call of fit is already complete", ComposerWarning)
            fit(**kept)

    @contextlib.contextmanager
    def errors(self) -> Generator[None]:
        """Print the traceback if the program fails, and raise why it cannot be forked."""
        try:
            yield
        except _ProgramEnd:
            pass
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        except FileRefusedError:
            raise
        except Exception as error:
            raise_if_stdout_closed(error)
            traceback.print_exc()
            raise SystemExit(1) from error
        if self.error is not None:
            raise self.error

    def check_end(self) -> None:
        """Raise if the program has not trained, and print where it saved.

        Raises:
            ValueError: It has not.
        """
        if self._trainer is None or self._replay is None:
            raise ValueError("The program ended without a call of Trainer.fit.")
        batch = self._trainer.state.timestamp.batch.value
        if batch <= self._at:
            for destination in self._trainer.logger.destinations:
                destination.__discard__()  # such as a file that the close would begin
            raise ValueError(
                f"The run ends at batch {batch}, so that nothing is left to train. Train longer, such as with --set "
                f"max_duration={batch + 100}ba."
            )
        if dist.get_global_rank() == 0:
            print(f"composer: {self._name} is at batch {batch}, saved in {self._folder}", file=sys.stderr)  # noqa: T201

    @property
    def folders_of_run(self) -> list[Path]:
        """The local folder of the run that is forked, whose files may not change."""
        folder = run_folder(self._parent)
        return [] if is_remote(folder) else [local_path(folder)]

    @property
    def _escaped_folder(self) -> str:
        return with_braces(self._folder)

    def _outputs(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that separate the outputs of the fork from those of the run."""
        return {
            "run_name": self._name,
            "save_folder": self._escaped_folder,
            "save_latest_filename": arguments.get("save_latest_filename") or "latest-rank{rank}.pt",
            "autoresume": not arguments.get("save_weights_only"),  # so that the same command continues the fork
            "dry_run": False,
            "eval_batches_before_fit": 0,
        }


def _check_files(arguments: Mapping[str, Any]) -> None:
    """Raise if something writes files whose names do not depend on the run: they would replace those of the run."""
    profiler = arguments.get("profiler")
    for argument in ("loggers", "callbacks"):
        for one in instances(argument, arguments.get(argument), Callback):
            cls = type(one).__name__
            _check_template(one, cls, f"--set {argument}-={cls}")
    if profiler is not None:
        _check_template(profiler, type(profiler).__name__, "--set profiler=None")


def _check_template(one: Any, writer: str, remedy: str) -> None:
    """Raise if a path to which a callback, or a part of it, writes does not depend on the run."""
    for part in _parts(one):
        names = [getattr(part, name, None) for name in _TEMPLATES]
        names = [getattr(name, "filename", name) for name in names]  # of a CheckpointSaver
        path = "/".join(str(name) for name in names if isinstance(name, str | Path))
        if path and "run_name" not in placeholders(path):
            raise ValueError(
                f"{writer} writes to {path!r}, as the run that is forked does. Add {{run_name}} to the path, or leave "
                f"it out with {remedy}."
            )


def _parts(one: Any) -> list[Any]:
    """Return a callback and what it consists of: its trace handlers, their files."""
    found = [one]
    for value in vars(one).values():
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, _PARTS):
                found += _parts(part) if isinstance(part, Callback) else [part]
    return found
