"""Measure variants of a run in turn: each trains a block of steps while the others are stopped.

What else the computer does then hits all variants alike, and the ratio of blocks that follow each other is exact where
the times themselves are not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer.diagnosis.block_recorder import BLOCK_FILE, TOKEN_FILE, write
from composer.trials.fork_server import ForkServer
from composer.trials.processes import Running
from composer.trials.trial import Trial

__all__ = ["Contest"]


class Contest:
    """Variants of a run that are measured in turn.

    Args:
        folder: Folder for the trials.
        trials: The variants by name, with a :class:`.BlockRecorder` as probe.
        server: Forks the processes; None starts a Python for each.
        steps: Number of steps of a block.
        warmup: Number of steps before the first block.
        limit: Seconds that a variant may take to start, or for a block.

    Attributes:
        blocks: Seconds a step by variant, a number for each round that it was in.
        failed: Why a variant did not run, by its name.

    >>> with Contest(Path("folder"), trials, None, steps=8) as contest:  # doctest: +SKIP
    ...     contest.play(["base", "workers-2"])
    ...     contest.blocks["base"]
    [0.0123]
    """

    def __init__(
        self,
        folder: Path,
        trials: Mapping[str, Trial],
        server: ForkServer | None,
        *,
        steps: int,
        warmup: int = 4,
        limit: float = 120.0,
    ) -> None:
        self.blocks: dict[str, list[float]] = {name: [] for name in trials}
        self.failed: dict[str, str] = {}
        self._folder, self._trials, self._server = folder, trials, server
        self._steps, self._warmup, self._limit = steps, warmup, limit
        self._running: dict[str, Running] = {}
        self._number = dict.fromkeys(trials, -1)
        self._rounds = 0

    def __enter__(self) -> Contest:
        """Start the variants, and let each train its first steps."""
        try:
            for name, trial in self._trials.items():
                folder = self._folder / trial.name
                if folder.exists():
                    shutil.rmtree(folder)
                folder.mkdir(parents=True)
                self._running[name] = Running(trial, folder, self._server)
                # One at a time: starts would take as long in parallel, and memory is used once.
                if self._await(name) is not None:
                    self._block(name, self._warmup)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """End the variants."""
        self._end()

    def play(self, names: Sequence[str]) -> list[str]:
        """Train a block of each variant; return the names of those that still run.

        Args:
            names: The variants. The order changes from round to round.
        """
        turn = self._rounds % max(1, len(names))
        self._rounds += 1
        measured: dict[str, float] = {}
        for name in (*names[turn:], *names[:turn]):
            if name in self.failed:
                continue
            seconds = self._block(name, self._steps)
            if seconds is not None:
                measured[name] = seconds
        for name, seconds in measured.items():
            self.blocks[name].append(seconds)
        return [name for name in names if name in measured]

    def drop(self, name: str) -> None:
        """End a variant of which enough is known.

        Args:
            name: Its name.
        """
        running = self._running.pop(name, None)
        if running is not None:
            self._signal(running, signal.SIGCONT)
            running.end()

    def _block(self, name: str, steps: int) -> float | None:
        """Let a variant train some steps, and return the seconds of one; None if it has failed."""
        running = self._running[name]
        self._number[name] += 1
        write(running.folder / TOKEN_FILE, {"block": self._number[name], "steps": steps, "skipped": 1})
        self._signal(running, signal.SIGCONT)
        return self._await(name)

    def _await(self, name: str) -> float | None:
        """Wait until a variant has trained its block, and stop it."""
        running, end, polled = self._running[name], time.monotonic() + self._limit, 0.0
        path = running.folder / BLOCK_FILE
        while (now := time.monotonic()) < end:
            with contextlib.suppress(FileNotFoundError):
                found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                if found["block"] == self._number[name]:
                    self._signal(running, signal.SIGSTOP)
                    return found["seconds"]
            if now > polled + 0.2:
                polled = now
                record = running.poll()
                if record is not None:
                    self.failed[name] = record.error or "it ended by itself"
                    del self._running[name]
                    return None
            time.sleep(0.001)
        self.failed[name] = f"a block took more than {self._limit:.0f} s"
        self.drop(name)
        return None

    def _end(self) -> None:
        for name in list(self._running):
            self.drop(name)

    @staticmethod
    def _signal(running: Running, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(running.group, number)
