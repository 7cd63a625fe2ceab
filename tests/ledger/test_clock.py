"""The clock of a ledger, with simulated time."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.ledger import Category, LedgerClock, clock, timed_as
from tests.common import trainer_of

CALLS = (Category.START_UP, Category.EVALUATION, Category.OTHER)
PARTS = (Category.SAVING, Category.EVALUATION, Category.LOGGING)


class Now:
    """Simulated time, and compilation."""

    def __init__(self) -> None:
        self.time, self.readings, self.compiled = 100.0, 0, 0.0

    def __call__(self) -> float:
        self.readings += 1
        return self.time


@pytest.fixture
def now(monkeypatch) -> Now:
    return simulate(monkeypatch)


def simulate(monkeypatch) -> Now:
    found = Now()
    monkeypatch.setattr(clock, "perf_counter", found)
    monkeypatch.setattr(clock, "compile_seconds", lambda: found.compiled)
    monkeypatch.setattr(clock, "claim_start", lambda: None)
    return found


def spent(ledger_clock: LedgerClock) -> dict[str, float]:
    return {category.value: seconds for category, seconds in ledger_clock.seconds().items() if seconds}


def test_steps_and_waiting(now) -> None:
    ledger_clock = LedgerClock()
    now.time += 5
    with ledger_clock.call(Category.START_UP):
        now.time += 1
        for _ in range(3):
            ledger_clock.wait()
            now.time += 2
            ledger_clock.train()
            now.time += 3
        ledger_clock.wait()
        now.time += 0.5
        ledger_clock.end_epoch()
        with ledger_clock.during(Category.SAVING):
            now.time += 4
        now.time += 0.25
    assert spent(ledger_clock) == {"start_up": 6, "data": 6.5, "training": 9.25, "saving": 4}


def test_a_step_takes_two_readings(now) -> None:
    ledger_clock = LedgerClock()
    with ledger_clock.call(Category.START_UP):
        before = now.readings
        for _ in range(10):
            ledger_clock.wait()
            ledger_clock.train()
        assert now.readings - before == 20


def test_time_after_the_last_call_does_not_count(now) -> None:
    ledger_clock = LedgerClock()
    with ledger_clock.call(Category.EVALUATION):
        now.time += 1
    now.time += 1000
    assert spent(ledger_clock) == {"evaluation": 1}
    assert spent(ledger_clock) == {"evaluation": 1}
    with ledger_clock.call(Category.EVALUATION):
        now.time += 2
    assert spent(ledger_clock) == {"evaluation": 3, "other": 1000}


def test_a_save_between_calls_does_not_begin_a_start_up_again(now) -> None:
    ledger_clock = LedgerClock()
    with ledger_clock.call(Category.EVALUATION):
        now.time += 1
    with ledger_clock.during(Category.SAVING):
        now.time += 2
    now.time += 50
    assert spent(ledger_clock) == {"evaluation": 1, "saving": 2}


def test_calls_within_calls(now) -> None:
    ledger_clock = LedgerClock()
    with ledger_clock.call(Category.START_UP):
        ledger_clock.wait()
        ledger_clock.train()
        now.time += 1
        with ledger_clock.call(Category.EVALUATION):
            now.time += 2
        now.time += 4
    assert spent(ledger_clock) == {"training": 5, "evaluation": 2}


def test_an_exception_leaves_no_category_behind(now) -> None:
    ledger_clock = LedgerClock()
    with pytest.raises(ZeroDivisionError), ledger_clock.call(Category.START_UP):
        ledger_clock.wait()
        now.time += 3
        raise ZeroDivisionError
    now.time += 10
    assert spent(ledger_clock) == {"data": 3}


def test_repeated_steps(now) -> None:
    ledger_clock = LedgerClock()
    with ledger_clock.call(Category.START_UP):
        ledger_clock.repeat(2)
        for _ in range(5):
            ledger_clock.wait()
            ledger_clock.train()
            now.time += 1
    assert spent(ledger_clock) == {"repeated": 2, "training": 3}


@pytest.mark.parametrize("repeats", [0, 1])
def test_compilation_is_taken_from_the_step(now, repeats) -> None:
    ledger_clock = LedgerClock()
    with ledger_clock.call(Category.START_UP):
        ledger_clock.repeat(repeats)
        ledger_clock.wait()
        ledger_clock.train()
        now.time, now.compiled = now.time + 10, now.compiled + 8
        ledger_clock.wait()
        now.time += 1
        ledger_clock.end_epoch()
    assert spent(ledger_clock) == {"repeated" if repeats else "training": 2, "compiling": 8, "data": 1}


def test_compilation_in_another_thread_does_not_count_twice(now) -> None:
    ledger_clock = LedgerClock()
    with ledger_clock.call(Category.EVALUATION):
        now.time, now.compiled = now.time + 1, now.compiled + 50
    assert spent(ledger_clock) == {"compiling": 1}


def test_writes_once_an_interval_and_at_the_end_of_calls(now) -> None:
    ledger_clock, written = LedgerClock(), []
    with ledger_clock.call(Category.START_UP):
        ledger_clock.write_by(lambda: written.append(now.time), interval=1.0)
        for _ in range(8):
            ledger_clock.wait()
            ledger_clock.train()
            now.time += 0.25
        ledger_clock.tick()
    assert written == [101.0, 102.0, 102.0]


def test_slow_writes_are_rare(now) -> None:
    ledger_clock, written = LedgerClock(), []

    def write() -> None:
        written.append(now.time)
        now.time += 0.5

    ledger_clock.write_by(write, interval=1.0)
    for _ in range(1200):
        ledger_clock.wait()
        ledger_clock.train()
        now.time += 1
    assert len(written) == 2


def test_writes_nothing_when_a_write_ended_it(now) -> None:
    ledger_clock = LedgerClock()
    ledger_clock.write_by(lambda: ledger_clock.write_by(None), interval=1.0)
    ledger_clock.write()
    assert ledger_clock._due == math.inf


def test_the_first_clock_has_the_time_since_the_process_started(monkeypatch, now) -> None:
    starts = iter([90.0, None])
    monkeypatch.setattr(clock, "claim_start", lambda: next(starts))
    first, second = LedgerClock(), LedgerClock()
    began = first.started
    for ledger_clock in (first, second):
        with ledger_clock.call(Category.EVALUATION):
            now.time += 1
    assert (spent(first), began - first.started) == ({"start_up": 10, "evaluation": 1}, 10)
    assert spent(second) == {"start_up": 1, "evaluation": 1}


def test_copies_measure_their_own_time(now) -> None:
    ledger_clock = LedgerClock()
    now.time += 5
    for other in (copy.deepcopy(ledger_clock), pickle.loads(pickle.dumps(ledger_clock))):
        assert other.segment != ledger_clock.segment
        assert spent(other) == {}


OPERATIONS = st.one_of(
    st.tuples(st.just("pass"), st.floats(0, 10)),
    st.tuples(st.just("step"), st.floats(0, 10)),
    st.tuples(st.just("repeat"), st.integers(0, 3)),
    st.tuples(st.just("compile"), st.floats(0, 20)),
    st.tuples(st.sampled_from(["during", "call"]), st.sampled_from(PARTS)),
    st.tuples(st.just("look"), st.none()),
)


@given(first=st.sampled_from(CALLS), operations=st.lists(OPERATIONS, max_size=30))
def test_every_second_is_in_one_category(first, operations) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        now = simulate(monkeypatch)
        ledger_clock, began = LedgerClock(), now.time
        with ledger_clock.call(first):
            for name, value in operations:
                if name == "pass":
                    now.time += value
                elif name == "step":
                    ledger_clock.wait()
                    now.time += value
                    ledger_clock.train()
                    now.time += value
                elif name == "repeat":
                    ledger_clock.repeat(value)
                elif name == "compile":
                    now.compiled += value
                elif name == "look":
                    ledger_clock.seconds()
                else:
                    with getattr(ledger_clock, name)(value):
                        now.time += 1
        seconds = ledger_clock.seconds()
        assert sum(seconds.values()) == pytest.approx(now.time - began)
        assert min(seconds.values()) >= -1e-9


def test_timed_as_finds_the_state_by_position_or_name() -> None:
    state = trainer_of().state
    for call in (timed_as(Category.SAVING)(lambda state: 1), timed_as(Category.SAVING, state_at=0)(lambda *, state: 1)):
        before = state.clock.seconds()[Category.SAVING]
        assert call(state=state) == 1
        assert state.clock.seconds()[Category.SAVING] > before
