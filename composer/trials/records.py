"""Records of trials in a folder: one JSON line each, so that an interrupted study goes on with what is missing.

JSON lines rather than a database: a record is appended in one write, a crash can damage only the last line, which is
then ignored, and every tool reads the file.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from composer.trials.trial import Record

__all__ = ["Records"]


class Records:
    """The records of a study.

    Args:
        path: The file, which need not exist yet.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Records(Path(folder, "trials.jsonl")).add(
    ...         Record("bf16", "0f", "completed", 12.5, result={"steps": 3})
    ...     )
    ...     Records(Path(folder, "trials.jsonl")).get("0f").result
    {'steps': 3}
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_key: dict[str, Record] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    record = Record(**json.loads(line))
                except (ValueError, TypeError):
                    continue  # the process ended while it wrote the line, or another version wrote it
                self._by_key[record.key] = record

    def get(self, key: str) -> Record | None:
        """Return the newest record of a trial, or None.

        Args:
            key: The key of the trial.
        """
        return self._by_key.get(key)

    def add(self, record: Record) -> None:
        """Append a record; it is on the disk when this returns.

        Args:
            record: The record.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(dataclasses.asdict(record))
        with self._path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else f"\n{line}"  # the last line is torn
            file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        self._by_key[record.key] = record
