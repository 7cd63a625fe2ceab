"""DataloaderMonitor: its metrics, and LoaderHang: a hanging worker is named, with its stack, within the timeout."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader

import composer.callbacks._watchdog
from composer import Evaluator
from composer.callbacks import DataloaderMonitor
from composer.callbacks._worker_stacks import WorkerStacks, process_state
from tests.callbacks.cases import Case, Run, run_with
from tests.callbacks.hanging import WAYS, Items, sleep_forever
from tests.common import At, labeled_data

WAIT, SHARE = "dataloader/wait_seconds", "dataloader/wait_share"

CASE = Case(make=lambda folder: DataloaderMonitor(timeout=60), logs=(WAIT, SHARE))

needs_signals = pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="without POSIX signals")


@pytest.fixture(autouse=True)
def _workers_end_quickly(monkeypatch) -> None:
    """How long a dropped loader waits for its workers before it kills them, in seconds."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)


@pytest.fixture(autouse=True)
def _no_workers_of_others(_workers_end_quickly) -> Iterator[None]:
    """Loaders with hanging workers take seconds to end, which must not delay another test."""
    yield
    if multiprocessing.active_children():
        gc.collect()


def ends_with_a_timeout(run: Run, call: Any = None) -> tuple[str, float]:
    """Return the message of the error, and the seconds until it was raised."""
    start = time.perf_counter()
    with pytest.raises(TimeoutError) as caught:
        (call or run.trainer.fit)()
    seconds = time.perf_counter() - start
    run.trainer.close()
    return str(caught.value), seconds


@needs_signals
@pytest.mark.parametrize("how", WAYS)
def test_LoaderHang_a_worker_that_hangs_is_named_with_its_stack(how) -> None:
    loader = DataLoader(Items(hangs_at=6, how=how), batch_size=2, num_workers=2)
    run = run_with(DataloaderMonitor(1.5), data=loader)
    before = set(multiprocessing.active_children())
    message, seconds = ends_with_a_timeout(run)
    gc.collect()  # the error and the frames that it came through hold each other
    assert set(multiprocessing.active_children()) <= before, "workers are ended, also those that hang"
    assert "No batch of the training data arrived within 1.5 s in batch 3 (epoch 0)" in message
    assert "The loop waits for worker 1 (pid " in message
    assert "of 2 workers" in message
    stack = message.partition("\nWorker 1 (pid ")[2].partition("\nWorker 0 (pid ")[0]
    assert f"in {how}" in stack
    assert "in __getitem__" in stack
    assert run.trainer.state.timestamp.batch == 3
    assert seconds < 10


@needs_signals
def test_LoaderHang_in_the_process_itself() -> None:
    run = run_with(DataloaderMonitor(0.5), data=DataLoader(Items(hangs_at=4), batch_size=2))
    message, seconds = ends_with_a_timeout(run)
    assert "the training data arrived within 0.5 s in batch 2 (epoch 0)" in message
    assert "in sleep_forever" in message
    assert seconds < 5


@needs_signals
def test_LoaderHang_of_an_evaluation() -> None:
    loader = DataLoader(Items(hangs_at=4), batch_size=2, num_workers=1)
    evaluator = Evaluator(label="dev", dataloader=loader)
    message, _ = ends_with_a_timeout(run_with(DataloaderMonitor(1.5), eval_dataloader=evaluator))
    assert "No batch of the evaluation data 'dev' arrived" in message
    assert "in sleep_forever" in message


@needs_signals
@pytest.mark.parametrize("loop", ["eval", "predict"])
def test_LoaderHang_outside_of_training(loop) -> None:
    loader = DataLoader(Items(hangs_at=2), batch_size=2, num_workers=1)
    run = run_with(DataloaderMonitor(1.0))
    message, _ = ends_with_a_timeout(run, lambda: getattr(run.trainer, loop)(loader))
    assert "waits for worker 0" in message
    assert "in sleep_forever" in message


@needs_signals
def test_LoaderHang_of_a_restarting_worker() -> None:
    """With persistent workers the loop waits while it restarts them for the next epoch."""

    class Slow(Items):
        def __getitem__(self, index: int) -> Any:
            if index == 0 and getattr(self, "begun", False):
                sleep_forever()
            self.begun = True
            return super().__getitem__(index)

    loader = DataLoader(Slow(length=2), batch_size=1, num_workers=1, persistent_workers=True)
    message, _ = ends_with_a_timeout(run_with(DataloaderMonitor(1.5), data=loader, max_duration="2ep"))
    assert "in batch 2 (epoch 1)" in message
    assert "in sleep_forever" in message


