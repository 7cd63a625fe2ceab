"""Give a trial the loggers, displays and checkpoints of the program, so that they are measured, but write elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from composer.callbacks import CheckpointSaver
from composer.core.callback import Callback
from composer.core.logger import LoggerDestination
from composer.loggers import ConsoleLogger, InMemoryLogger, ProgressBarLogger
from composer.trainer.short_names import instances
from composer.trees import ensure_tuple

__all__ = ["restore_outputs", "saver_like"]

# Restored as the program gives them: what they print goes into the log of the trial.
_DISPLAYS = ("progress_bar", "log_to_console", "log_traces")
_HARMLESS = (InMemoryLogger, ProgressBarLogger, ConsoleLogger)


def restore_outputs(
    arguments: Mapping[str, Any], given: Mapping[str, Any], folder: Path, changed: Collection[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Return arguments of a trainer with the outputs of the program, and the names of those that are left out.

    Files are written into a folder of the trial. What sends data to other hosts is left out.

    Args:
        arguments: The arguments of the trial, isolated.
        given: The arguments as the program gives them.
        folder: Folder of the trial.
        changed: Names of arguments that the trial changes, which are left as they are.

    >>> changed, left_out = restore_outputs(
    ...     {"loggers": None, "callbacks": [], "save_folder": None},
    ...     {"loggers": ["csv", "wandb"], "save_folder": "runs"},
    ...     Path("trial"),
    ... )
    >>> changed["save_folder"], left_out
    ('trial/checkpoints', ['WandBLogger'])
    """
    restored, left_out = dict(arguments), list[str]()
    for name in _DISPLAYS:
        if name in given and name not in changed:
            restored[name] = given[name]
    if not isinstance(given.get("console_stream"), str):
        restored["console_stream"] = "stderr"
    loggers: list[Any] = []
    for index, logger in enumerate(_instances("loggers", given, LoggerDestination, left_out)):
        if _redirected(logger, folder / "loggers" / str(index)):
            loggers.append(logger)
        else:
            left_out.append(type(logger).__name__)
    restored["loggers"] = [*(arguments.get("loggers") or ()), *loggers]
    callbacks: list[Any] = [*(arguments.get("callbacks") or ())]
    for callback in _instances("callbacks", given, Callback, left_out):
        if not callback.writes_output or any(callback is one for one in loggers):
            continue
        if isinstance(callback, CheckpointSaver):
            callbacks.append(saver_like(callback, folder / f"saver{len(callbacks)}"))
        elif _redirected(callback, folder / "callbacks" / str(len(callbacks))):
            callbacks.append(callback)
        else:
            left_out.append(type(callback).__name__)
    restored["callbacks"] = callbacks
    if given.get("save_folder") is not None and "save_folder" not in changed:
        restored |= {"save_folder": str(folder / "checkpoints"), "save_num_checkpoints_to_keep": 1}
        restored["save_overwrite"] = True
    return restored, left_out


def _instances(argument: str, given: Mapping[str, Any], base: type, left_out: list[str]) -> list[Any]:
    """Return the objects of an argument; a name whose object cannot be created here is left out."""
    found: list[Any] = []
    for entry in ensure_tuple(given.get(argument)):
        try:
            found += instances(argument, entry, base)
        except ImportError:
            left_out.append(str(entry))
    return found


def _redirected(output: Any, folder: Path) -> bool:
    """Let an output write into a folder; return whether it does."""
    if not f"{type(output).__module__}.".startswith("composer.") or isinstance(output, _HARMLESS):
        return True  # what custom classes write is redirected when they open files
    file = getattr(output, "_run_file", None)
    if file is not None:
        file.filename = str(folder / Path(file.filename).name)
        file.remote_file_name = None
        return True
    if type(output).__name__ == "TensorboardLogger":
        output.log_dir = str(folder)
        return True
    return False


def saver_like(saver: CheckpointSaver, folder: Path, *, asynchronous: bool | None = None) -> CheckpointSaver:
    """Return a saver of the same states into another folder.

    Args:
        saver: The saver.
        folder: The folder.
        asynchronous: Whether to write in the background; None for what the saver does.

    >>> saver_like(CheckpointSaver("runs"), Path("trial"), asynchronous=True).asynchronous
    True
    """
    return CheckpointSaver(
        folder,
        save_interval=saver.save_interval,
        overwrite=True,
        num_checkpoints_to_keep=1,
        weights_only=saver.weights_only,
        ignore_keys=saver.ignore_keys,
        asynchronous=saver.asynchronous if asynchronous is None else asynchronous,
    )
