"""How long training waits for data, and an error instead of waiting for ever."""

from __future__ import annotations

import os
import time
import traceback
import weakref
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from composer._text import plural, positive
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
    """Logs how long each step waited for its batch, and ends a wait that takes longer than ``timeout``.

    Logs ``dataloader/wait_seconds``, the time from asking the loader for a batch until it was on its way to the device,
    and ``dataloader/wait_share``, the share of such waits in the time of the last ``window_size`` steps, evaluations
    left out. Both are seen from the host: on an accelerator, where the host runs ahead, they are an upper bound of what
    the device waits. A share near zero means that a faster loader would not help.

    Where no batch comes within ``timeout``, of training, evaluation or prediction, ``TimeoutError`` is raised in the
    loop. It names the worker process that the loop waits for, what the system says that it does, and its Python stack,
    also where it hangs in a system call or in native code; with ``num_workers=0`` the stack of the process itself.
    While a loop runs, a thread watches it. Workers that start then have a thread that tells their stack when it is
    asked, and register ``faulthandler`` on SIGUSR2 for when native code does not let that thread run (not on Windows);
    of workers that were running before the stack is not known.

    Args:
        timeout: The longest wait for a batch: seconds, or a time string such as "10m". It should exceed the time that
            workers take to start. None never raises.
        window_size: Number of steps that the share is computed over.

    Raises:
        ValueError: An argument is not positive, or the timeout is no time on the clock.
        TimeoutError: From the loop: no batch came in time.

    >>> DataloaderMonitor(timeout="2m").timeout
    120.0
    """

    def __init__(self, timeout: float | str | Time | None = 600.0, window_size: int = 100) -> None:
        self.timeout = None if timeout is None else _as_seconds(timeout)
        self.window_size = positive("window_size", window_size)
        self._steps: deque[tuple[float, float]] = deque()  # of the window: wait and whole, in seconds
        self._all_waits = self._all_steps = 0.0
        self._asked = self._waited = 0.0
        self._watchdog = None if self.timeout is None else Watchdog(self.timeout, self._report)
        self._stacks: WorkerStacks | None = None
        self._state: weakref.ref[State] | None = None
        self._loops: set[str] = set()

    def __wrap_handlers__(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        """Stand next to the loader: what others do at these events is no waiting for data."""
        mine = tuple(handler for handler in handlers if owner_of(handler) is self)
        others = tuple(handler for handler in handlers if owner_of(handler) is not self)
        if event in _WAIT_ENDS:
            return (*mine, *others)
        return (*others, *mine) if event in _WAIT_BEGINS else handlers

    # The loops.

    def fit_start(self, state: State, logger: Logger) -> None:
        """Begin to watch; in the middle of an epoch a batch is asked for next."""
        self._loops.clear()  # one that an exception has left
        self._steps.clear()
        self._all_waits = self._all_steps = 0.0
        self._open("fit", state)
        self._prepare(state)
        self._begin(_TRAINING)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Watch no longer."""
        self._shut("fit")

    def eval_standalone_start(self, state: State, logger: Logger) -> None:
        """Begin to watch."""
        self._open("eval", state)

    def eval_standalone_end(self, state: State, logger: Logger) -> None:
        """Watch no longer."""
        self._shut("eval")

    def predict_start(self, state: State, logger: Logger) -> None:
        """Begin to watch; the first batch is asked for."""
        self._open("predict", state)
        self._prepare(state)
        self._begin(_PREDICTION)

    def predict_end(self, state: State, logger: Logger) -> None:
        """Watch no longer."""
        self._shut("predict")

    def close(self, state: State, logger: Logger) -> None:
        """Watch no longer, also after an error."""
        self._loops.clear()
        self._shut("fit")
        if self._stacks is not None:
            self._stacks.close()
            self._stacks = None

    # The waits.

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Workers start, or are told to start over."""
        self._prepare(state)
        self._begin(_TRAINING)

    def before_dataloader(self, state: State, logger: Logger) -> None:
        """A batch is asked for."""
        self._asked = time.perf_counter()
        self._begin(_TRAINING)

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """It is here."""
        self._waited = time.perf_counter() - self._asked
        self._end()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Log the step's wait."""
        step = time.perf_counter() - self._asked
        self._steps.append((self._waited, step))
        self._all_waits += self._waited
        self._all_steps += step
        if len(self._steps) > self.window_size:
            waited, step = self._steps.popleft()
            self._all_waits -= waited
            self._all_steps -= step
        share = self._all_waits / self._all_steps
        logger.log_metrics({"dataloader/wait_seconds": self._waited, "dataloader/wait_share": share})

    def epoch_end(self, state: State, logger: Logger) -> None:
        """The last batch that was asked for did not exist."""
        self._end()

    def eval_start(self, state: State, logger: Logger) -> None:
        """The first batch is asked for."""
        self._prepare(state)
        self._begin(f"evaluation data {state.dataloader_label!r}")

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        """It is here."""
        self._end()

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """The next one is asked for, unless it was the last."""
        # After the last batch the metrics are computed, which may take any time.
        if state.eval_timestamp.batch.value != state.eval_phase.length:
            self._begin(f"evaluation data {state.dataloader_label!r}")

    def eval_end(self, state: State, logger: Logger) -> None:
        """The evaluation is over."""
        self._end()

    def predict_batch_start(self, state: State, logger: Logger) -> None:
        """A batch is here."""
        self._end()

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        """The next one is asked for."""
        self._begin(_PREDICTION)

    def _prepare(self, state: State) -> None:
        """Prepare the workers of the data of the active phase, before they start."""
        if self._stacks is not None:
            self._stacks.prepare(state.dataloader)

    def _begin(self, what: str) -> None:
        if self._watchdog is not None:
            self._watchdog.begin(what)

    def _end(self) -> None:
        if self._watchdog is not None:
            self._watchdog.end()

    def _open(self, loop: str, state: State) -> None:
        if self._watchdog is None:
            return
        self._state = weakref.ref(state)
        if self._stacks is None:  # kept from loop to loop, as workers may be
            self._stacks = WorkerStacks()
        if not self._loops:
            self._watchdog.start()
        self._loops.add(loop)

    def _shut(self, loop: str) -> None:
        self._loops.discard(loop)
        if self._watchdog is not None and not self._loops:
            self._watchdog.stop()

    # The report.

    def _report(self, what: str, frame: FrameType) -> str:
        state = None if self._state is None else self._state()
        when = "" if state is None else f" in batch {state.timestamp.batch.value} (epoch {state.timestamp.epoch.value})"
        begin = f"No batch of the {what} came within {self.timeout:g} s{when}."
        loader = next((o for o in _owners(frame) if isinstance(getattr(o, "_workers", None), list)), None)
        if loader is None:
            stack = "".join(traceback.format_stack(frame)).rstrip()
            return f"{begin} The data are loaded by process {os.getpid()} itself, whose stack is:\n{stack}"
        return f"{begin} {self._describe_workers(loader)}"

    def _describe_workers(self, loader: Any) -> str:
        """Say what the workers of a torch loader do; the one that the loop waits for first."""
        pids = {index: worker.pid for index, worker in enumerate(loader._workers) if worker.is_alive()}
        if not pids:
            return "No worker of the loader is alive."
        awaited = _awaited_worker(loader)
        stacks = {} if self._stacks is None else self._stacks.dump(pids.values())
        chosen = [awaited] if awaited in pids else list(pids)
        names = " or ".join(f"worker {index} (pid {pids[index]})" for index in chosen)
        lines = [f"The loop waits for {names} of {plural(len(loader._workers), 'worker')}."]
        for index in sorted(pids, key=lambda index: index != awaited):
            doing = process_state(pids[index])
            lines.append(f"Worker {index} (pid {pids[index]}){f', state {doing}' if doing else ''}:")
            lines.append(stacks.get(pids[index]) or "  Its stack is not known: it did not say, or started earlier.")
        return "\n".join(lines)


def _as_seconds(timeout: float | str | Time) -> float:
    if not isinstance(timeout, str | Time):
        return float(positive("timeout", timeout))
    time = ensure_time(timeout, TimeUnit.SECOND, "timeout")
    if time.unit is not TimeUnit.SECOND:
        raise ValueError(f"timeout must be time on the clock: seconds, or such as '10m'; got {timeout!r}.")
    return float(positive("timeout", time.value))


def _owners(frame: FrameType | None) -> Iterator[object]:
    """The objects whose methods a thread is in, innermost first."""
    while frame is not None:
        owner = frame.f_locals.get("self")
        if owner is not None:
            yield owner
        frame = frame.f_back


def _awaited_worker(loader: Any) -> int | None:
    """The worker whose batch comes next, where the loader keeps the order and knows."""
    task = getattr(loader, "_task_info", {}).get(getattr(loader, "_rcvd_idx", None))
    return task[0] if task else None