@needs_signals
def test_LoaderHang_after_resuming_in_the_middle_of_an_epoch() -> None:
    loader = DataLoader(Items(hangs_at=6), batch_size=2, num_workers=1)
    run = run_with(DataloaderMonitor(1.5), data=loader, max_duration="2ba")
    run.trainer.fit()
    message, _ = ends_with_a_timeout(run, lambda: run.trainer.fit(duration="2ba"))
    assert "in batch 3 (epoch 0)" in message
    assert "in sleep_forever" in message


@needs_signals
def test_a_report_that_fails_does_not_hide_the_hang(monkeypatch) -> None:
    monkeypatch.setattr(DataloaderMonitor, "_describe_workers", lambda self, loader: 1 / 0)
    loader = DataLoader(Items(hangs_at=2), batch_size=2, num_workers=1)
    message, _ = ends_with_a_timeout(run_with(DataloaderMonitor(0.5), data=loader))
    assert "The training data did not arrive within 0.5 s. The report failed: ZeroDivisionError" in message


@needs_signals
def test_a_worker_that_was_running_before_is_named_without_its_stack() -> None:
    loader = DataLoader(Items(hangs_at=4), batch_size=2, num_workers=1, persistent_workers=True)
    next(iter(loader))
    message, _ = ends_with_a_timeout(run_with(DataloaderMonitor(1.0), data=list_of_one(loader)))
    assert "waits for worker 0" in message
    assert "Stack unknown" in message
    loader._iterator = None


def list_of_one(loader: Any) -> Any:
    """Hide a loader in a wrapper."""

    class Disguised:
        def __iter__(self):
            yield from loader

    return Disguised()


def test_a_slow_loader_is_not_a_hang_and_everything_is_restored() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    threads = set(threading.enumerate())

    def slow():
        for batch in labeled_data(4):
            time.sleep(0.4)
            yield batch

    class Slow:
        def __iter__(self):
            return slow()

    loader = DataLoader(Items(), batch_size=2, num_workers=1, worker_init_fn=abs)
    inside = At("eval_batch_start", lambda state: loader.worker_init_fn is abs)
    run = run_with(
        DataloaderMonitor(1.5), inside, data=Slow(), eval_dataloader=loader, eval_interval="99ep", max_duration="2ep"
    )
    run.trainer.fit()
    run.trainer.close()
    assert inside.found == [False] * 4
    assert loader.worker_init_fn is abs
    assert signal.getsignal(signal.SIGUSR2) == before
    assert set(threading.enumerate()) <= threads
    assert len(run.values(WAIT)) == 8


@needs_signals
def test_code_after_an_interrupted_wait_is_not_overdue() -> None:
    """After a KeyboardInterrupt during a wait for data, no timeout is raised later."""

    class Interrupted:
        def __iter__(self):
            yield labeled_data(1)[0]
            raise KeyboardInterrupt

    run = run_with(DataloaderMonitor(0.3), data=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        run.trainer.fit()
    time.sleep(0.8)  # another wait, of which nothing is known
    run.trainer.close()


@needs_signals
def test_other_signals_are_forwarded() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: got.append(number))
    try:
        at = At("batch_start", lambda state: signal.raise_signal(signal.SIGUSR2))
        run_with(DataloaderMonitor(60), at).trainer.fit()
        signal.raise_signal(signal.SIGUSR2)
        assert len(got) == 5
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_raises_in_a_thread_other_than_the_main_one(caplog) -> None:
    found: list[BaseException] = []

    class Busy:
        """Waits in Python code, where an asynchronous exception can be raised."""

        def __iter__(self):
            yield labeled_data(1)[0]
            while True:
                time.sleep(0.01)

    def train() -> None:
        run = run_with(DataloaderMonitor(0.3), data=Busy(), max_duration="4ba")
        try:
            run.trainer.fit()
        except TimeoutError as error:
            found.append(error)
        run.trainer.close()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(20)
    assert len(found) == 1
    assert "No batch of the training data arrived within 0.3 s" in caplog.text


