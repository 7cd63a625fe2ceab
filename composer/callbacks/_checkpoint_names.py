"""Name templates of checkpoints and of the link to the newest, checked when they are given."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from composer.checkpoint.contents import timestamp_state
from composer.checkpoint.save import template_for
from composer.checkpoint.saved_checkpoints import SavedList
from composer.core.file_names import PartialFilePath
from composer.core.name_placeholders import check_inside, check_remote_name, check_template, format_name
from composer.core.timestamp import Timestamp

if TYPE_CHECKING:
    from composer.callbacks.checkpoint_saver import CheckpointSaver
    from composer.core.state import State


__all__ = [
    "current_name",
    "in_folder",
    "remote",
    "remote_names",
    "times_from",
    "times_of",
]

_log = logging.getLogger(__name__)


def in_folder(argument: str, name: str | Path, folder: str) -> PartialFilePath:
    """Return the template of a file in a folder.

    Args:
        argument: Name of the argument, for error messages.
        name: The name relative to the folder.
        folder: The folder.

    Raises:
        ValueError: A placeholder is unknown, or the name leads out of the folder.

    >>> in_folder("filename", "ep{epoch}.pt", "runs").filename
    'ep{epoch}.pt'
    """
    return PartialFilePath(check_inside(argument, check_template(argument, os.fspath(name), timed=True)), folder)


def remote(argument: str, name: str | Path | None) -> PartialFilePath | None:
    """Return the template of a file at loggers that store files, or None.

    Args:
        argument: Name of the argument, for error messages.
        name: The name, or None.

    Raises:
        ValueError: A placeholder is unknown, or the name is not a valid remote file name.

    >>> remote("remote_file_name", None) is None
    True
    """
    if not name:
        return None
    return PartialFilePath(check_remote_name(argument, check_template(argument, os.fspath(name), timed=True)))


def current_name(template: PartialFilePath | None, state: State) -> str | None:
    """Format a template with the current timestamp, without its folder; None for None.

    Args:
        template: The template.
        state: The state of the run.

    >>> from composer import State
    >>> current_name(in_folder("filename", "ep{epoch}.pt", "runs"), State(model=torch.nn.Linear(1, 1)))
    'ep0.pt'
    """
    return None if template is None else format_name(template.filename, state.run_name, state.timestamp, rank=0)


def remote_names(saver: CheckpointSaver, state: State) -> tuple[str | None, str | None]:
    """Return the names of a checkpoint and of the link for loggers that store files; None if not uploaded.

    Args:
        saver: The saver.
        state: The state of the run.

    >>> from composer import State
    >>> from composer.callbacks import CheckpointSaver
    >>> remote_names(CheckpointSaver(latest_filename=None), State(torch.nn.Linear(1, 1), run_name="night"))
    ('night/checkpoints/ep0-ba0-rank0.pt', None)
    """
    latest = None if saver.latest_filename is None else saver.latest_remote_file_name
    name = saver.remote_file_name
    if name is not None:
        name = PartialFilePath(template_for(state, name.filename, weights_only=saver.weights_only))
    return current_name(name, state), current_name(latest, state)


def times_of(times: Mapping[str, Timestamp], saved: SavedList) -> list[tuple[str, dict[str, int | float]]]:
    """Return the timestamps of checkpoints with names relative to their folder, for ``state_dict``.

    Args:
        times: The timestamps by path.
        saved: The list of checkpoints, which has the folder.

    >>> from composer.checkpoint.retention import Retention
    >>> ((name, time),) = times_of({"runs/ep1.pt": Timestamp(epoch=1)}, SavedList(Retention()))
    >>> name, time["epoch"]
    ('runs/ep1.pt', 1)
    """
    return [(saved.name_of(path) or path, timestamp_state(time)) for path, time in times.items()]


def times_from(state: Any, saved: SavedList) -> dict[str, Timestamp]:
    """Return timestamps by path from the result of :func:`times_of`; invalid entries are skipped.

    Args:
        state: The timestamps by name.
        saved: The list of checkpoints, which has the folder.

    >>> from composer.checkpoint.retention import Retention
    >>> saved = [("runs/ep1.pt", timestamp_state(Timestamp(epoch=1))), ("runs/ep2.pt", None)]
    >>> times_from(saved, SavedList(Retention()))
    {'runs/ep1.pt': Timestamp(epoch=1)}
    """
    found: dict[str, Timestamp] = {}
    for entry in cast("Iterable[Any]", state) if isinstance(state, (list, tuple)) else ():
        timestamp = Timestamp()
        try:
            name, time, *_ = entry
            timestamp.load_state_dict(time)
            found[saved.path_of(name)] = timestamp
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            _log.info("Skipped an invalid entry in the timestamps of saved checkpoints: %r", error)
    return found
