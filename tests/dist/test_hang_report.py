"""Hang reports name the missing ranks with their stacks; threads stand in for ranks."""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as torch_dist

from composer import dist
from composer.dist import _hang_watcher, hang_report
from composer.dist._hang_watcher import HangWatcher
from composer.dist.hang_report import InCollective, MissingRankError, start_hang_watcher
from tests.dist.waiting import LONG, wait_for

TIMED_OUT = RuntimeError("[gloo/tcp/buffer.cc] Timed out waiting 300000ms for recv operation to complete")
CLOSED = RuntimeError("[gloo/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hang_watcher, "_RESPONSE_TIMEOUT", LONG)
    monkeypatch.setattr(_hang_watcher, "_GRACE_PERIOD", 0.1)


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of size 1, during which the watcher threads run."""
    dist.initialize_dist("cpu")
    yield
    torch_dist.destroy_process_group()


class ThreadRanks:
    """Hang watchers of thread_ranks ranks in this process; each rank trains in a thread."""

    def __init__(self, size: int, timeout: float = 0.5) -> None:
        self.store = torch_dist.HashStore()
        self.size, self.timeout = size, timeout
        self.calls: dict[int, HangWatcher] = {}
        self.results: dict[int, Any] = {}
        self.threads: list[threading.Thread] = []
        self.release = threading.Event()

    def rank(self, rank: int, body: Callable[[HangWatcher], Any], answers: bool = True) -> None:
        ready = threading.Event()

        def train() -> None:
            call = self.calls[rank] = HangWatcher(self.store, rank, self.size, self.timeout)
            if answers:
                call.start()
            ready.set()
            self.results[rank] = body(call)

        self.threads.append(threading.Thread(target=train))
        self.threads[-1].start()
        assert ready.wait(LONG)

    def is_elsewhere(self, call: HangWatcher) -> None:
        call.step = 7
        self.release.wait(LONG)

    def end(self) -> None:
        self.release.set()
        for thread in self.threads:
            thread.join()
        for call in self.calls.values():
            call._stopping.set()
            if call._thread.ident is not None:
                call.stop()


@pytest.fixture
def thread_ranks() -> Iterator[Callable[..., ThreadRanks]]:
    made: list[ThreadRanks] = []

    def make(*args: Any) -> ThreadRanks:
        made.append(ThreadRanks(*args))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_a_rank_that_hangs_is_named_with_its_stack_on_all_ranks_that_timed_out(
    patient, group, thread_ranks, capfd
) -> None:
    ranks = thread_ranks(3)
    ranks.rank(1, ranks.is_elsewhere)
    ranks.rank(0, lambda call: call.request_report(TIMED_OUT))
    wait_for(lambda: ranks.store.check(["composer/hang-report/error/0"]))
    ranks.rank(2, lambda call: call.request_report(CLOSED))
    wait_for(lambda: {0, 2} <= set(ranks.results))
    assert ranks.results[0] == ranks.results[2]
    missing, text = ranks.results[0]
    assert missing == [1]
    assert text.startswith("Rank 1 on ")
    assert " did not join the collective. Stack in step 7:\n" in text
    assert "in is_elsewhere" in text
    ranks.end()
    stderr = capfd.readouterr().err
    assert stderr.count("Stack traces of rank 1") == 1
    assert "in is_elsewhere" in stderr
    assert "Stack traces of rank 0" not in stderr


def test_a_rank_that_failed_is_the_cause(patient, thread_ranks) -> None:
    ranks, error = thread_ranks(3, LONG), ValueError("the data are\nbad")
    error.add_note("Raised by the loader.")
    ranks.rank(1, lambda call: call.post_error(error))
    ranks.rank(2, lambda call: call.post_error(CLOSED, waited=True))
    ranks.rank(0, lambda call: call.request_report(CLOSED))
    wait_for(lambda: 0 in ranks.results)
    missing, text = ranks.results[0]
    assert missing == [1]
    assert text == "Rank 1 failed: ValueError: the data are\nbad\nRaised by the loader."


def test_a_rank_that_does_not_respond_has_exited(monkeypatch, thread_ranks) -> None:
    monkeypatch.setattr(_hang_watcher, "_RESPONSE_TIMEOUT", 0.3)
    ranks = thread_ranks(4)
    ranks.rank(1, lambda call: call.post_error(TIMED_OUT, waited=True), answers=False)
    ranks.rank(0, lambda call: call.request_report(TIMED_OUT), answers=False)
    wait_for(lambda: 0 in ranks.results)
    missing, text = ranks.results[0]
    assert missing == [2, 3]
    assert text == (
        "Ranks 2, 3 did not join the collective and did not respond within 0.3 s: exited, stopped, or holding the GIL."
    )


def test_the_report_is_made_by_another_rank_if_the_first_requester_exits(monkeypatch, thread_ranks) -> None:
    monkeypatch.setattr(_hang_watcher, "_RESPONSE_TIMEOUT", 0.3)
    monkeypatch.setattr(_hang_watcher, "_GRACE_PERIOD", 0.1)
    ranks = thread_ranks(3)
    # Rank 1 exits after it has asked for responses, as a launcher lets it do because rank 2 was killed.
    ranks.rank(
        1, lambda call: [call.post_error(CLOSED, waited=True), call._store.add("requesters/0", 1)], answers=False
    )
    wait_for(lambda: 1 in ranks.results)
    ranks.rank(0, lambda call: call.request_report(CLOSED), answers=False)
    wait_for(lambda: 0 in ranks.results)
    missing, text = ranks.results[0]
    assert missing == [2]
    assert text.startswith("Rank 2 did not join the collective and did not respond within 0.3 s")


def test_ranks_outside_of_the_group_are_not_waited_for(patient, thread_ranks) -> None:
    ranks = thread_ranks(4, LONG)
    ranks.rank(3, lambda call: call.post_error(TIMED_OUT, waited=True))
    ranks.rank(1, lambda call: call.request_report(TIMED_OUT, [1, 3]))
    wait_for(lambda: 1 in ranks.results)
    missing, text = ranks.results[1]
    assert missing == []
    assert "All ranks timed out waiting for each other.\nRank 1: RuntimeError: [gloo" in text


def test_a_rank_that_also_waits_is_not_missing(patient, group, thread_ranks) -> None:
    ranks = thread_ranks(3)

    def waits(call: HangWatcher) -> None:
        call.waits = True
        ranks.release.wait(LONG)

    ranks.rank(1, waits)
    ranks.rank(2, ranks.is_elsewhere)
    ranks.rank(0, lambda call: call.request_report(TIMED_OUT))
    wait_for(lambda: 0 in ranks.results)
    assert ranks.results[0][0] == [2]


def test_an_unreachable_store_is_reported(monkeypatch, thread_ranks) -> None:
    def gone(*args: Any, **more: Any) -> None:
        raise torch_dist.DistNetworkError("Broken pipe")

    ranks = thread_ranks(2)
    ranks.rank(1, lambda call: (setattr(call, "post_error", gone), call.request_report(CLOSED))[1], answers=False)
    wait_for(lambda: 1 in ranks.results)
    missing, text = ranks.results[1]
    assert missing == [0]
    assert "cannot be reached: that process has exited (see its output)" in text


def test_a_stalled_run_is_reported_once_before_anything_fails(patient, group, thread_ranks, caplog) -> None:
    caplog.set_level(logging.WARNING, "composer.dist")
    ranks = thread_ranks(2)
    ranks.rank(0, ranks.is_elsewhere)
    ranks.rank(1, ranks.is_elsewhere)
    wait_for(lambda: bool(caplog.records) and ranks.store.check(["composer/hang-report/stack/0/1"]))
    ranks.end()
    assert len(caplog.records) == 1
    report = caplog.records[0].getMessage()
    assert "collectives time out after 0.5 s" in report
    assert "Ranks 0, 1. Stack in step 7:" in report
    assert "in is_elsewhere" in report


def test_the_report_names_the_files_of_the_flight_recorder(monkeypatch) -> None:
    monkeypatch.setattr(_hang_watcher.torch_dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    assert _hang_watcher._flight_recorder() == []
    for name, value in (
        ("TORCH_FR_DUMP_TEMP_FILE", "/logs/trace_"),
        ("TORCH_FR_BUFFER_SIZE", "2000"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1"),
    ):
        assert _hang_watcher._flight_recorder() == []
        monkeypatch.setenv(name, value)
    assert "/logs/trace_RANK" in _hang_watcher._flight_recorder()[0]
    monkeypatch.setattr(_hang_watcher.torch_dist, "get_backend_config", lambda: "cpu:gloo")
    assert _hang_watcher._flight_recorder() == []


def test_a_rank_with_progress_does_not_respond_or_report(patient, caplog) -> None:
    store = torch_dist.HashStore()
    call = HangWatcher(store, 0, 2, timeout=10.0)
    key = "composer/hang-report/stack/0/0"
    call.step = 3
    store.set("composer/hang-report/request/0", "")
    for now in (0, 4.9, 9.8, 14.7):
        call.progress_count += 1
        call._poll(now)
        call._poll(now + 4.8)
        assert not store.check([key])
    call._poll(14.7 + 5)
    assert store.check([key])
    call._poll(14.7 + 30)  # it has responded; the requester logs the report
    assert not caplog.records


def test_without_a_recorded_step_nothing_is_reported(patient, caplog) -> None:
    call = HangWatcher(torch_dist.HashStore(), 0, 1, timeout=10.0)
    call._poll(0)
    call._poll(100)
    assert not caplog.records
    call.step = 3
    call._poll(101)
    call._poll(102)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == ["No step has completed in 101 s"]
    call.progress_count += 1
    call._poll(103)
    call._poll(110.9)
    assert len(caplog.records) == 1
    call._poll(111)
    assert len(caplog.records) == 2


def test_a_posted_error_is_withdrawn_when_training_continues(thread_ranks) -> None:
    ranks = thread_ranks(2)
    ranks.rank(1, lambda call: call.post_error(ValueError("caught")), answers=False)
    wait_for(lambda: 1 in ranks.results)
    assert b"caught" in ranks.store.get("composer/hang-report/error/1")
    ranks.calls[1].begin()
    assert ranks.store.get("composer/hang-report/error/1") == b""


def test_a_single_process_requests_nothing(monkeypatch) -> None:
    before = threading.active_count()
    start_hang_watcher(1.0)
    dist.note_step(3)
    assert threading.active_count() == before
    for scope in (dist.name_missing_ranks(), InCollective()):
        with pytest.raises(RuntimeError, match="gloo") as caught, scope:
            raise TIMED_OUT
        assert caught.value is TIMED_OUT
        assert not hasattr(TIMED_OUT, "__notes__")


class Fake:
    """A hang watcher with a fixed report."""

    def __init__(self, missing: list[int]) -> None:
        self.missing, self.requests, self.posted = missing, 0, []
        self.waits, self.progress_count, self.step = False, 0, None

    def begin(self) -> None:
        self.posted.clear()

    def mark(self, *, waits: bool) -> None:
        self.waits = waits
        self.progress_count += 1

    def post_error(self, error: BaseException) -> None:
        self.posted.append(error)

    def request_report(self, error: BaseException, ranks: Any = None) -> tuple[list[int], str]:
        self.requests += 1
        return self.missing, "what is known"


@pytest.mark.parametrize("scope", [dist.name_missing_ranks, InCollective])
@pytest.mark.parametrize("error", [TIMED_OUT, torch_dist.DistBackendError("NCCL error"), CLOSED])
def test_communication_errors_name_the_missing_ranks(monkeypatch, group, scope, error) -> None:
    monkeypatch.setattr(hang_report, "_current", fake := Fake([3]))
    expected = pytest.raises(MissingRankError, match="what is known\nThe collective failed with: ")
    with expected as caught, dist.name_missing_ranks(), scope():
        raise error
    assert caught.value.ranks == (3,)
    assert caught.value.__cause__ is error
    assert fake.requests == 1


def test_if_all_ranks_timed_out_the_error_stays_with_one_report(monkeypatch, group) -> None:
    monkeypatch.setattr(hang_report, "_current", fake := Fake([]))
    error = RuntimeError("gloo timed out")
    with pytest.raises(RuntimeError, match="gloo timed out") as caught, dist.name_missing_ranks(), InCollective():
        raise error
    assert caught.value is error
    assert error.__notes__ == ["Hang report: what is known"]
    assert (fake.requests, fake.posted) == (1, [])


def test_other_errors_are_posted_to_the_other_ranks(monkeypatch, group) -> None:
    monkeypatch.setattr(hang_report, "_current", fake := Fake([3]))
    for error in (RuntimeError("size mismatch"), ValueError("gloo is in the text, and it is no such error")):
        with contextlib.suppress(RuntimeError, ValueError), dist.name_missing_ranks():
            dist.note_step(4)
            assert fake.step == 4
            raise error
        assert fake.posted == [error]
        assert fake.step is None
    assert fake.requests == 0


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(MissingRankError("Rank 1 did not join the collective.", [1])))
    assert (str(error), error.ranks) == ("Rank 1 did not join the collective.", (1,))


def test_collectives_of_other_threads_are_not_recorded(monkeypatch) -> None:
    """For example, of a thread that writes a checkpoint."""
    call = HangWatcher(torch_dist.HashStore(), 0, 2, 5.0)
    monkeypatch.setattr(hang_report, "_current", call)
    seen = []

    def write() -> None:
        with InCollective():
            seen.append((call.waits, call.progress_count))
        seen.append((call.waits, call.progress_count))

    with InCollective():
        assert (call.waits, call.progress_count) == (True, 1)
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        assert seen == [(True, 1)] * 2
    assert (call.waits, call.progress_count) == (False, 2)
    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert seen[2:] == [(False, 2)] * 2