@needs_signals
def test_reports_where_no_exception_can_be_raised(monkeypatch, caplog) -> None:
    monkeypatch.setattr(composer.callbacks._watchdog, "_GRACE", 0.2)

    class Deaf:
        """Handles no signals while it waits."""

        def __iter__(self):
            yield labeled_data(1)[0]
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
            try:
                time.sleep(1.0)
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})

    message, _ = ends_with_a_timeout(run_with(DataloaderMonitor(0.3), data=Deaf()))
    assert message in caplog.text


# ---------------------------------------------------------------------------------------------------- metrics


class Clock:
    """Stands in for the module ``time``; advances on request."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def passes(self, seconds: float) -> Any:
        """Return a function that takes this long."""

        def take(*arguments: Any) -> None:
            self.now += seconds

        return take


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("composer.callbacks.dataloader_monitor.time", clock)
    return clock


def test_wait_seconds_and_fraction_of_the_step(clock) -> None:
    """In step i, loading takes i + 1 seconds and computing 4; other handlers between steps do not count."""

    class Slow:
        def __iter__(self):
            for number, batch in enumerate(labeled_data(6)):
                clock.passes(number + 1)()
                yield batch

    watching = [At("batch_start", clock.passes(4)), At("batch_checkpoint", clock.passes(50))]
    run = run_with(DataloaderMonitor(window_size=3), *watching, data=Slow())
    run.trainer.fit()
    assert run.values(WAIT) == pytest.approx([1, 2, 3, 4, 5, 6])
    windows = [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]
    assert run.values(SHARE) == pytest.approx([sum(w) / (sum(w) + 4 * len(w)) for w in windows])


def test_other_handlers_do_not_count_as_waiting(clock) -> None:
    others = At("before_dataloader", clock.passes(10)), At("after_dataloader", clock.passes(10))
    for watching in ([*others, DataloaderMonitor()], [DataloaderMonitor(), *others]):
        run = run_with(*watching)
        run.trainer.fit()
        run.trainer.close()
        assert run.values(WAIT) == [0.0] * 4
        assert run.values(SHARE) == [0.0] * 4


def test_the_window_is_reset_with_each_fit(clock) -> None:
    monitor = DataloaderMonitor()
    for computing in (1, 7):
        run = run_with(monitor, At("batch_start", clock.passes(computing)), At("after_dataloader", clock.passes(0)))
        run.trainer.fit()
        assert monitor._all_steps == pytest.approx(4 * computing)
        run.trainer.close()


@pytest.mark.parametrize(("timeout", "seconds"), [(5, 5.0), (0.5, 0.5), ("2m", 120.0), (None, None)])
def test_timeouts(timeout, seconds) -> None:
    assert DataloaderMonitor(timeout).timeout == seconds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timeout": 0}, "timeout must be greater than 0"),
        ({"timeout": "10ba"}, "wall-clock time"),
        ({"timeout": "soon"}, "timeout='soon'"),
        ({"window_size": 0}, "window_size"),
    ],
)
def test_refuses_invalid_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        DataloaderMonitor(**arguments)


def test_without_a_timeout_nothing_is_watched() -> None:
    for timeout in (None, 60):
        watched = At("batch_start", lambda state: any(t.name == "loader-watchdog" for t in threading.enumerate()))
        run = run_with(DataloaderMonitor(timeout), watched)
        run.trainer.fit()
        assert watched.found == [timeout is not None] * 4
        assert len(run.values(WAIT)) == 4


@needs_signals
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_stacks_of_workers(method) -> None:
    loader = DataLoader(Items(), num_workers=1, multiprocessing_context=method, worker_init_fn=abs)
    stacks = WorkerStacks()
    stacks.prepare(loader)
    iterator: Any = iter(loader)
    next(iterator)
    [pid] = [worker.pid for worker in iterator._workers]
    assert process_state(pid).startswith(("S", "R"))
    for _ in range(2):
        [(found_pid, stack)] = stacks.dump([pid]).items()
        assert found_pid == pid
        assert stack.count("in _worker_loop") == 1
    [faults] = stacks._folder.glob("*.faults")
    assert faults.read_text() == "", "the handler of the signal may end a process whose frames change"
    stacks.close()
    assert loader.worker_init_fn is abs
    iterator._shutdown_workers()


def test_stacks_without_workers() -> None:
    stacks = WorkerStacks()
    for loader in (DataLoader(Items()), [1, 2], None):
        stacks.prepare(loader)
    assert stacks.dump([2**22 + 1]) == {}
    stacks.close()
