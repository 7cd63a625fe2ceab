"""DataloaderMonitor: log the time spent waiting for data, and raise an error if the DataLoader hangs."""

from __future__ import annotations

import os
import time
import traceback
import weakref
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from composer._numbers import positive, whole_number
from composer._text import plural
from composer.callbacks._watchdog import Watchdog
from composer.callbacks._worker_stacks import WorkerStacks, process_state
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.handler_owner import owner_of
from composer.core.time import Time, TimeUnit, ensure_time

if TYPE_CHECKING:
    from composer.core.handler_owner import Handler
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["DataloaderMonitor"]

_TRAINING: Final = "training data"
_PREDICTION: Final = "prediction data"

_WAIT_BEGINS: Final = frozenset(
    {
        Event.FIT_START,
        Event.EPOCH_START,
        Event.BEFORE_DATALOADER,
        Event.EVAL_START,
        Event.EVAL_BATCH_END,
        Event.PREDICT_START,
        Event.PREDICT_BATCH_END,
    }
)
_WAIT_ENDS: Final = frozenset(
    {
        Event.EPOCH_END,
        Event.AFTER_DATALOADER,
        Event.EVAL_END,
        Event.EVAL_BATCH_START,
        Event.PREDICT_END,
        Event.PREDICT_BATCH_START,
    }
)


