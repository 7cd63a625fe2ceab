"""Checkpoints of trials: one that saves and is killed, and one that resumes from its folder, and saves again."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.checkpoint.file_format import replacing
from composer.checkpoint.load import read_checkpoint
from composer.checkpoint.named_states import as_named
from composer.checkpoint.save import save_checkpoint
from composer.core.event import Event
from composer.core.name_placeholders import format_name
from composer.core.state import State
from composer.verification.digests import tagged

__all__ = ["arguments", "differences", "interrupted_save", "reloaded"]

_FOLDER = "checkpoints"
_MAX_DIFFERENCES = 20

# The program, its source files and the segment of the ledger are those of the process.
_OF_PROCESS = ("program/", "ledger/", "fingerprint/sources/")


def arguments(folder: Path, number: int, save_at: int) -> dict[str, Any]:
    """Return arguments of the trainer with which a run saves one full checkpoint, and resumes from it if it is there.

    They replace those of the program: whether the training can be resumed does not depend on where, how often and how
    completely the program saves.

    Args:
        folder: Folder of the trial that saves.
        number: Which trainer of the program this is, from 0.
        save_at: Number of steps after which to save.

    >>> arguments(tmp_path, 0, 4)["autoresume"]
    True
    """

    def due(state: State, event: Event) -> bool:
        return event == Event.BATCH_CHECKPOINT and state.timestamp.batch.value == save_at

    return {
        "run_name": f"trial-{folder.name}",
        "save_folder": str(folder / _FOLDER / str(number)),
        "save_filename": "ep{epoch}-ba{batch}-rank{rank}.pt",
        "save_latest_filename": "latest-rank{rank}.pt",
        "save_interval": due,
        "save_weights_only": False,
        "save_ignore_keys": None,
        "save_num_checkpoints_to_keep": -1,
        "save_overwrite": False,
        "save_async": False,
        "save_failure": "raise",
        "autoresume": True,
    }


@contextlib.contextmanager
def interrupted_save(state: State) -> Generator[None]:
    """Begin the next checkpoint, and leave half of its file under the temporary name if the process ends in the block.

    Args:
        state: The state of a run with :func:`arguments`, in the event ``BATCH_CHECKPOINT``.
    """
    saver = _saver(state)
    newest = saver.newest(state)
    if newest is None or not Path(newest).is_file():  # a sharded checkpoint is a folder
        yield
        return
    content = Path(newest).read_bytes()
    name = format_name(saver.template(state), state.run_name, state.timestamp, rank=0)
    with contextlib.suppress(_UndoneError), replacing(saver.path_of(state, name)) as temporary:
        temporary.write_bytes(content[: len(content) // 2])
        yield
        raise _UndoneError  # the process goes on


class _UndoneError(Exception):
    """Ends a write whose file must not be kept."""


def reloaded(state: State, folder: Path) -> list[str]:
    """Save a run again that has just been resumed; return how the second checkpoint differs from the first.

    Args:
        state: The state of the run.
        folder: Folder of the trial, for the second checkpoint.
    """
    assert state.load_path is not None
    again = save_checkpoint(state, str(folder / "again-rank{rank}.pt"))
    assert again is not None
    return differences(read_checkpoint(state.load_path), read_checkpoint(again))


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the paths of the values in which two checkpoints differ, in the order of the first, as many as are shown.

    Args:
        first: The content of a checkpoint.
        second: That of another one.

    >>> one = {"state": {"callbacks": {"Counter": {"seen": 3, "size": 2}}}}
    >>> other = {"state": {"callbacks": {"Counter": {"seen": 0, "size": 2}}}}
    >>> differences(one, other)
    ['callbacks/Counter/seen']
    """
    # The random state is restored when training begins, and compared there.
    one, other = (
        {path: value for path, value in _leaves(content["state"], ()) if not path.startswith(_OF_PROCESS)}
        for content in (first, second)
    )
    found = [path for path, value in one.items() if other.get(path) != value]
    found += [path for path in other if path not in one]
    return found[:_MAX_DIFFERENCES]


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the path and the digest of each value in a checkpoint."""
    if path == ("algorithms",):
        value = as_named(value)
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
    elif isinstance(value, list | tuple):
        entries = dict(enumerate(cast("list[Any]", value)))
    else:
        yield "/".join(path), tagged(value)
        return
    if not entries:
        yield "/".join(path), type(value).__name__
    for key, part in entries.items():
        yield from _leaves(part, (*path, str(key)))


def _saver(state: State) -> CheckpointSaver:
    """Return the saver of the trial; those of the program are left out."""
    return next(callback for callback in state.callbacks if isinstance(callback, CheckpointSaver))
