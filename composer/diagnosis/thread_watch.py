"""Find threads of the user's program that hold the lock of the interpreter (GIL) while the training waits for it.

A thread in Python code makes every part of a step slower, by up to 5 ms whenever the training has released the lock, as
for each operator. Such a thread uses the CPU while steps are timed, and sleeps while another thread holds the lock. The
training must wait in addition: its thread neither runs nor is ready to run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from composer.diagnosis.communication import COMMUNICATION, WAITING
from composer.diagnosis.user_lines import user_line

__all__ = ["ThreadWatch", "holding_thread"]

# Fraction of the time from which a thread is watched.
_LEAST = 0.1
# Fraction of the CPU time of a thread from which it is the lock that it runs with.
_MOSTLY = 0.5
_FEWEST_LOOKS = 10
# Seconds between two looks at the clock of a thread, and the longest, after which the lock was lost in between.
_LOOK, _LONGEST_LOOK = 3e-5, 1e-4
# Parts of a step in which the training waits for other processes.
_OTHER_WAITS = ("data", COMMUNICATION, WAITING)


@dataclass
class _Watched:
    """A thread that uses the CPU, and what samples say of it."""

    thread: threading.Thread
    share: float  # of the time while steps were timed
    began: tuple[float, float] | None = None  # CPU and wall time of the first look
    ended: tuple[float, float] = (0.0, 0.0)
    looks: int = 0
    running: float = 0.0  # sum of the fractions of looks in which it ran without the lock
    lines: Counter[tuple[str, int, str]] = field(default_factory=Counter[tuple[str, int, str]])

    def to_json(self) -> dict[str, Any] | None:
        """Return what is known in JSON types; None if it holds no lock, or runs no code of the user."""
        if self.began is None or self.looks < _FEWEST_LOOKS or sum(self.lines.values()) < self.looks / 2:
            return None
        cpu, wall = self.ended[0] - self.began[0], self.ended[1] - self.began[1]
        free = self.running / self.looks
        if wall <= 0 or cpu <= _LEAST / 2 * wall or 1 - free * wall / cpu < _MOSTLY:
            return None
        (file, line, function), _ = self.lines.most_common(1)[0]
        held = self.share * (1 - free * wall / cpu)
        return {"thread": self.thread.name, "held": held, "file": file, "line": line, "in": function}


class ThreadWatch:
    """Watches the CPU time of the threads of Python, and whether they need the lock for it; on Linux.

    >>> watch = ThreadWatch()
    >>> watch.begin()
    >>> watch.end()
    >>> watch.to_json()["threads"]
    []
    """

    def __init__(self) -> None:
        self._is_able = sys.platform == "linux" and getattr(sys, "_is_gil_enabled", lambda: True)()
        self._watched: list[_Watched] = []
        self._before: dict[int, float] = {}
        self._blocked = self._began = self._ran = 0.0

    def begin(self) -> None:
        """Begin to measure CPU times, in the thread that trains."""
        if self._is_able:
            self._before = {each.ident: _cpu_seconds(each) for each in _others() if each.ident is not None}
            self._began, self._ran = time.perf_counter(), _ran_or_ready()

    def end(self) -> None:
        """Choose the threads that use the CPU; from here on, they are sampled."""
        if not self._is_able or not self._before:
            return
        wall = time.perf_counter() - self._began
        self._blocked = max(0.0, 1 - (_ran_or_ready() - self._ran) / wall)
        for each in _others():
            if each.ident in self._before:
                share = (_cpu_seconds(each) - self._before[each.ident]) / wall
                if share >= _LEAST:
                    self._watched.append(_Watched(each, share))

    def sample(self, frames: Mapping[int, FrameType]) -> None:
        """Look at each thread that is watched, from one that holds the lock.

        Args:
            frames: The frames of all threads by identifier, of ``sys._current_frames()``.
        """
        for each in self._watched:
            if not each.thread.is_alive():
                continue
            line = user_line(frames.get(each.thread.ident or 0))
            first, begin = _cpu_seconds(each.thread), time.perf_counter()
            while time.perf_counter() < begin + _LOOK:
                pass
            second, end = _cpu_seconds(each.thread), time.perf_counter()
            if end - begin > _LONGEST_LOOK:
                continue
            each.looks += 1
            each.running += min(1.0, (second - first) / (end - begin))
            each.began, each.ended = each.began or (first, begin), (second, end)
            if line is not None:
                each.lines[line] += 1

    def to_json(self) -> dict[str, Any]:
        """Return the threads that hold the lock, and the fraction of the time in which the training was blocked."""
        found = [told for each in self._watched if (told := each.to_json()) is not None]
        return {"threads": sorted(found, key=lambda one: -one["held"]), "blocked": self._blocked}


def holding_thread(
    result: Mapping[str, Any], shares: Mapping[str, float], idle: float | None = None
) -> tuple[float, Mapping[str, Any] | None]:
    """Return the fraction of a step for which threads keep the training from running, and the thread that does most.

    It is that for which they hold the lock, but not more than the training is blocked for no other known reason.

    Args:
        result: What :class:`.StepRecorder` measured.
        shares: The fraction of each part of a step.
        idle: The fraction for which an accelerator waits for the host; None on the CPU.

    >>> thread = {"thread": "poll", "held": 0.5, "file": "train.py", "line": 7, "in": "poll"}
    >>> found = {"threads": {"threads": [thread], "blocked": 0.7}, "facts": {"data": {"workers": 1}}}
    >>> holding_thread(found, {"data": 0.4, "forward": 0.6})[0]
    0.3
    """
    threads = result.get("threads", {"threads": (), "blocked": 0.0})
    if not threads["threads"]:
        return 0.0, None
    # Without data workers, batches are made in the thread that trains.
    parts = _OTHER_WAITS[0 if result["facts"]["data"].get("workers") else 1 :]
    waits = sum(shares.get(part, 0.0) for part in parts)
    blocked = threads["blocked"] - waits if idle is None else min(idle, threads["blocked"])
    held = sum(each["held"] for each in threads["threads"])
    return round(max(0.0, min(held, blocked, 1.0)), 6), threads["threads"][0]


def _others() -> list[threading.Thread]:
    own = threading.current_thread()
    return [each for each in threading.enumerate() if each is not own and each.native_id is not None]


def _cpu_seconds(thread: threading.Thread) -> float:
    """Return the CPU time of a thread; 0 if it has ended.

    The number of the clock is computed as by ``pthread_getcpuclockid``, which crashes if the thread has ended.
    """
    assert thread.native_id is not None
    try:
        return time.clock_gettime((~thread.native_id << 3) | 6)
    except OSError:
        return 0.0


def _ran_or_ready() -> float:
    """Return the seconds for which this thread has run, or was ready to run while others had the cores."""
    try:
        waited = int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):  # a kernel without these statistics
        waited = 0
    return time.thread_time() + waited * 1e-9