class DataloaderMonitor(Callback):
    """Logs how long each step waits for its batch, and raises if the DataLoader hangs for longer than ``timeout``.

    Logs ``dataloader/wait_seconds``, the time from requesting a batch until its transfer to the device has begun, and
    ``dataloader/wait_share``, the fraction of time spent in such waits over the last ``window_size`` steps, without
    evaluations. Both are measured on the host: on an accelerator, where the host runs ahead, they are an upper bound
    of the device's wait. A fraction near zero means that a faster loader would not help.

    If no batch arrives within ``timeout``, in training, evaluation or prediction, ``TimeoutError`` is raised in the
    loop. It names the worker process that the loop waits for, its process state, and its Python stack, also if it
    hangs in a system call or in native code; with ``num_workers=0`` it shows the stack of the process itself. A thread
    watches the loop while it runs. Workers started during that time have a thread that reports their stack on request,
    and register ``faulthandler`` on SIGUSR2 for native code that blocks that thread (not on Windows); the stacks of
    workers that were already running are unknown.

    Args:
        timeout: The longest wait for a batch: seconds, or a time string such as "10m". It should exceed the startup
            time of the workers. None never raises.
        window_size: Number of steps over which the fraction is computed.

    Raises:
        ValueError: An argument is not positive, or the timeout is not a wall-clock time.
        TimeoutError: Raised in the loop if no batch arrives in time.

    >>> DataloaderMonitor(timeout="2m").timeout
    120.0
    """

    def __init__(self, timeout: float | str | Time | None = 600.0, window_size: int = 100) -> None:
        self.timeout = None if timeout is None else _as_seconds(timeout)
        self.window_size = whole_number("window_size", window_size, minimum=1)
        self._steps: deque[tuple[float, float]] = deque()  # of the window: seconds of wait and of the full step
        self._all_waits = self._all_steps = 0.0
        self._requested_at = self._waited = 0.0
        self._watchdog = None if self.timeout is None else Watchdog(self.timeout, self._report)
        self._stacks: WorkerStacks | None = None
        self._state: weakref.ref[State] | None = None
        self._loops: set[str] = set()

    def __wrap_handlers__(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        """Run next to the loader, so that other handlers of these events do not count as waiting for data."""
        mine = tuple(handler for handler in handlers if owner_of(handler) is self)
        others = tuple(handler for handler in handlers if owner_of(handler) is not self)
        if event in _WAIT_ENDS:
            return (*mine, *others)
        return (*others, *mine) if event in _WAIT_BEGINS else handlers

    # The loops.

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start watching; when resuming in the middle of an epoch, a batch is requested next."""
        self._loops.clear()  # one that an exception has left
        self._steps.clear()
        self._all_waits = self._all_steps = 0.0
        self._begin_loop("fit", state)
        self._prepare(state)
        self._begin_wait(_TRAINING)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Stop watching."""
        self._end_loop("fit")

    def eval_standalone_start(self, state: State, logger: Logger) -> None:
        """Start watching."""
        self._begin_loop("eval", state)

    def eval_standalone_end(self, state: State, logger: Logger) -> None:
        """Stop watching."""
        self._end_loop("eval")

    def predict_start(self, state: State, logger: Logger) -> None:
        """Start watching; the first batch is requested next."""
        self._begin_loop("predict", state)
        self._prepare(state)
        self._begin_wait(_PREDICTION)

    def predict_end(self, state: State, logger: Logger) -> None:
        """Stop watching."""
        self._end_loop("predict")

    def close(self, state: State, logger: Logger) -> None:
        """Stop watching, also after an error."""
        self._loops.clear()
        self._end_loop("fit")
        if self._stacks is not None:
            self._stacks.close()
            self._stacks = None

    # The waits.

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Start timing: workers start or restart."""
        self._prepare(state)
        self._begin_wait(_TRAINING)

    def before_dataloader(self, state: State, logger: Logger) -> None:
        """Start timing: a batch is requested."""
        self._requested_at = time.perf_counter()
        self._begin_wait(_TRAINING)

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Stop timing: the batch has arrived."""
        self._waited = time.perf_counter() - self._requested_at
        self._end_wait()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Log the wait of this step."""
        step = time.perf_counter() - self._requested_at
        self._steps.append((self._waited, step))
        self._all_waits += self._waited
        self._all_steps += step
        if len(self._steps) > self.window_size:
            waited, step = self._steps.popleft()
            self._all_waits -= waited
            self._all_steps -= step
        fraction = self._all_waits / self._all_steps
        logger.log_metrics({"dataloader/wait_seconds": self._waited, "dataloader/wait_share": fraction})

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Stop timing: the loader is exhausted."""
        self._end_wait()

    def eval_start(self, state: State, logger: Logger) -> None:
        """Start timing: the first batch is requested."""
        self._prepare(state)
        self._begin_wait(f"evaluation data {state.dataloader_label!r}")

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        """Stop timing: the batch has arrived."""
        self._end_wait()

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Start timing the next batch, unless this was the last."""
        # After the last batch the metrics are computed, which may take arbitrarily long.
        if state.eval_timestamp.batch.value != state.eval_phase.length:
            self._begin_wait(f"evaluation data {state.dataloader_label!r}")

    def eval_end(self, state: State, logger: Logger) -> None:
        """Stop timing: the evaluation is over."""
        self._end_wait()

    def predict_batch_start(self, state: State, logger: Logger) -> None:
        """Stop timing: the batch has arrived."""
        self._end_wait()

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        """Start timing the next batch."""
        self._begin_wait(_PREDICTION)

    def _prepare(self, state: State) -> None:
        """Prepare the workers of the current phase's loader before they start."""
        if self._stacks is not None:
            self._stacks.prepare(state.dataloader)

    def _begin_wait(self, what: str) -> None:
        if self._watchdog is not None:
            self._watchdog.begin(what)

    def _end_wait(self) -> None:
        if self._watchdog is not None:
            self._watchdog.end()

    def _begin_loop(self, loop: str, state: State) -> None:
        if self._watchdog is None:
            return
        self._state = weakref.ref(state)
        if self._stacks is None:  # kept across loops, because workers may persist
            self._stacks = WorkerStacks()
        if not self._loops:
            self._watchdog.start()
        self._loops.add(loop)

    def _end_loop(self, loop: str) -> None:
        self._loops.discard(loop)
        if self._watchdog is not None and not self._loops:
            self._watchdog.stop()

    # The report.

    def _report(self, what: str, frame: FrameType) -> str:
        state = None if self._state is None else self._state()
        when = "" if state is None else f" in batch {state.timestamp.batch.value} (epoch {state.timestamp.epoch.value})"
        begin = f"No batch of the {what} arrived within {self.timeout:g} s{when}."
        loader = next((o for o in _selfs(frame) if isinstance(getattr(o, "_workers", None), list)), None)
        if loader is None:
            stack = "".join(traceback.format_stack(frame)).rstrip()
            return f"{begin} Process {os.getpid()} loads the data itself; its stack is:\n{stack}"
        return f"{begin} {self._describe_workers(loader)}"

    def _describe_workers(self, loader: Any) -> str:
        """Describe the workers of a torch DataLoader, starting with the one that the loop waits for."""
        pids = {index: worker.pid for index, worker in enumerate(loader._workers) if worker.is_alive()}
        if not pids:
            return "No worker of the DataLoader is alive."
        awaited = _awaited_worker(loader)
        stacks = {} if self._stacks is None else self._stacks.dump(pids.values())
        chosen = [awaited] if awaited in pids else list(pids)
        names = " or ".join(f"worker {index} (pid {pids[index]})" for index in chosen)
        lines = [f"The loop waits for {names} of {plural(len(loader._workers), 'worker')}."]
        for index in sorted(pids, key=lambda index: index != awaited):
            doing = process_state(pids[index])
            lines.append(f"Worker {index} (pid {pids[index]}){f', state {doing}' if doing else ''}:")
            lines.append(stacks.get(pids[index]) or "  Stack unknown: the worker did not respond, or started earlier.")
        return "\n".join(lines)


def _as_seconds(timeout: float | str | Time) -> float:
    if not isinstance(timeout, str | Time):
        return float(positive("timeout", timeout))
    time = ensure_time(timeout, TimeUnit.SECOND, "timeout", [TimeUnit.SECOND])
    return float(positive("timeout", time.value))


def _selfs(frame: FrameType | None) -> Iterator[object]:
    """Yield the ``self`` of each method on a thread's stack, innermost first."""
    while frame is not None:
        instance = frame.f_locals.get("self")
        if instance is not None:
            yield instance
        frame = frame.f_back


def _awaited_worker(loader: Any) -> int | None:
    """Return the index of the worker that loads the next batch, if the loader keeps the order and knows it."""
    task = getattr(loader, "_task_info", {}).get(getattr(loader, "_rcvd_idx", None))
    return task[0] if task else None
