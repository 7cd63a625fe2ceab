"""Detect hangs: a background thread per rank that posts stack traces to the store and finds the missing ranks.

The protocol, over keys of the store: a rank that gave up waiting writes ``error/RANK`` and ``request/ROUND``; every
other rank's thread responds with ``stack/ROUND/RANK``; the first requester writes ``report/ROUND``, which the others
read.
"""

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
from composer.dist.rendezvous.keepalive import port_of, set_keepalive

__all__ = ["HangWatcher", "stderr_file"]

_log = logging.getLogger("composer.dist")

# Seconds that ranks have to respond to a request, or to post that they gave up as well.
_RESPONSE_TIMEOUT = 5.0
# Seconds that a rank whose thread has responded still has to give up: it may wait in a collective that
# composer did not issue.
_GRACE_PERIOD = 2.0
# Store timeout in seconds.
_STORE_TIMEOUT: Final = 10.0
# Longest time between two polls of the thread, in seconds.
_MAX_POLL_INTERVAL: Final = 2.0
_STACK_DEPTH: Final = 8


class HangWatcher:
    """Tracks the progress of this rank, responds to requests of other ranks, and requests reports from them.

    Args:
        store: The store of the process group.
        rank: This rank.
        size: World size.
        timeout: Collective timeout in seconds.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        # A separate connection: the store is locked while the training thread waits on it.
        self._store = torch_dist.PrefixStore("composer/hang-report", store.clone())  # pyright: ignore[reportPrivateImportUsage]
        self._store.set_timeout(timedelta(seconds=_STORE_TIMEOUT))
        set_keepalive(port_of(store), min(_STORE_TIMEOUT, timeout / 2))
        self._rank, self._size, self._timeout = rank, size, timeout
        self._watched = threading.get_ident()
        self._round = 0
        self._gave_up = self._posted_error = False
        self._last_count = self._dumped_count = -1
        self._last_progress_time = 0.0
        self._reported = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hang-watcher", daemon=True)
        self.progress_count = 0
        self.step: int | None = None
        self.waits = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._thread.join(15)

    # Responding to other ranks.

    def begin(self) -> None:
        """Watch the calling thread; withdraw an error posted before, since it has been caught."""
        self._watched = threading.get_ident()
        if self._posted_error:
            self._posted_error = self._gave_up = False
            with contextlib.suppress(RuntimeError):
                self._store.set(f"error/{self._rank}", "")

    def mark(self, *, waits: bool) -> None:
        """Record that the training thread starts or stops waiting in a collective; does nothing in other threads.

        Args:
            waits: Whether it starts to wait.
        """
        if threading.get_ident() == self._watched:
            self.waits = waits
            self.progress_count += 1

    def post_error(self, error: BaseException, *, waited: bool = False) -> None:
        """Post the error that ends the work of this rank, for the reports of other ranks.

        Args:
            error: The error.
            waited: Whether it is a communication error, as after a collective timed out.
        """
        self._posted_error = True
        text = "".join(traceback.format_exception_only(error)).strip()[:1000]
        self._store.set(f"error/{self._rank}", json.dumps({"waited": waited, "text": text}))

    def _post_stack(self) -> None:
        """Post the stack of the training thread, and dump the stacks of all threads to stderr."""
        number, self._round = self._round, self._round + 1
        frame = sys._current_frames().get(self._watched)
        stack = [] if frame is None else traceback.format_list(traceback.extract_stack(frame)[-_STACK_DEPTH:])
        response = {"step": self.step, "host": socket.gethostname(), "stack": "".join(stack), "waits": self.waits}
        self._store.set(f"stack/{number}/{self._rank}", json.dumps(response))
        if not self._gave_up and not self.waits and self._dumped_count != self.progress_count:
            self._dumped_count = self.progress_count
            _dump_stacks(f"Other ranks are waiting in a collective. Stack traces of rank {self._rank}:\n")

    def _watch(self) -> None:
        tick = min(_MAX_POLL_INTERVAL, self._timeout / 10)
        # If the store fails it is gone, and so is every rank that could request a report.
        with contextlib.suppress(RuntimeError):
            while not self._stopping.wait(tick) and torch_dist.is_initialized():
                self._poll(time.monotonic())

    def _poll(self, now: float) -> None:
        """Respond to a request, and log a report if the run stalls; do neither while this rank makes progress.

        Args:
            now: The current time in seconds.
        """
        if self.progress_count != self._last_count:
            self._last_count, self._last_progress_time, self._reported = self.progress_count, now, False
        idle = now - self._last_progress_time
        # Do not poll the store while there is progress: a store whose process has exited would log errors at length.
        if idle < self._timeout / 2:
            return
        if self._store.check([f"request/{self._round}"]):
            self._post_stack()
            self._reported = True
        if self.step is not None and not self._reported and idle >= 0.8 * self._timeout:
            self._reported = True
            self._log_stall(idle)

    # Requesting a report.

    def request_report(self, error: RuntimeError, ranks: Sequence[int] | None = None) -> tuple[list[int], str]:
        """Return the missing ranks (an empty list if all ranks timed out) and a text with their errors or stack traces.

        Args:
            error: The error of the collective.
            ranks: The ranks of its group; None for all.
        """
        self._gave_up = True
        try:
            self.post_error(error, waited=True)
            return self._find_missing(range(self._size) if ranks is None else ranks)
        except torch_dist.DistNetworkError:
            return [0], (
                "Rank 0 did not join the collective, and the store of the process group, which runs on rank 0 or in "
                "the launcher on its node, cannot be reached: that process has exited (see its output), or the network "
                "connection is lost."
            )
        except RuntimeError as failure:
            return [], f"The missing ranks could not be determined: {failure}"

    def _find_missing(self, ranks: Sequence[int]) -> tuple[list[int], str]:
        """Return the missing ranks and the report. The first requester collects responses, for all of them."""
        store, number = self._store, self._round
        if number and store.add(f"requesters/{number - 1}", 0) and not store.check([f"report/{number - 1}"]):
            number -= 1  # another rank is collecting right now, and our thread has responded
        store.set(f"request/{number}", "")
        is_first = store.add(f"requesters/{number}", 1) == 1
        # The first requester may have exited: a launcher ends all ranks soon after one failed.
        if is_first or not self._appears(f"report/{number}", _RESPONSE_TIMEOUT + _GRACE_PERIOD):
            report = _make_report(
                [rank for rank in ranks if rank != self._rank], *self._collect_responses(number, ranks)
            )
            store.set(f"report/{number}", json.dumps(report))
        missing, text = json.loads(store.get(f"report/{number}"))
        store.add(f"received/{number}", 1)
        # The store may end with this process, so stay until the others have received the report.
        end = time.monotonic() + _RESPONSE_TIMEOUT
        while self._rank == 0 and time.monotonic() < end:
            if store.add(f"received/{number}", 0) >= store.add(f"requesters/{number}", 0):
                break
            time.sleep(0.05)
        return missing, text

    def _appears(self, key: str, seconds: float) -> bool:
        """Return whether a key is in the store within some time; unlike waiting, this logs nothing if it is not."""
        end = time.monotonic() + seconds
        while not (found := self._store.check([key])) and time.monotonic() < end:
            time.sleep(0.05)
        return found

    def _collect_responses(self, number: int, ranks: Sequence[int]) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return the posted errors and the stacks of the ranks, by rank."""
        errors: dict[int, Any] = {}
        stacks: dict[int, Any] = {}
        end, all_responded = time.monotonic() + _RESPONSE_TIMEOUT, False
        while len(errors) < len(ranks) and time.monotonic() < end and not self._stopping.is_set():
            for found, key in ((errors, "error"), (stacks, f"stack/{number}")):
                for rank in ranks:
                    if rank not in found and self._store.check([f"{key}/{rank}"]):
                        text = self._store.get(f"{key}/{rank}")
                        found.update({rank: json.loads(text)} if text else {})
            if any(not error["waited"] for error in errors.values()):
                break  # the root cause
            if not all_responded and {*errors, *stacks}.issuperset(ranks):
                end, all_responded = min(end, time.monotonic() + _GRACE_PERIOD), True
            time.sleep(0.05)
        return errors, stacks

    def _log_stall(self, idle: float) -> None:
        """Log the stacks of all ranks before the collective times out, since some backends then abort the process."""
        number = self._round
        self._store.set(f"request/{number}", "")
        self._post_stack()
        if self._store.add(f"reporters/{number}", 1) == 1:
            _, stacks = self._collect_responses(number, range(self._size))
            unresponsive = set(range(self._size)) - set(stacks)
            lines = _describe_stacks(stacks, "")
            lines += [f"{describe_ranks(unresponsive).capitalize()} did not respond."] if unresponsive else []
            lines += _flight_recorder()
            _log.warning(
                "No step has completed in %.0f s; collectives time out after %g s.\n%s",
                idle,
                self._timeout,
                "\n".join(lines),
            )


