"""Isolation: what a trial must not do: write into the folders of the run, log to its trackers, or take its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from composer.core.callback import Callback
from composer.loggers import InMemoryLogger
from composer.trainer.short_names import instances
from composer.trees import ensure_tuple

__all__ = ["ENVIRONMENT", "TRACKER_RUNS", "environment", "isolated", "replaced_variables", "silent_trackers"]

# Variables that name the run of a tracker.
TRACKER_RUNS = frozenset(
    {
        *("WANDB_RUN_ID", "WANDB_RESUME", "MLFLOW_RUN_ID", "COMET_EXPERIMENT_KEY", "NEPTUNE_CUSTOM_RUN_ID"),
        *("SWANLAB_RUN_ID", "TRACKIO_SPACE_ID"),
    }
)

# Variables of the run that trials must not inherit: its name, its place among ranks, and the run of a tracker.
_OF_THE_RUN = frozenset(
    {
        *("COMPOSER_RUN_NAME", "RUN_NAME", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK"),
        *("GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *TRACKER_RUNS,
    }
)

# Set in the processes of a trial, to the name of the trial, so that a script can tell.
ENVIRONMENT = "COMPOSER_TRIAL"


def isolated(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return arguments of :class:`.Trainer` without checkpoints, displays, and loggers and callbacks that write.

    Args:
        arguments: All arguments that the program passes.
        name: Name of the trial, used as name of the run.

    >>> changed = isolated({"run_name": "best", "save_folder": "out", "callbacks": ["lr_monitor"]}, "bf16")
    >>> changed["run_name"], changed["save_folder"], len(changed["callbacks"])
    ('trial-bf16', None, 1)
    """
    callbacks = instances("callbacks", arguments.get("callbacks"), Callback)
    # A program may read what an earlier fit has logged.
    in_memory = [one for one in ensure_tuple(arguments.get("loggers")) if isinstance(one, InMemoryLogger)]
    return {
        **arguments,
        "callbacks": [callback for callback in callbacks if not callback.writes_output],
        "run_name": f"trial-{name}",
        "loggers": in_memory or None,
        "progress_bar": False,
        "log_to_console": False,
        "log_traces": False,
        "auto_log_hparams": False,
        "save_folder": None,
        "autoresume": False,
        "save_on_signals": (),
        "save_on_exception": False,
        "profiler": None,
        "dry_run": False,
        "eval_batches_before_fit": 0,
    }


def environment(name: str, folder: Path) -> dict[str, str]:
    """Return the environment of the processes of a trial: trackers that the script itself starts record nothing.

    Args:
        name: Name of the trial.
        folder: Folder of the trial.

    >>> environment("bf16", Path("study"))["COMPOSER_TRIAL"]
    'bf16'
    """
    others = {
        key: value
        for key, value in os.environ.items()
        if key not in _OF_THE_RUN and not key.startswith("TORCHELASTIC_")
    }
    return {**others, ENVIRONMENT: name, **silent_trackers(folder), "PYTHONUNBUFFERED": "1"}


def silent_trackers(folder: Path) -> dict[str, str]:
    """Return environment variables with which trackers that a program starts itself send nothing.

    Args:
        folder: Folder for what they write all the same.

    >>> silent_trackers(Path("study"))["WANDB_MODE"]
    'disabled'
    """
    trackers = (folder / "trackers").absolute()
    return {
        "WANDB_MODE": "disabled",
        "SWANLAB_MODE": "disabled",
        "COMET_START_ONLINE": "false",
        "COMET_OFFLINE_DIRECTORY": str(trackers / "comet"),
        "NEPTUNE_MODE": "offline",  # the only mode without a server that all of its clients have
        "NEPTUNE_LOG_DIRECTORY": str(trackers / "neptune"),
        "MLFLOW_TRACKING_URI": (trackers / "mlflow").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": str(trackers / "trackio"),
    }


@contextlib.contextmanager
def replaced_variables(variables: Mapping[str, str | None]) -> Generator[None]:
    """Replace environment variables of this process for the duration of a ``with`` block.

    Args:
        variables: The values by name; None removes a variable.

    >>> with replaced_variables({"WANDB_MODE": "disabled", "WANDB_RUN_ID": None}):
    ...     os.environ["WANDB_MODE"], "WANDB_RUN_ID" in os.environ
    ('disabled', False)
    """
    before = {name: os.environ.get(name) for name in variables}
    try:
        for name, value in variables.items():
            _set_variable(name, value)
        yield
    finally:
        for name, value in before.items():
            _set_variable(name, value)


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
