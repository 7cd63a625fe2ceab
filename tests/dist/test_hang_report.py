"""Who did not come, and where it is: with threads in place of processes, and with two processes."""

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
from composer.dist.hang_report import AbsentRankError, Together, start_hang_watcher
from tests.dist.waiting import LONG, wait_for

TIMED_OUT = RuntimeError("[gloo/tcp/buffer.cc] Timed out waiting 300000ms for recv operation to complete")
CLOSED = RuntimeError("[gloo/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hang_watcher, "_PATIENCE", LONG)
    monkeypatch.setattr(_hang_watcher, "_SETTLING", 0.1)


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of one, while which the threads of roll calls run."""
    dist.initialize_dist("cpu")
    yield
    torch_dist.destroy_process_group()


class Several:
    """Roll calls of several ranks in this process; a rank's training is a thread."""

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
def several() -> Iterator[Callable[..., Several]]:
    made: list[Several] = []

    def make(*args: Any) -> Several:
        made.append(Several(*args))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_one_that_hangs_is_named_with_its_stack_to_all_that_gave_up(patient, group, several, capfd) -> None:
    ranks = several(3)
    ranks.rank(1, ranks.is_elsewhere)
    ranks.rank(0, lambda call: call.explain(TIMED_OUT))
    wait_for(lambda: ranks.store.check(["composer/roll-call/note/0"]))
    ranks.rank(2, lambda call: call.explain(CLOSED))
    wait_for(lambda: {0, 2} <= set(ranks.results))
    assert ranks.results[0] == ranks.results[2]
    missing, text = ranks.results[0]
    assert missing == [1]
    assert text.startswith("Rank 1 on ")
    assert " did not come. Stack in step 7:\n" in text
    assert "in is_elsewhere" in text
    ranks.end()
    told = capfd.readouterr().err
    assert told.count("rank 1 is here") == 1
    assert "in is_elsewhere" in told
    assert "rank 0 is here" not in told


def test_one_that_failed_is_the_reason(patient, several) -> None:
    ranks, error = several(3, LONG), ValueError("the data are\nbad")
    error.add_note("Raised by the loader.")
    ranks.rank(1, lambda call: call.tell(error))
    ranks.rank(2, lambda call: call.tell(CLOSED, waited=True))
    ranks.rank(0, lambda call: call.explain(CLOSED))
    wait_for(lambda: 0 in ranks.results)
    missing, text = ranks.results[0]
    assert missing == [1]
    assert text == "Rank 1 failed: ValueError: the data are\nbad\nRaised by the loader."


def test_one_without_an_answer_has_ended(monkeypatch, several) -> None:
    monkeypatch.setattr(_hang_watcher, "_PATIENCE", 0.3)
    ranks = several(4)
    ranks.rank(1, lambda call: call.tell(TIMED_OUT, waited=True), answers=False)
    ranks.rank(0, lambda call: call.explain(TIMED_OUT), answers=False)
    wait_for(lambda: 0 in ranks.results)
    missing, text = ranks.results[0]
    assert missing == [2, 3]
    assert text == "Ranks 2, 3 did not come and gave no answer in 0.3 s: ended, stopped or busy."


def test_ranks_outside_of_the_group_are_not_waited_for(patient, several) -> None:
    ranks = several(4, LONG)
    ranks.rank(3, lambda call: call.tell(TIMED_OUT, waited=True))
    ranks.rank(1, lambda call: call.explain(TIMED_OUT, [1, 3]))
    wait_for(lambda: 1 in ranks.results)
    missing, text = ranks.results[1]
    assert missing == []
    assert "All processes gave up waiting for each other.\nRank 1: RuntimeError: [gloo" in text


def test_one_that_waits_too_has_come(patient, group, several) -> None:
    ranks = several(3)

    def waits(call: HangWatcher) -> None:
        call.waits = True
        ranks.release.wait(LONG)

    ranks.rank(1, waits)
    ranks.rank(2, ranks.is_elsewhere)
    ranks.rank(0, lambda call: call.explain(TIMED_OUT))
    wait_for(lambda: 0 in ranks.results)
    assert ranks.results[0][0] == [2]


def test_a_store_that_is_gone_is_said_to_be(monkeypatch, several) -> None:
    def gone(*args: Any, **more: Any) -> None:
        raise torch_dist.DistNetworkError("Broken pipe")

    ranks = several(2)
    ranks.rank(1, lambda call: (setattr(call, "tell", gone), call.explain(CLOSED))[1], answers=False)
    wait_for(lambda: 1 in ranks.results)
    missing, text = ranks.results[1]
    assert missing == [0]
    assert "which rank 0 or the launcher on its node keeps: it has ended" in text


def test_a_stalled_run_is_reported_once_before_anything_fails(patient, group, several, caplog) -> None:
    caplog.set_level(logging.WARNING, "composer.dist")
    ranks = several(2)
    ranks.rank(0, ranks.is_elsewhere)
    ranks.rank(1, ranks.is_elsewhere)
    wait_for(lambda: bool(caplog.records) and ranks.store.check(["composer/roll-call/place/0/1"]))
    ranks.end()
    assert len(caplog.records) == 1
    report = caplog.records[0].getMessage()
    assert "processes that wait for another fail after 0.5 s" in report
    assert "Ranks 0, 1. Stack in step 7:" in report
    assert "in is_elsewhere" in report


def test_the_report_says_where_the_flight_recorder_writes(monkeypatch) -> None:
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


def test_who_makes_progress_is_not_asked_and_reports_nothing(patient, caplog) -> None:
    store = torch_dist.HashStore()
    call = HangWatcher(store, 0, 2, timeout=10.0)
    place = "composer/roll-call/place/0/0"
    call.step = 3
    store.set("composer/roll-call/roll/0", "")
    for now in (0, 4.9, 9.8, 14.7):
        call.beats += 1
        call._look(now)
        call._look(now + 4.8)
        assert not store.check([place])
    call._look(14.7 + 5)
    assert store.check([place])
    call._look(14.7 + 30)  # it has answered: who asked says what is to be said
    assert not caplog.records


def test_where_no_step_is_noted_nothing_is_reported(patient, caplog) -> None:
    call = HangWatcher(torch_dist.HashStore(), 0, 1, timeout=10.0)
    call._look(0)
    call._look(100)
    assert not caplog.records
    call.step = 3
    call._look(101)
    call._look(102)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == ["No step ended in 101 s"]
    call.beats += 1
    call._look(103)
    call._look(110.9)
    assert len(caplog.records) == 1
    call._look(111)
    assert len(caplog.records) == 2


def test_what_was_told_is_forgotten_when_training_goes_on(several) -> None:
    ranks = several(2)
    ranks.rank(1, lambda call: call.tell(ValueError("caught")), answers=False)
    wait_for(lambda: 1 in ranks.results)
    assert b"caught" in ranks.store.get("composer/roll-call/note/1")
    ranks.calls[1].begin()
    assert ranks.store.get("composer/roll-call/note/1") == b""


def test_alone_nobody_is_asked(monkeypatch) -> None:
    before = threading.active_count()
    start_hang_watcher(1.0)
    dist.note_step(3)
    assert threading.active_count() == before
    for scope in (dist.name_absent_ranks(), Together()):
        with pytest.raises(RuntimeError, match="gloo") as caught, scope:
            raise TIMED_OUT
        assert caught.value is TIMED_OUT
        assert not hasattr(TIMED_OUT, "__notes__")


class Fake:
    """A roll call whose answer is known."""

    def __init__(self, missing: list[int]) -> None:
        self.missing, self.asked, self.told = missing, 0, []
        self.waits, self.beats, self.step = False, 0, None

    def begin(self) -> None:
        self.told.clear()

    def mark(self, *, waits: bool) -> None:
        self.waits = waits
        self.beats += 1

    def tell(self, error: BaseException) -> None:
        self.told.append(error)

    def explain(self, error: BaseException, ranks: Any = None) -> tuple[list[int], str]:
        self.asked += 1
        return self.missing, "what is known"


@pytest.mark.parametrize("scope", [dist.name_absent_ranks, Together])
@pytest.mark.parametrize("error", [TIMED_OUT, torch_dist.DistBackendError("NCCL error"), CLOSED])
def test_errors_of_communication_name_the_absent(monkeypatch, group, scope, error) -> None:
    monkeypatch.setattr(hang_report, "_current", fake := Fake([3]))
    expected = pytest.raises(AbsentRankError, match="what is known\nThe wait ended with: ")
    with expected as caught, dist.name_absent_ranks(), scope():
        raise error
    assert caught.value.ranks == (3,)
    assert caught.value.__cause__ is error
    assert fake.asked == 1


def test_where_all_gave_up_the_error_stays_and_is_asked_about_once(monkeypatch, group) -> None:
    monkeypatch.setattr(hang_report, "_current", fake := Fake([]))
    error = RuntimeError("gloo timed out")
    with pytest.raises(RuntimeError, match="gloo timed out") as caught, dist.name_absent_ranks(), Together():
        raise error
    assert caught.value is error
    assert error.__notes__ == ["Roll call: what is known"]
    assert (fake.asked, fake.told) == (1, [])


def test_other_errors_are_told_to_the_others(monkeypatch, group) -> None:
    monkeypatch.setattr(hang_report, "_current", fake := Fake([3]))
    for error in (RuntimeError("size mismatch"), ValueError("gloo is in the text, and it is no such error")):
        with contextlib.suppress(RuntimeError, ValueError), dist.name_absent_ranks():
            dist.note_step(4)
            assert fake.step == 4
            raise error
        assert fake.told == [error]
        assert fake.step is None
    assert fake.asked == 0


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(AbsentRankError("Rank 1 did not come.", [1])))
    assert (str(error), error.ranks) == ("Rank 1 did not come.", (1,))


def test_collectives_of_other_threads_say_nothing_of_the_training(monkeypatch) -> None:
    """As those of a thread that writes a checkpoint."""
    call = HangWatcher(torch_dist.HashStore(), 0, 2, 5.0)
    monkeypatch.setattr(hang_report, "_current", call)
    seen = []

    def write() -> None:
        with Together():
            seen.append((call.waits, call.beats))
        seen.append((call.waits, call.beats))

    with Together():
        assert (call.waits, call.beats) == (True, 1)
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        assert seen == [(True, 1)] * 2
    assert (call.waits, call.beats) == (False, 2)
    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert seen[2:] == [(False, 2)] * 2
