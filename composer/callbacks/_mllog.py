"""Write an MLPerf log (mlperf_logging format).

    :::MLLOG {"namespace": "", "time_ms": 1700000000000, "event_type": "POINT_IN_TIME", "key": "seed", "value": 1,
              "metadata": {"file": "train.py", "lineno": 10}}

each on one line; the format is defined at https://github.com/mlcommons/logging.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Literal

__all__ = ["MLPerfLog"]

EventType = Literal["INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"]


class MLPerfLog:
    """Writes events to a file as they happen, one line each.

    Args:
        path: The file, which must not exist, in an existing folder.

    Raises:
        FileExistsError: The file exists.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "result_0.txt")
    >>> log = MLPerfLog(path)
    >>> log.event("seed", 17)
    >>> log.close()
    >>> path.read_text()[:25], json.loads(path.read_text()[9:])["value"]
    (':::MLLOG {"namespace": ""', 17)
    """

    def __init__(self, path: Path) -> None:
        # Line-buffered, as a run may be killed at any time.
        self._file = path.open("x", buffering=1, encoding="utf-8")

    def event(self, key: str, value: Any = None, metadata: dict[str, Any] | None = None) -> None:
        """Write a point event.

        Args:
            key: Key of the event.
            value: Its value; must be JSON serializable.
            metadata: Additional metadata.
        """
        self._write("POINT_IN_TIME", key, value, metadata)

    def start(self, key: str, metadata: dict[str, Any] | None = None) -> None:
        """Write the start of an interval.

        Args:
            key: Key of the event.
            metadata: Additional metadata.
        """
        self._write("INTERVAL_START", key, None, metadata)

    def end(self, key: str, metadata: dict[str, Any] | None = None) -> None:
        """Write the end of an interval.

        Args:
            key: Key of the event.
            metadata: Additional metadata.
        """
        self._write("INTERVAL_END", key, None, metadata)

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        self._file.close()

    def _write(self, event_type: EventType, key: str, value: Any, metadata: dict[str, Any] | None) -> None:
        caller = sys._getframe(2)
        line = {
            "namespace": "",
            "time_ms": time.time_ns() // 1_000_000,
            "event_type": event_type,
            "key": key,
            "value": value,
            "metadata": {"file": caller.f_code.co_filename, "lineno": caller.f_lineno, **(metadata or {})},
        }
        self._file.write(f":::MLLOG {json.dumps(line)}\n")
