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
from types import MappingProxyType
from typing import Any

from composer.trials.block_steps import BLOCK_FILE, TOKEN_FILE, write
from composer.trials.blocks import Block, seconds_per_step
from composer.trials.fork_server import ForkServer
from composer.trials.processes import Running
from composer.trials.trial import Trial

__all__ = ["Contest"]

# Seconds between two looks at the file of a block: more often would take time from the data workers.
_POLL = 0.004


class Contest:
    """Variants of a run that are measured in turn.

    Args:
        folder: Folder for the trials.
        trials: The variants by name, with probes that add :class:`.Blocks` to the callbacks.
        server: Forks the processes; None starts a Python for each.
        steps: Number of measured steps of a block.
        batches: Number of batches of an epoch; None if unknown.
        warmup: Number of steps before the first block.
        limit: Seconds that a variant may take to start, or for a block.
        limits: The same for single variants, by name.
        parallel: Number of variants that start at the same time.

    Attributes:
        blocks: The measured blocks by variant, one for each round that it was in.
        failed: Why a variant did not run, by its name.
        warmups: The steps before the first block, by variant.
        memory: Peak memory in bytes by variant, of rank 0; 0 where it is not known.
        cpu_seconds: CPU time by variant, of rank 0 with its start.

    >>> with Contest(Path("folder"), trials, None, steps=8) as contest:  # doctest: +SKIP
    ...     contest.play(["base", "workers-2"])
    ...     contest.seconds()["base"]
    [0.0123]
    """

    def __init__(
        self,
        folder: Path,
        trials: Mapping[str, Trial],
        server: ForkServer | None,
        *,
        steps: int,
        batches: int | None = None,
        warmup: int = 4,
        limit: float = 120.0,
        limits: Mapping[str, float] = MappingProxyType({}),
        parallel: int = 1,
    ) -> None:
        self.blocks: dict[str, list[Block]] = {name: [] for name in trials}
        self.failed: dict[str, str] = {}
        self.warmups: dict[str, Block] = {}
        self.memory: dict[str, int] = {}
        self.cpu_seconds: dict[str, float] = {}
        self._folder, self._trials, self._server, self._parallel = folder, trials, server, parallel
        self._steps, self._batches, self._warmup = steps, batches, warmup
        self._limits = {name: limits.get(name, limit) for name in trials}
        self._running: dict[str, Running] = {}
        self._number = dict.fromkeys(trials, 0)
        self._rounds = 0

    def __enter__(self) -> Contest:
        """Start the variants, and let each train its first steps."""
        try:
            waiting = list(self._trials)
            starting: dict[str, float] = {}
            while waiting or starting:
                while waiting and len(starting) < self._parallel:
                    starting[waiting[0]] = time.monotonic()
                    self._start(waiting.pop(0))
                for name, began in [*starting.items()]:
                    block = self._finished(name, began)
                    if block is not None:
                        self.warmups[name] = block
                    if block is not None or name in self.failed:
                        del starting[name]
                time.sleep(_POLL)
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
        measured: dict[str, Block] = {}
        for name in (*names[turn:], *names[:turn]):
            if name in self.failed:
                continue
            block = self._block(name)
            if block is not None:
                measured[name] = block
        for name, block in measured.items():
            self.blocks[name].append(block)
        return [name for name in names if name in measured]

    def seconds(self) -> dict[str, list[float]]:
        """Return the seconds of a step of the whole run, a number for each block, by variant."""
        return seconds_per_step(self.blocks, [*self.warmups.values()], self._batches)

    def drop(self, name: str) -> None:
        """End a variant of which enough is known.

        Args:
            name: Its name.
        """
        running = self._running.pop(name, None)
        if running is not None:
            self._signal(running, signal.SIGCONT)
            running.end()

    def _start(self, name: str) -> None:
        """Start a variant, which trains its first steps."""
        trial = self._trials[name]
        folder = self._folder / trial.name
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        write(folder / TOKEN_FILE, {"block": 0, "steps": self._warmup, "whole": False})
        self._running[name] = Running(trial, folder, self._server)

    def _block(self, name: str) -> Block | None:
        """Let a variant train a block, and return it; None if the variant has failed."""
        running = self._running[name]
        self._number[name] += 1
        whole = bool(self._batches) and self._steps % (self._batches or 1) == 0
        write(running.folder / TOKEN_FILE, {"block": self._number[name], "steps": self._steps, "whole": whole})
        self._signal(running, signal.SIGCONT)
        began = time.monotonic()
        while (block := self._finished(name, began)) is None and name not in self.failed:
            time.sleep(_POLL)
        return block

    def _finished(self, name: str, began: float) -> Block | None:
        """Stop a variant that has trained its block, and return the block; None if it trains, or has failed."""
        running = self._running[name]
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((running.folder / BLOCK_FILE).read_text(encoding="utf-8"))
            if found["block"] == self._number[name]:
                self._signal(running, signal.SIGSTOP)
                self.memory[name] = found["memory"]
                self.cpu_seconds[name] = found["cpu_seconds"]
                return Block(tuple(found["seconds"]), tuple(found["kinds"]), tuple(found["skipped"]), found["total"])
        record = running.poll()
        if record is not None:
            self.failed[name] = record.error or "it ended by itself"
            del self._running[name]
        elif time.monotonic() > began + self._limits[name]:
            self.failed[name] = f"it did not end within {self._limits[name]:.0f} s"
            self.drop(name)
        return None

    def _end(self) -> None:
        for name in list(self._running):
            self.drop(name)

    @staticmethod
    def _signal(running: Running, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(running.group, number)
