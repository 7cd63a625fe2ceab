"""Find the logs of a run in its folder, and read them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from composer._secrets.masking import mask_text, mask_values
from composer._text import did_you_mean
from composer.core.run_files import is_file_in
from composer.history._csv_table import is_csv_table, read_csv_table, shared_rows
from composer.history._json_lines import is_json_lines, read_json_lines, shared_part
from composer.history._text_log import read_text_log
from composer.history.builder import HistoryBuilder
from composer.history.history import History
from composer.history.series import Series
from composer.ledger.ledger import FILENAME
from composer.storage.uris import is_remote, local_path

__all__ = ["local_run", "read_history"]

# File names that say nothing about the run.
_PLAIN_NAMES = ("log", "logs", "metrics")
# Events of an attempt that was resumed from an earlier checkpoint which say why.
_ENDS = ("error", "interruption", "nan", "spike")


class _Format(NamedTuple):
    """How to read one kind of file."""

    matches: Callable[[Path], bool]
    read: Callable[..., None]
    shared: Callable[[Path, Path], tuple[int, bool]]


# The first is preferred, since it has more.
_FORMATS = {
    ".jsonl": _Format(is_json_lines, read_json_lines, shared_part),
    ".csv": _Format(is_csv_table, read_csv_table, shared_rows),
}


def local_run(path: str | Path) -> Path:
    """Return the path of a run, which may be given as ``file://`` URI.

    Args:
        path: The path.

    Raises:
        ValueError: It is the URI of a remote folder or file.

    >>> local_run("file:///runs/night").as_posix()
    '/runs/night'
    """
    if is_remote(path):
        raise ValueError(
            f"{mask_text(str(path))!r} is remote, but logs of runs are read from local files. Download the folder "
            f"first, without its checkpoints: the log (.jsonl or .csv) and {FILENAME}, if there is one; then pass the "
            f"local folder."
        )
    return local_path(path)


def read_history(path: Path) -> History:
    """Read the history of a run; see :meth:`.History.read`.

    Args:
        path: The folder of the run, or one of its logs.
    """
    if not path.exists():
        others = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileNotFoundError(f"There is no run {str(path)!r}.{did_you_mean(path.name, others)}")
    file = _find(path) if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"{str(file)!r} is not a file. Pass a log of JSONLinesLogger or CSVLogger, or its folder.")
    form = _format(file)
    if form is None:
        raise _no_log(file)
    stem = file.stem
    builder = HistoryBuilder(file.absolute().parent.name if stem in _PLAIN_NAMES else stem)
    form.read(builder, file)
    if form is _FORMATS[".csv"]:
        read_text_log(builder, file.parent)
    history = builder.history()
    copies = list(_copies(file))
    history.files = (file,)
    for copy, newer in zip(copies, [[*copies[number + 1 :], file] for number in range(len(copies))], strict=True):
        _add_replaced(history, form, copy, newer)
    _mask(history)
    return history


def _mask(history: History) -> None:
    """Mask secrets as loggers do, of logs that they did not write: of earlier versions, or edited."""
    history.hyperparameters = mask_values(history.hyperparameters)
    history.environment = mask_values(history.environment)
    history.events = [
        replace(event, text=mask_text(event.text), details=mask_values(dict(event.details))) for event in history.events
    ]


def _find(folder: Path) -> Path:
    """Return the log in the folder of a run; links that lead out of it are not followed."""
    folders = [one for one in sorted(folder.iterdir()) if one.is_dir()]
    found = _logs(folder, folder) or [log for one in folders for log in _logs(one, folder)]
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(one.relative_to(folder).as_posix() for one in found[:5])
        raise ValueError(f"{str(folder)!r} has {len(found)} logs; pass one of them: {shown}.")
    for file in (
        one.joinpath(f"{stem}{end}") for one in (folder, *folders) for end in _FORMATS for stem in _PLAIN_NAMES
    ):
        if is_file_in(folder, file):
            raise _no_log(file)  # its name says that it was to be one
    present = ", ".join(map(_shown, sorted(folder.iterdir())[:5]))
    raise FileNotFoundError(
        f"{str(folder)!r} has no log of JSONLinesLogger (.jsonl) or CSVLogger (.csv)"
        f"{f', but {present}' if present else '; the folder is empty'}. Pass the Trainer loggers=JSONLinesLogger() to "
        f"write one."
    )


def _no_log(file: Path) -> ValueError:
    return ValueError(f"{str(file)!r} is not a log of JSONLinesLogger or CSVLogger: {_beginning(file)}.")


def _shown(path: Path) -> str:
    if path.is_dir() and path.suffix in _FORMATS:
        return f"{path.name} (a folder)"
    is_link = path.is_symlink() and not path.resolve().is_relative_to(path.parent.resolve())
    return f"{path.name} (a link to elsewhere, which is not followed)" if is_link else path.name


def _logs(folder: Path, root: Path) -> list[Path]:
    """Return the logs in a folder, of the first format that it has, without copies of earlier ones."""
    for suffix in _FORMATS:
        files = sorted(one for one in folder.glob(f"*{suffix}") if is_file_in(root, one))
        found = [one for one in files if _original(one) not in files and _format(one) is not None]
        if found:
            return found
    return []


def _format(file: Path) -> _Format | None:
    return next((form for form in _FORMATS.values() if form.matches(file)), None)


def _original(path: Path) -> Path | None:
    """Return the file that a numbered one is an earlier version of."""
    found = re.fullmatch(r"(.+)\.[0-9]+", path.stem)
    return None if found is None else path.with_name(found[1] + path.suffix)


def _copies(file: Path) -> Iterator[Path]:
    """Yield earlier versions of a log, the oldest first."""
    number = 1
    while is_file_in(file.parent, copy := file.with_name(f"{file.stem}.{number}{file.suffix}")):
        yield copy
        number += 1


def _add_replaced(history: History, form: _Format, copy: Path, newer: list[Path]) -> None:
    """Add what a copy of the log has beyond the point at which the run was resumed."""
    if not form.matches(copy):
        return
    shared = [form.shared(copy, other) for other in newer]
    if not shared[-1][1]:
        return  # an earlier run of the same name
    builder = HistoryBuilder(history.name)
    form.read(builder, copy, max(end for end, _ in shared))
    for name, series in builder.history().series.items():
        lost = _without(series, history.series.get(name))
        if len(lost):
            known = history.replaced.get(name)
            history.replaced[name] = lost if known is None else known.followed_by(lost)
    known_events = {(event.kind, event.time) for event in history.events}
    ends = [event for event in builder.events if event.kind in _ENDS and (event.kind, event.time) not in known_events]
    history.events = sorted([*history.events, *ends], key=lambda event: event.time or 0.0)
    history.files += (copy,)


def _without(series: Series, kept: Series | None) -> Series:
    """Return the values that are not the same records as kept ones."""
    if kept is None or kept.seconds is None or series.seconds is None:
        return series
    kept = kept[kept.seconds >= np.min(series.seconds, initial=np.inf)]
    assert kept.seconds is not None
    known = set(zip(kept.step.tolist(), kept.seconds.tolist(), kept.values.tolist(), strict=True))
    records = zip(series.step.tolist(), series.seconds.tolist(), series.values.tolist(), strict=True)
    return series[np.array([record not in known for record in records], dtype=bool)]


def _beginning(file: Path) -> str:
    """Return how a file begins, for an error message."""
    with file.open("rb") as opened:
        first = opened.read(60)
    return f"it begins with {first!r}" if first else "it is empty"
