from __future__ import annotations

import threading
import time

import pytest

from composer.storage.uploads import UploadQueue


def queue_of(**arguments) -> UploadQueue:
    return UploadQueue(**{"initial_backoff": 0.001, "close_timeout": 10.0, **arguments})


def failing(times: int, error: Exception, done: list[str], name: str):
    left = [error] * times

    def action() -> None:
        if left:
            raise left.pop()
        done.append(name)

    return action


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_job_runs_after_its_dependencies(workers: int) -> None:
    done: list[str] = []
    gate = threading.Event()
    queue = queue_of(num_workers=workers)
    file = queue.submit("file", lambda: (gate.wait(10), done.append("file")))
    queue.submit("link", lambda: done.append("link"), after=[file])
    other = queue.submit("other", lambda: done.append("other"))
    if workers > 1:
        queue.wait(jobs=[other])
        assert done == ["other"]
    gate.set()
    queue.close()
    assert done.index("file") < done.index("link")
    assert sorted(done) == ["file", "link", "other"]
    assert queue.pending == []


def test_transient_failures_are_retried() -> None:
    done: list[str] = []
    queue = queue_of(num_attempts=3)
    queue.submit("a", failing(2, TimeoutError(), done, "a"))
    queue.close()
    assert done == ["a"]


@pytest.mark.parametrize(("error", "calls"), [(PermissionError("no"), 1), (ConnectionError("gone"), 3)])
def test_permanent_failure_is_reported_once_and_dependents_are_skipped(error, calls) -> None:
    done: list[str] = []
    tried: list[int] = []

    def action() -> None:
        tried.append(1)
        raise error

    queue = queue_of(num_attempts=3)
    file = queue.submit("upload of a", action)
    link = queue.submit("upload of its link", lambda: done.append("link"), after=[file])
    queue.submit("upload of b", lambda: done.append("b"), after_any=[file])
    with pytest.raises(type(error)) as caught:
        queue.wait()
    assert "The upload of a failed." in caught.value.__notes__
    assert any(note.startswith("The upload of its link failed too") for note in caught.value.__notes__)
    assert len(tried) == calls
    assert done == ["b"]
    assert file.error is error
    assert link.error is not None
    queue.close()  # the error was reported


def test_poll_reports_while_other_jobs_run() -> None:
    gate = threading.Event()
    queue = queue_of()
    queue.poll()
    bad = queue.submit("bad", failing(1, PermissionError(), [], ""))
    slow = queue.submit("slow", lambda: gate.wait(10))
    with pytest.raises(PermissionError):
        queue.wait(jobs=[bad])
    queue.poll()
    assert queue.pending == [slow]
    gate.set()
    queue.close()


def test_close_times_out_and_names_lost_uploads() -> None:
    gate = threading.Event()
    queue = queue_of(num_workers=1)
    queue.submit("upload of a", lambda: gate.wait(10))
    queue.submit("upload of b", lambda: None)
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=r"2 jobs had not finished: upload of a, upload of b\."):
        queue.close(timeout=0.05)
    assert time.monotonic() - begun < 5
    gate.set()


def test_close_does_not_wait_for_the_next_attempt() -> None:
    queue = queue_of(initial_backoff=100.0)
    queue.submit("a", failing(1, ConnectionError(), [], "a"))
    with pytest.raises(TimeoutError):
        queue.close(timeout=0.05)
    for thread in threading.enumerate():
        if thread.name.startswith("composer-upload"):
            thread.join(5)
            assert not thread.is_alive()


def test_queue_is_reusable_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    done: list[int] = []
    queue = queue_of()
    for number in range(2):
        queue.submit("a", lambda number=number: done.append(number))
        queue.close()
        assert set(threading.enumerate()) <= before
    assert done == [0, 1]


def test_jobs_of_multiple_threads_all_complete() -> None:
    lock, done, running, most = threading.Lock(), set[int](), [0], [0]

    def action(number: int) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.001)
        with lock:
            running[0] -= 1
            done.add(number)

    queue = queue_of(num_workers=3)

    def submit(start: int) -> None:
        for number in range(start, start + 20):
            queue.submit(str(number), lambda number=number: action(number))

    threads = [threading.Thread(target=submit, args=(start,)) for start in (0, 20, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.close()
    assert done == set(range(60))
    assert most[0] <= 3


@pytest.mark.parametrize(
    ("argument", "value"), [("num_workers", 0), ("num_attempts", 0), ("initial_backoff", -1), ("close_timeout", -1)]
)
def test_invalid_arguments(argument, value) -> None:
    with pytest.raises(ValueError, match="must be"):
        UploadQueue(**{argument: value})
