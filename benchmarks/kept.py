"""Keep what was measured in a file, with which an interrupted benchmark continues."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["kept", "restore", "without_folder"]


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a file has, or else what is made, which it has then.

    Args:
        path: The file.
        make: Returns its content in JSON types.
    """
    if not path.exists():
        made = make()
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(made, indent=1) + "\n")
        partial.replace(path)
    return json.loads(path.read_text())


def restore(folder: Path, records: Mapping[str, Mapping[str, Any]]) -> int:
    """Write published records into a folder, so that a report of it has them too; return their number.

    Files that the folder has are left as they are.

    Args:
        folder: Folder of all records.
        records: The contents of the files of each record, by the name of its folder and by that of the file.
    """
    for name, files in records.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part, content in files.items():
            kept(folder / name / f"{part}.json", lambda content=content: content)
    return len(records)


def without_folder(command: str) -> str:
    """Return the command of an exploration without the folder of its records, which is one of this machine.

    Args:
        command: The command.
    """
    return re.sub(r"folder=(['\"]).*?\1", "folder='FOLDER'", command)
