"""What a process knows of itself, tells others when they ask, and asks them."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, TextIO

import torch.distributed as torch_dist

from composer.dist.ranks import describe_ranks
from composer.dist.rendezvous.keepalive import set_keepalive, port_of

__all__ = ["HangWatcher", "stderr_file"]

_log = logging.getLogger("composer.dist")

# Seconds that those who gave up, and the threads of all others, get to say so.
_PATIENCE = 5.0
# Seconds in which one whose thread has answered may still give up: it waits by other means than ours.
_SETTLING = 2.0
# Seconds that the store may take to answer.
_ANSWER: Final = 10.0
# Seconds between two looks of the thread, at most.
_TICK: Final = 2.0
_FRAMES: Final = 8


class HangWatcher:
    """What a process knows of itself, tells others when they ask, and asks them.

    Args:
        store: Of the process group.
        rank: Of this process.
        size: Number of processes.
        timeout: Seconds until collectives fail.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        # A connection of its own: one that the training waits on is locked.
        self._store = torch_dist.PrefixStore("composer/roll-call", store.clone())  # pyright: ignore[reportPrivateImportUsage]
        self._store.set_timeout(timedelta(seconds=_ANSWER))
        set_keepalive(port_of(store), min(_ANSWER, timeout / 2))
        self._rank, self._size, self._timeout = rank, size, timeout
        self._watched = threading.get_ident()
        self._round = 0
        self._gave_up = self._told = False
        self._seen = self._dumped = -1
        self._since = 0.0
        self._reported = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="roll-call", daemon=True)
        self.beats = 0
        self.step: int | None = None
        self.waits = False

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopping.set()
        self._thread.join(15)

    # What this process tells.

    def begin(self) -> None:
        """Begin work, in this thread; what was told of an error is taken back, since somebody has caught it."""
        self._watched = threading.get_ident()
        if self._told:
            self._told = self._gave_up = False
            with contextlib.suppress(RuntimeError):
                self._store.set(f"note/{self._rank}", "")

    def mark(self, *, waits: bool) -> None:
        """Note that the training thread begins to wait for others, or no longer does; nothing in any other thread.

        Args:
            waits: Which of the two.
        """
        if threading.get_ident() == self._watched:
            self.waits = waits
            self.beats += 1

    def tell(self, error: BaseException, *, waited: bool = False) -> None:
        """Leave a note of what ends the work of this process.

        Args:
            error: What.
            waited: Whether it is that others did not come.
        """
        self._told = True
        text = "".join(traceback.format_exception_only(error)).strip()[:1000]
        self._store.set(f"note/{self._rank}", json.dumps({"waited": waited, "text": text}))

    def _answer(self) -> None:
        """Say where the training thread is; in this process's own output, where all threads are."""
        number, self._round = self._round, self._round + 1
        frame = sys._current_frames().get(self._watched)
        stack = [] if frame is None else traceback.format_list(traceback.extract_stack(frame)[-_FRAMES:])
        where = socket.gethostname()
        place = {"step": self.step, "host": where, "stack": "".join(stack), "waits": self.waits}
        self._store.set(f"place/{number}/{self._rank}", json.dumps(place))
        if not self._gave_up and not self.waits and self._dumped != self.beats:
            self._dumped = self.beats
            _dump_stacks(f"Other processes wait; rank {self._rank} is here:\n")

    def _watch(self) -> None:
        tick = min(_TICK, self._timeout / 10)
        # The store is gone when it fails, and with it whoever could ask.
        with contextlib.suppress(RuntimeError):
            while not self._stopping.wait(tick) and torch_dist.is_initialized():
                self._look(time.monotonic())

    def _look(self, now: float) -> None:
        """Answer where others ask, and report where the run stalls; nothing of both while there is progress.

        Args:
            now: The time, in seconds.
        """
        if self.beats != self._seen:
            self._seen, self._since, self._reported = self.beats, now, False
        idle = now - self._since
        # Nobody who goes on is asked; and a store that has ended with its process would complain at length.
        if idle < self._timeout / 2:
            return
        if self._store.check([f"roll/{self._round}"]):
            self._answer()
            self._reported = True
        if self.step is not None and not self._reported and idle >= 0.8 * self._timeout:
            self._reported = True
            self._report(idle)

    # What it asks.

    def explain(self, error: RuntimeError, ranks: Sequence[int] | None = None) -> tuple[list[int], str]:
        """Return who did not come, none where all gave up, and what is known of it.

        Args:
            error: Of the wait that failed.
            ranks: Those that should have come; None is all.
        """
        self._gave_up = True
        try:
            self.tell(error, waited=True)
            return self._hear(range(self._size) if ranks is None else ranks)
        except torch_dist.DistNetworkError:
            return [0], (
                "Rank 0 did not come, and the store of the process group cannot be reached, which rank 0 or the "
                "launcher on its node keeps: it has ended, and its output may say why, or the network is cut."
            )
        except RuntimeError as silence:
            return [], f"Why could not be found out: {silence}"

    def _hear(self, ranks: Sequence[int]) -> tuple[list[int], str]:
        """Who is missing, and what is known of them. One process asks for all that gave up."""
        store, number = self._store, self._round
        if number and store.add(f"callers/{number - 1}", 0) and not store.check([f"verdict/{number - 1}"]):
            number -= 1  # another asks at this moment, and the thread has answered
        store.set(f"roll/{number}", "")
        if store.add(f"callers/{number}", 1) == 1:
            verdict = _verdict([rank for rank in ranks if rank != self._rank], *self._ask(number, ranks))
            store.set(f"verdict/{number}", json.dumps(verdict))
        else:
            store.wait([f"verdict/{number}"], timedelta(seconds=_PATIENCE + 10))
        missing, text = json.loads(store.get(f"verdict/{number}"))
        store.add(f"heard/{number}", 1)
        # The store may end with this process: not before the others have heard.
        end = time.monotonic() + _PATIENCE
        while self._rank == 0 and time.monotonic() < end:
            if store.add(f"heard/{number}", 0) >= store.add(f"callers/{number}", 0):
                break
            time.sleep(0.05)
        return missing, text

    def _ask(self, number: int, ranks: Sequence[int]) -> tuple[dict[int, Any], dict[int, Any]]:
        """The notes of those who have given up, and where the others are, by rank."""
        notes: dict[int, Any] = {}
        places: dict[int, Any] = {}
        end, settled = time.monotonic() + _PATIENCE, False
        while len(notes) < len(ranks) and time.monotonic() < end and not self._stopping.is_set():
            for found, kind in ((notes, "note"), (places, f"place/{number}")):
                for rank in ranks:
                    if rank not in found and self._store.check([f"{kind}/{rank}"]):
                        text = self._store.get(f"{kind}/{rank}")
                        found.update({rank: json.loads(text)} if text else {})
            if any(not note["waited"] for note in notes.values()):
                break  # the reason
            if not settled and {*notes, *places}.issuperset(ranks):
                end, settled = min(end, time.monotonic() + _SETTLING), True
            time.sleep(0.05)
        return notes, places

    def _report(self, idle: float) -> None:
        """Say who is where before collectives fail: some backends then end the process."""
        number = self._round
        self._store.set(f"roll/{number}", "")
        self._answer()
        if self._store.add(f"reporters/{number}", 1) == 1:
            _, places = self._ask(number, range(self._size))
            silent = set(range(self._size)) - set(places)
            lines = _described(places, "")
            lines += [f"{describe_ranks(silent).capitalize()} gave no answer."] if silent else []
            lines += _flight_recorder()
            _log.warning(
                "No step ended in %.0f s; processes that wait for another fail after %g s.\n%s",
                idle,
                self._timeout,
                "\n".join(lines),
            )


