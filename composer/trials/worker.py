"""The process of a trial: runs the training program with the changes of the trial, and writes down the outcome.

Started as ``python -m composer.trials.worker FOLDER``, once for each rank, by the leader of the trial. The process ends
as soon as the ``fit`` that is meant has returned or failed: nothing of the program runs after it, such as an
``except:``, a ``finally`` that saves the model, or a message about the failure.
"""

from __future__ import annotations

import faulthandler
import functools
import hashlib
import importlib
import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Never

import torch

from composer import dist
from composer.trainer.auto_microbatch.out_of_memory import is_out_of_memory
from composer.trainer.overrides import TrainerOverrides, override_trainers
from composer.trials import assignments
from composer.trials.assignments import Assignment
from composer.trials.isolation import isolated
from composer.trials.leader import LOG_FILE
from composer.trials.probe import Probe
from composer.trials.temporary_folder import keep_temporary_files_in
from composer.trials.trial import Trial

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = [
    "FAILURE_FILE",
    "RESULT_FILE",
    "TEMPORARY",
    "TRIAL_FILE",
    "hash_of",
    "is_program_file",
    "main",
    "source_hashes",
]

TRIAL_FILE = "trial.json"
# Written by rank 0 when the trial is complete.
RESULT_FILE = "result.json"
# Written by the first rank that fails; other ranks fail because of it.
FAILURE_FILE = "failure.json"
# Environment variable with the folder for temporary folders of the trial.
TEMPORARY = "COMPOSER_TRIAL_TEMPORARY"
_MAX_DETAILS = 64 * 1024
# Bytes of a log within which its last line is looked for.
_MAX_LINE = 1000


class _Overrides(TrainerOverrides):
    """Applies the changes of a trial to each trainer, and lets the probe run the ``fit`` that is meant."""

    def __init__(self, trial: Trial, probe: Probe, path: Path) -> None:
        self._trial, self._probe, self._path = trial, probe, path
        self._absent: dict[int, set[str]] = {}  # names of the arguments that a trainer is not given
        self._fitting = False
        self.calls = 0
        probe.finish = self._finish

    @functools.cached_property
    def _changes(self) -> tuple[Assignment, ...]:
        """The changes; they are created with the first trainer, when classes that the program defines are there."""
        return tuple(Assignment.parse(text) for text in self._trial.changes)

    def init(self, trainer: Trainer, init: Callable[..., None], arguments: dict[str, Any]) -> None:
        changed = assignments.apply(self._changes, isolated(arguments, self._trial.name))
        self._absent[id(trainer)] = {name for name, value in arguments.items() if value is None}
        init(**self._probe.init(changed, arguments))

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        if self._fitting:  # a trainer that trains while another does
            fit(**arguments)
            return
        self.calls += 1
        self._fitting = True
        try:
            changed = assignments.apply_to_fit(self._changes, arguments, self._absent.get(id(trainer), ()))
            self._probe.is_meant = self.calls == self._trial.target.fit
            self._probe.fit(trainer, fit, changed)
            self._finish()
        except BaseException as error:
            _fail(self._path, error, self.calls)
        finally:
            self._fitting = False

    def _finish(self) -> None:
        """Write the result and end the process, in the ``fit`` that is meant."""
        if self._probe.is_meant:
            result = json.dumps({"result": dict(self._probe.result()), "sources": source_hashes()})
            if dist.get_global_rank() == 0:
                _write(self._path / RESULT_FILE, result)
            _exit(0)

    def save(self, trainer: Trainer, save: Callable[..., Any], arguments: dict[str, Any]) -> None:
        """Save nothing: the path may be that of a run."""
        del trainer, save, arguments


