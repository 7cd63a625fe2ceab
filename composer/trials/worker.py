"""The process of a trial: runs the training program with the changes of the trial, and writes down the outcome.

Started as ``python -m composer.trials.worker FOLDER``, once for each rank.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer import dist
from composer.trainer.auto_microbatch.out_of_memory import is_out_of_memory
from composer.trainer.overrides import TrainerOverrides, override_trainers
from composer.trials import assignments
from composer.trials.assignments import Assignment
from composer.trials.isolation import isolated
from composer.trials.probe import Probe
from composer.trials.trial import Trial

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["OUTCOME_FILE", "PARENT", "TRIAL_FILE", "main"]

TRIAL_FILE = "trial.json"
OUTCOME_FILE = "outcome.json"
# Environment variable with the process ID of the study, without which a trial ends.
PARENT = "COMPOSER_TRIAL_PARENT"


class _TrialEnd(BaseException):
    """Ends the program once the trial has measured; not an Exception, which programs catch."""


class _Overrides(TrainerOverrides):
    """Applies the changes of a trial to each trainer, and lets the probe run the ``fit`` that is meant."""

    def __init__(self, trial: Trial, probe: Probe) -> None:
        self._trial, self._probe = trial, probe
        self._changes = tuple(Assignment.parse(text) for text in trial.changes)
        self.calls = 0

    def init(self, trainer: Trainer, init: Callable[..., None], arguments: dict[str, Any]) -> None:
        changed = assignments.apply(self._changes, isolated(arguments, self._trial.name))
        init(**self._probe.init(changed, arguments))

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        self.calls += 1
        self._probe.fit(trainer, fit, assignments.fit_arguments(self._changes, arguments))
        if self.calls == self._trial.target.fit:
            raise _TrialEnd


def main(folder: str) -> int:
    """Run the trial that a folder describes, and write the outcome there.

    Args:
        folder: The folder, with a description of the trial.

    Returns:
        The exit code, 0 if the trial completed.
    """
    path = Path(folder)
    trial = Trial.from_json(json.loads((path / TRIAL_FILE).read_text(encoding="utf-8")))
    threading.Thread(target=_end_with_parent, args=(int(os.environ[PARENT]),), daemon=True).start()
    # Shortly before the time limit, so that the log says where a trial that hangs waits.
    faulthandler.dump_traceback_later(max(trial.time_limit - 5, trial.time_limit / 2), file=sys.stderr)
    module, _, name = trial.probe.partition(":")
    probe: Probe = getattr(importlib.import_module(module), name)(path, **trial.probe_arguments)
    overrides = _Overrides(trial, probe)
    outcome: dict[str, Any]
    try:
        with override_trainers(overrides):
            trial.target.run()
    except _TrialEnd:
        outcome = {"outcome": "completed", "result": dict(probe.result())}
    except BaseException as error:
        outcome = _failure(error, overrides.calls)
    else:
        outcome = {"outcome": "failed", "error": _no_fit(trial, overrides.calls)}
    if dist.get_global_rank() == 0 or outcome["outcome"] != "completed":
        _write(path, outcome)
    return 0 if outcome["outcome"] == "completed" else 1


def _failure(error: BaseException, calls: int) -> dict[str, Any]:
    """Return the outcome of a program that raised."""
    last = traceback.format_exception_only(error)[0].strip() if not isinstance(error, SystemExit) else ""
    if isinstance(error, SystemExit):
        last = f"The program exited with {error.code!r} before it trained."
    return {
        "outcome": "out_of_memory" if is_out_of_memory(error) else "failed",
        "error": last,
        "details": "".join(traceback.format_exception(error)),
        "trained": calls > 0,
    }


def _no_fit(trial: Trial, calls: int) -> str:
    """Return why a program that ended was not measured."""
    if calls == 0:
        return "The program ended without a call of Trainer.fit."
    return f"The program called Trainer.fit {calls} times; the trial is about call {trial.target.fit}."


def _write(folder: Path, outcome: dict[str, Any]) -> None:
    """Write the outcome; of multiple ranks that fail, the first one's is kept, since the others follow from it."""
    partial = folder / f"{OUTCOME_FILE}.{os.getpid()}"
    partial.write_text(json.dumps(outcome), encoding="utf-8")
    try:
        os.link(partial, folder / OUTCOME_FILE)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        partial.replace(folder / OUTCOME_FILE)
        return
    partial.unlink()


def _end_with_parent(parent: int) -> None:
    """End this process when the study has ended without a chance to end it."""
    while True:
        try:
            os.kill(parent, 0)
        except OSError:
            os._exit(1)
        time.sleep(1)


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads and processes of the program, such as data workers, would be waited for.
    os._exit(code)