def _verdict(others: Iterable[int], notes: dict[int, Any], places: dict[int, Any]) -> tuple[list[int], str]:
    """Say who is missing, by what all have told: whoever failed, or else whoever has not given up waiting."""
    failed = [rank for rank in others if rank in notes and not notes[rank]["waited"]]
    if failed:
        return failed, "\n".join(f"Rank {rank} failed: {notes[rank]['text']}" for rank in failed)
    away = [rank for rank in others if rank not in notes]
    there = {rank: places[rank] for rank in away if rank in places and not places[rank]["waits"]}
    silent = [rank for rank in away if rank not in places]
    if not there and not silent:
        told = [f"Rank {rank}: {note['text']}" for rank, note in sorted(notes.items())[:8]]
        return [], "\n".join(["All processes gave up waiting for each other.", *told])
    lines = _described(there, " did not come")
    if silent:
        lines.append(
            f"{describe_ranks(silent).capitalize()} did not come and gave no answer in {_PATIENCE:g} s: ended, "
            f"stopped or busy."
        )
    return sorted([*there, *silent]), "\n".join(lines)


def _described(places: dict[int, Any], verb: str) -> list[str]:
    """Say where ranks are, those at one place together."""
    together: dict[tuple[int | None, str], list[int]] = {}
    for rank, place in sorted(places.items()):
        together.setdefault((place["step"], place["stack"]), []).append(rank)
    lines: list[str] = []
    for (step, stack), ranks in together.items():
        who = describe_ranks(ranks).capitalize() + (f" on {places[ranks[0]]['host']}" if len(ranks) == 1 else "")
        when = "" if step is None else f" in step {step}"
        lines.append(f"{who}{verb}. Stack{when}:\n{stack.rstrip()}")
    return lines


def _flight_recorder() -> list[str]:
    """Say where torch writes what ranks sent and received last, if it was told to and where to."""
    given = os.environ
    path = given.get("TORCH_FR_DUMP_TEMP_FILE") or given.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    size = given.get("TORCH_FR_BUFFER_SIZE") or given.get("TORCH_NCCL_TRACE_BUFFER_SIZE") or "0"
    dumps = given.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "0") not in ("", "0")
    if path and size != "0" and dumps and "nccl" in str(torch_dist.get_backend_config()):
        return [f"When they fail, torch's flight recorder writes to {path}RANK; torchfrtrace reads that."]
    return []


def _dump_stacks(head: str) -> None:
    """Write the stacks of all threads to the standard error, where it is a file."""
    file = stderr_file()
    if file is not None:
        file.write(head)
        file.flush()
        faulthandler.dump_traceback(file)


def stderr_file() -> TextIO | None:
    """Return the standard error, where faulthandler can write to it."""
    file = sys.__stderr__
    try:
        return None if file is None or file.fileno() < 0 else file
    except (OSError, ValueError):
        return None
