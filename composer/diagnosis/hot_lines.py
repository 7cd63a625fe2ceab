"""Lines of the user's code that were running while steps were sampled, by part and function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["by_function", "hot_lines", "hottest", "place"]


def hot_lines(result: Mapping[str, Any], count: int = 20) -> list[dict[str, Any]]:
    """Return the lines of the user's code that were running longest, with their fraction of the time.

    Args:
        result: What :class:`.StepRecorder` measured.
        count: Number of lines at most.

    >>> line = {"part": "data", "file": "data.py", "line": 7, "in": "Rows.__getitem__", "seconds": 3.0}
    >>> hot_lines(
    ...     {"lines": [line, {"part": "forward", "file": None, "seconds": 7.0}], "sampled_seconds": 10.0}
    ... )
    [{'part': 'data', 'file': 'data.py', 'line': 7, 'in': 'Rows.__getitem__', 'share': 0.3}]
    """
    own = sorted(
        (each for each in result.get("lines", ()) if each["file"] is not None), key=lambda each: -each["seconds"]
    )
    total = result.get("sampled_seconds") or 1.0
    return [
        {**{name: each[name] for name in ("part", "file", "line", "in")}, "share": each["seconds"] / total}
        for each in own[:count]
    ]


def by_function(lines: Sequence[Mapping[str, Any]], part: str) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Return the lines of a part by file and outermost function; lines outside of the user's code are left out.

    Args:
        lines: The lines, with their part, file, number and function.
        part: The part of a step.

    >>> line = {"part": "data", "file": "data.py", "line": 7, "in": "Rows.__getitem__", "seconds": 3.0}
    >>> list(by_function([line], "data"))
    [('data.py', 'Rows.__getitem__')]
    """
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in lines:
        if each["part"] == part and each["file"] is not None:
            found.setdefault((each["file"], each["in"].partition(".<locals>")[0]), []).append(each)
    return found


def hottest(result: Mapping[str, Any], part: str) -> tuple[Mapping[str, Any] | None, float]:
    """Return the hottest line of the function that takes most of a part, and the fraction that the function takes.

    None outside of the user's code.

    Args:
        result: What :class:`.StepRecorder` measured.
        part: The part of a step.

    >>> hottest({}, "data")
    (None, 0.0)
    """
    functions = by_function(result.get("lines", ()), part).values()
    if not functions:
        return None, 0.0
    total = sum(each["seconds"] for each in result["lines"] if each["part"] == part)
    most = max(functions, key=lambda lines: sum(each["seconds"] for each in lines))
    return max(most, key=lambda each: each["seconds"]), sum(each["seconds"] for each in most) / total


def place(line: Mapping[str, Any]) -> str:
    """Return a line as text.

    Args:
        line: The line, with its file, number and function.

    >>> place({"file": "src/data.py", "line": 7, "in": "Rows.__getitem__"})
    'data.py:7 (Rows.__getitem__)'
    """
    return f"{Path(line['file']).name}:{line['line']} ({line['in'].partition('.<locals>')[0]})"