def main(folder: str) -> Never:
    """Run the trial that a folder describes, write the outcome there, and end the process.

    Args:
        folder: The folder, with a description of the trial.

    >>> main("study/bf16")  # doctest: +SKIP
    """
    path = Path(folder)
    calls = 0
    try:
        keep_temporary_files_in(os.environ[TEMPORARY])
        described = json.loads((path / TRIAL_FILE).read_text(encoding="utf-8"))
        trial = Trial.from_json(described["trial"])
        if trial.target.kind in ("function", "pickle"):
            sys.path[:] = [*described["path"], *(entry for entry in sys.path if entry not in described["path"])]
        if trial.threads:
            torch.set_num_threads(trial.threads)
        faulthandler.enable(sys.stderr)
        # Shortly before the time limit, so that the log says where a trial that hangs waits.
        faulthandler.dump_traceback_later(max(trial.time_limit - 5, trial.time_limit / 2), file=sys.stderr)
        module, _, name = trial.probe.partition(":")
        probe: Probe = getattr(importlib.import_module(module), name)(path, **trial.probe_arguments)
        overrides = _Overrides(trial, probe, path)
        try:
            with override_trainers(overrides):
                trial.target.run()
        finally:
            calls = overrides.calls
    except BaseException as error:
        _fail(path, error, calls)
    _write(path / FAILURE_FILE, json.dumps({"outcome": "failed", "error": _no_fit(trial, calls)}))
    _exit(1)


def source_hashes(modules: Iterable[ModuleType] | None = None) -> dict[str, str]:
    """Return hashes of the source files of the program, by path: of modules outside the installed packages.

    Args:
        modules: The modules; None for those that are imported.

    >>> source_hashes([json])
    {}
    """
    found: dict[str, str] = {}
    for module in list(sys.modules.values()) if modules is None else modules:
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and is_program_file(file):
            found[file] = hash_of(Path(file))
    return found


def is_program_file(file: str) -> bool:
    """Return whether a source file is the program's: outside of this package, of Python and of installed packages.

    Args:
        file: The path, which is absolute unless it is no file, such as ``<string>``.

    >>> is_program_file("/project/train.py"), is_program_file(__file__), is_program_file("<string>")
    (True, False, False)
    """
    installed = f"{os.sep}site-packages{os.sep}" in file or file.startswith(_not_of_programs())
    return file.startswith(os.sep) and not installed


@functools.cache
def _not_of_programs() -> tuple[str, ...]:
    """Return the folders of this package, of Python and of installed packages."""
    installed = {os.path.realpath(path) for path in sysconfig.get_paths().values()}
    return tuple(f"{path}{os.sep}" for path in (*installed, Path(__file__).absolute().parents[1]))


def hash_of(path: Path) -> str:
    """Return a hash of a file, or an empty string if it cannot be read.

    Args:
        path: The file.

    >>> hash_of(Path("no such file"))
    ''
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def _fail(folder: Path, error: BaseException, calls: int) -> Never:
    """Write why a trial failed, and end the process."""
    if isinstance(error, SystemExit):
        why = f"The program exited with {error.code!r}" + (
            " during Trainer.fit." if calls else " before it called Trainer.fit."
        )
        why += _last_words(folder / LOG_FILE) if error.code and isinstance(error.code, int) else ""
    else:
        text = str(error).strip()
        why = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
        if isinstance(error, EOFError) and "reading a line" in text:  # of input()
            why += ". A trial has no standard input: let the program take the value as an argument."
    details = "".join(traceback.format_exception(error))
    failure: Mapping[str, Any] = {
        "outcome": "out_of_memory" if is_out_of_memory(error) else "failed",
        "error": why,
        "details": details[-_MAX_DETAILS:],
        "sources": source_hashes(),
    }
    _write(folder / FAILURE_FILE, json.dumps(failure))
    _exit(1)


def _last_words(log: Path) -> str:
    """Return the last line that a program has written, such as that of argparse, as an addition to why it ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _MAX_LINE))
        lines = file.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f" Its last line: {last}" if last else ""


def _exit(code: int) -> Never:
    """End the process at once: threads and processes of the program, such as data workers, would be waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _no_fit(trial: Trial, calls: int) -> str:
    """Return why a program that ended was not measured."""
    if calls == 0:
        return "The program ended without a call of Trainer.fit."
    return f"The program called Trainer.fit {calls} times; the trial is about call {trial.target.fit}."


def _write(path: Path, text: str) -> None:
    """Write a file; of multiple ranks that do, the first one's is kept."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    try:
        os.link(partial, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        partial.replace(path)
        return
    partial.unlink()


if __name__ == "__main__":
    main(sys.argv[1])
