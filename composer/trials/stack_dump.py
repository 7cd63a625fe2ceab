"""Find the line at which a trial that hangs waits: in the stack trace that faulthandler writes before its end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from composer.trials.worker import is_program_file

__all__ = ["waiting_at"]

# What is read of the end of a log: the program may print after the stack trace.
_READ_BYTES = 2**20
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
# Where a rank waits for another one, which may hang elsewhere.
_COLLECTIVES = ("torch/distributed/", "composer/dist/")


def waiting_at(log: Path) -> str:
    """Return the line that a program executed when the last stack trace of its log was written.

    The line is the innermost one of the main thread, with the line of the program that called it if it is in a library.
    Of several ranks, it is that of one that does not wait for others, if there is one.

    Args:
        log: The log of the trial.

    Returns:
        The line, such as ``"train.py:12 (collate)"``; empty if the log has no stack trace.

    >>> waiting_at(Path("no such file"))
    ''
    """
    found = [_line_of(frames) for frames in _stacks(log) if frames]
    alone = [line for line, is_collective in found if not is_collective]
    return next(iter(alone or [line for line, _ in found]), "")


def _stacks(log: Path) -> Iterator[list[tuple[str, int, str]]]:
    """Yield the frames of the main thread of each process, the innermost first."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _READ_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return
    stack: list[tuple[str, int, str]] | None = None
    for line in lines:
        frame = _FRAME.fullmatch(line)
        if line.startswith("Timeout (") and line.endswith(")!"):
            if stack is not None:
                yield stack
            stack = []
        elif stack is not None and line.startswith("Thread 0x"):
            stack = []  # threads are written from the newest to the oldest, which is the main one
        elif stack is not None and frame is not None:
            stack.append((frame[1], int(frame[2]), frame[3]))
        elif stack and line:  # the program prints something else
            yield stack
            stack = None
    if stack is not None:
        yield stack


def _line_of(frames: list[tuple[str, int, str]]) -> tuple[str, bool]:
    """Return the line of a stack in words, and whether it is within a collective."""
    inner = frames[0]
    own = next((frame for frame in frames if is_program_file(frame[0])), None)
    is_collective = any(part in file for file, _, _ in frames for part in _COLLECTIVES)
    if own is None or own == inner:
        return _place(inner), is_collective
    return f"{_place(inner)}, called by {_place(own)}", is_collective


def _place(frame: tuple[str, int, str]) -> str:
    file, line, function = frame
    return f"{Path(file).name}:{line} ({function})"