def _make_report(others: Iterable[int], errors: dict[int, Any], stacks: dict[int, Any]) -> tuple[list[int], str]:
    """Return the missing ranks and a text: the ranks that failed, or else those that have not timed out themselves."""
    failed = [rank for rank in others if rank in errors and not errors[rank]["waited"]]
    if failed:
        return failed, "\n".join(f"Rank {rank} failed: {errors[rank]['text']}" for rank in failed)
    without_error = [rank for rank in others if rank not in errors]
    not_waiting = {rank: stacks[rank] for rank in without_error if rank in stacks and not stacks[rank]["waits"]}
    unresponsive = [rank for rank in without_error if rank not in stacks]
    if not not_waiting and not unresponsive:
        lines = [f"Rank {rank}: {error['text']}" for rank, error in sorted(errors.items())[:8]]
        return [], "\n".join(["All ranks timed out waiting for each other.", *lines])
    lines = _describe_stacks(not_waiting, " did not join the collective")
    if unresponsive:
        lines.append(
            f"{describe_ranks(unresponsive).capitalize()} did not join the collective and did not respond within "
            f"{_RESPONSE_TIMEOUT:g} s: exited, stopped, or holding the GIL."
        )
    return sorted([*not_waiting, *unresponsive]), "\n".join(lines)


