"""Raise if a checkpoint folder holds other files, or later checkpoints of another run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from composer.checkpoint.name_templates import COUNTERS, names_in, pattern
from composer.core.timestamp import Timestamp

__all__ = ["MANIFEST", "ensure_folder_has_no_conflicting_files", "ensure_folder_is_empty", "raise_if_later"]

MANIFEST = "composer.pt"
"""The file of a sharded checkpoint that is written last: everything except the tensors, and all checksums."""


def ensure_folder_is_empty(folder_name: Path | str) -> None:
    """Raise if a folder is not empty.

    Args:
        folder_name: The folder; may be absent.

    Raises:
        FileExistsError: The folder has files.

    >>> ensure_folder_is_empty(tmp_path)
    """
    folder = Path(folder_name)
    found = next((path for path in folder.rglob("*") if path.is_file()), None) if folder.exists() else None
    if found is not None:
        raise FileExistsError(f"The folder {str(folder)!r} is not empty: it has {str(found.relative_to(folder))!r}.")


def ensure_folder_has_no_conflicting_files(
    folder_name: Path | str, filename: str, timestamp: Timestamp, *, except_for: Collection[str] = ()
) -> None:
    """Raise if a folder has checkpoints of a later training time, which must belong to another run.

    Args:
        folder_name: The folder; may be absent.
        filename: Name of the files, with ``{epoch}``, ``{batch}`` and the like.
        timestamp: The current training time.
        except_for: Names that are allowed.

    Raises:
        FileExistsError: There is a later checkpoint.

    >>> (tmp_path / "ep3.pt").touch()
    >>> ensure_folder_has_no_conflicting_files(tmp_path, "ep{epoch}.pt", Timestamp(epoch=3))
    >>> ensure_folder_has_no_conflicting_files(tmp_path, "ep{epoch}.pt", Timestamp(epoch=2))
    Traceback (most recent call last):
    ...
    FileExistsError: ... is later than this run, which is at epoch 2...
    """
    names = names_in(Path(folder_name), filename)
    raise_if_later(names, str(folder_name), filename, timestamp, except_for=except_for)


def raise_if_later(
    names: Iterable[str], folder: str, filename: str, timestamp: Timestamp, *, except_for: Collection[str] = ()
) -> None:
    """Raise if any of the names is a checkpoint of a later training time, in a local or remote folder.

    Args:
        names: Names of the files.
        folder: Their folder, for the error message.
        filename: Name of the files, with ``{epoch}``, ``{batch}`` and the like.
        timestamp: The current training time.
        except_for: Names that are allowed.

    Raises:
        FileExistsError: There is a later checkpoint.

    >>> raise_if_later(["ep3.pt", "other.txt"], "s3://bucket/run", "ep{epoch}.pt", Timestamp(epoch=3))
    """
    for found in names:
        match = pattern(filename).fullmatch(found)
        if match is None or found in except_for:
            continue
        counted = [name for name in COUNTERS if name in match.groupdict()]
        for name in counted:
            now = int(getattr(timestamp, name))
            if name.endswith("_in_epoch") and "epoch" in counted and int(match["epoch"]) != timestamp.epoch:
                continue  # it counts within another epoch
            if int(match[name]) > now:
                raise FileExistsError(
                    f"'{folder}/{found}' is later than this run, which is at {name} {now}: the folder has "
                    f"checkpoints of another run. Pass another folder or run_name, load that checkpoint "
                    f"(load_path=, autoresume=True), or allow it to be replaced with save_overwrite=True."
                )
