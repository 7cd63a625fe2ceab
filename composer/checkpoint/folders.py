"""Folders that checkpoints go to."""

from __future__ import annotations

import re
import secrets
import shutil
import string
from collections.abc import Collection, Iterable
from pathlib import Path

from composer.core._names import PROCESS_KEYS, TIME_KEYS
from composer.core.timestamp import Timestamp
from composer.storage.folder import Folder
from composer.storage.transfer import remove
from composer.storage.uris import is_remote, local_path, split

__all__ = [
    "REST",
    "counters",
    "ensure_folder_has_no_conflicting_files",
    "ensure_folder_is_empty",
    "matching_files",
    "refuse_later",
    "remove_checkpoint",
    "remove_partial_files",
]

REST = "composer.pt"
"""The file of a checkpoint that is a folder which is written last."""

_COUNTERS = ("epoch", "batch", "sample", "token", "iteration", "batch_in_epoch", "sample_in_epoch", "token_in_epoch")


def ensure_folder_is_empty(folder_name: Path | str) -> None:
    """Refuse a folder with anything in it.

    Args:
        folder_name: The folder; may be absent.

    Raises:
        FileExistsError: Something is in it.

    >>> ensure_folder_is_empty(tmp_path)
    """
    folder = Path(folder_name)
    found = next((path for path in folder.rglob("*") if path.is_file()), None) if folder.exists() else None
    if found is not None:
        raise FileExistsError(f"The folder {str(folder)!r} is not empty: it has {str(found.relative_to(folder))!r}.")


def ensure_folder_has_no_conflicting_files(
    folder_name: Path | str, filename: str, timestamp: Timestamp, *, except_for: Collection[str] = ()
) -> None:
    """Refuse a folder with files of a later time than now, which must be of another run.

    Args:
        folder_name: The folder; may be absent.
        filename: Name of the files, with ``{epoch}``, ``{batch}`` and the like.
        timestamp: Now.
        except_for: Names that may be there.

    Raises:
        FileExistsError: There is a later file.

    >>> (tmp_path / "ep3.pt").touch()
    >>> ensure_folder_has_no_conflicting_files(tmp_path, "ep{epoch}.pt", Timestamp(epoch=3))
    >>> ensure_folder_has_no_conflicting_files(tmp_path, "ep{epoch}.pt", Timestamp(epoch=2))
    Traceback (most recent call last):
    ...
    FileExistsError: ... is later than this run, which has come to epoch 2...
    """
    names = [path.name for path in matching_files(folder_name, filename)]
    refuse_later(names, str(folder_name), filename, timestamp, except_for=except_for)


def refuse_later(
    names: Iterable[str], folder: str, filename: str, timestamp: Timestamp, *, except_for: Collection[str] = ()
) -> None:
    """Refuse files of a later time than now, wherever their folder is.

    Args:
        names: Of the files.
        folder: Where they are, for the message.
        filename: Name of the files, with ``{epoch}``, ``{batch}`` and the like.
        timestamp: Now.
        except_for: Names that may be there.

    Raises:
        FileExistsError: There is a later file.

    >>> refuse_later(["ep3.pt", "other.txt"], "s3://bucket/run", "ep{epoch}.pt", Timestamp(epoch=3))
    """
    counted = [name for name in _COUNTERS if re.search(rf"\{{{name}[}}:]", filename)]
    pattern = _pattern(filename)
    for found in names:
        match = pattern.fullmatch(found)
        if match is None or found in except_for:
            continue
        for name in counted:
            now = int(getattr(timestamp, name))
            if name.endswith("_in_epoch") and "epoch" in counted and int(match["epoch"]) != timestamp.epoch:
                continue  # it counts from the beginning of another epoch
            if int(match[name]) > now:
                raise FileExistsError(
                    f"'{folder}/{found}' is later than this run, which has come to {name} {now}: the folder has the "
                    f"checkpoints of another run. Give another folder or run_name, load that checkpoint "
                    f"(load_path=, autoresume=True), or allow it to be replaced with save_overwrite=True."
                )


def counters(name: str, filename: str) -> tuple[int, ...]:
    """Return the numbers that the name of a checkpoint tells, the largest unit first; none if it is of another kind.

    Args:
        name: Of a file.
        filename: Name of the files, with ``{epoch}``, ``{batch}`` and the like.

    >>> counters("ba20-ep3.pt", "ba{batch}-ep{epoch}.pt")
    (3, 20)
    """
    match = _pattern(filename).fullmatch(name)
    if match is None:
        return ()
    return tuple(int(match[key]) for key in _COUNTERS if key in match.groupdict())


def matching_files(folder_name: Path | str, filename: str) -> list[Path]:
    """Return the files in a folder whose names can be of a template; links are none.

    Args:
        folder_name: The folder; may be absent.
        filename: Name of the files, with ``{epoch}``, ``{batch}`` and the like.

    >>> (tmp_path / "ep3.pt").touch(), (tmp_path / "other.pt").touch()
    (None, None)
    >>> [path.name for path in matching_files(tmp_path, "ep{epoch}.pt")]
    ['ep3.pt']
    """
    folder, pattern = Path(folder_name), _pattern(filename)
    paths = sorted(folder.iterdir()) if folder.exists() else []
    return [path for path in paths if pattern.fullmatch(path.name) and not path.is_symlink()]


def remove_partial_files(folder_name: Path | str, filename: str) -> None:
    """Remove what a process that was killed had begun to write.

    Args:
        folder_name: The folder; may be absent.
        filename: Name of the files, with ``{epoch}``, ``{batch}`` and the like.

    >>> (tmp_path / ".ep3.pt.0123abcd.tmp").touch()
    >>> remove_partial_files(tmp_path, "ep{epoch}.pt")
    >>> list(tmp_path.iterdir())
    []
    """
    folder, pattern = Path(folder_name), _pattern(filename)
    for path in folder.glob(".*.tmp"):
        if pattern.fullmatch(path.name[1:].rpartition(".")[0].rpartition(".")[0]):
            _remove(path)


def remove_checkpoint(path: Path | str) -> None:
    """Remove a checkpoint, a file or a folder, if it is there; none is left that looks whole and is not.

    Args:
        path: A path or URI.

    >>> (tmp_path / "ep1").mkdir()
    >>> remove_checkpoint(tmp_path / "ep1")
    >>> list(tmp_path.iterdir())
    []
    """
    if not is_remote(path):
        local = local_path(path)
        if local.is_dir() and not local.is_symlink():
            local = local.rename(local.with_name(f".{local.name}.{secrets.token_hex(4)}.tmp"))
        _remove(local)
        return
    above, name = split(str(path))
    if Folder(above).exists(name):
        remove(path)
        return
    folder = Folder(str(path))
    folder.remove(REST)  # first, as it tells that the others are complete
    folder.remove_all()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _pattern(filename: str) -> re.Pattern[str]:
    """A pattern that finds the counters in a name."""
    parts: list[str] = []
    named: set[str] = set()
    for text, key, _, _ in string.Formatter().parse(filename):
        parts.append(re.escape(text))
        if not key:
            continue
        digits = r"\d+" if key in _COUNTERS or key in PROCESS_KEYS[1:] else r"[\d.]+" if key in TIME_KEYS else ".+"
        parts.append(rf"(?P={key})" if key in named else rf"(?P<{key}>{digits})")
        named.add(key)
    return re.compile("".join(parts))