def _describe_stacks(stacks: dict[int, Any], verb: str) -> list[str]:
    """Return the stack traces as text, ranks with the same stack together."""
    same_stack: dict[tuple[int | None, str], list[int]] = {}
    for rank, response in sorted(stacks.items()):
        same_stack.setdefault((response["step"], response["stack"]), []).append(rank)
    lines: list[str] = []
    for (step, stack), ranks in same_stack.items():
        who = describe_ranks(ranks).capitalize() + (f" on {stacks[ranks[0]]['host']}" if len(ranks) == 1 else "")
        when = "" if step is None else f" in step {step}"
        lines.append(f"{who}{verb}. Stack{when}:\n{stack.rstrip()}")
    return lines


def _flight_recorder() -> list[str]:
    """Return a line that names the files of torch's flight recorder, if it is enabled."""
    given = os.environ
    path = given.get("TORCH_FR_DUMP_TEMP_FILE") or given.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    size = given.get("TORCH_FR_BUFFER_SIZE") or given.get("TORCH_NCCL_TRACE_BUFFER_SIZE") or "0"
    dumps = given.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "0") not in ("", "0")
    if path and size != "0" and dumps and "nccl" in str(torch_dist.get_backend_config()):
        return [f"When they time out, torch's flight recorder writes to {path}RANK; torchfrtrace reads these files."]
    return []


def _dump_stacks(head: str) -> None:
    """Write the stacks of all threads to stderr, if it is a file."""
    file = stderr_file()
    if file is not None:
        file.write(head)
        file.flush()
        faulthandler.dump_traceback(file)


def stderr_file() -> TextIO | None:
    """Return stderr if faulthandler can write to it, else None."""
    file = sys.__stderr__
    try:
        return None if file is None or file.fileno() < 0 else file
    except (OSError, ValueError):
        return None
