"""Read from the text file of a FileLogger what the CSV log beside it lacks: hyperparameters and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from composer.core.run_files import is_file_in
from composer.history.builder import HistoryBuilder
from composer.history.history import LoggedTable

__all__ = ["read_text_log"]

_TABLE: Final = "[table]: "
_SETTING: Final = "[hyperparameter]: "
_COLUMNS: Final = ': {"columns": '


def read_text_log(builder: HistoryBuilder, folder: Path) -> None:
    """Add hyperparameters and tables from the only text file of a :class:`.FileLogger` in a folder, if there is one.

    What the program printed is marked as such in the file, so that it is not taken for them.

    Args:
        builder: The builder.
        folder: The folder of the CSV log.
    """
    files = [one for one in sorted(folder.glob("*.txt")) if is_file_in(folder, one) and _is_of_rank_0(one)]
    if len(files) != 1:
        return  # none, or those of several runs
    try:
        with files[0].open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(_TABLE):
                    _add_table(builder, line.removeprefix(_TABLE))
                elif line.startswith(_SETTING):
                    name, colon, value = line.removeprefix(_SETTING).rstrip("\n").partition(": ")
                    if colon:
                        builder.hyperparameters[name] = int(value) if value.isdecimal() and len(value) < 20 else value
    except OSError:
        return  # of another user


def _is_of_rank_0(path: Path) -> bool:
    """Return whether a file is no copy of an earlier run (``logs.1.txt``) nor of another rank."""
    stem = path.stem
    return not stem.rpartition(".")[2].isdecimal() and ("rank" not in stem or stem.endswith("rank0"))


def _add_table(builder: HistoryBuilder, text: str) -> None:
    """Add a table; a line that is torn or of another form is left out."""
    name, found, _ = text.partition(_COLUMNS)
    try:
        logged: Any = json.loads(text[len(name) + 2 :]) if found else None
    except (RecursionError, ValueError):
        return
    if isinstance(logged, dict) and isinstance(logged.get("columns"), list) and isinstance(logged.get("data"), list):
        rows = [row for row in logged["data"] if isinstance(row, list)]
        builder.tables[name] = LoggedTable(list(map(str, logged["columns"])), rows)
