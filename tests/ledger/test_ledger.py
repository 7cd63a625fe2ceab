"""The sums of ledgers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.ledger import Category, Ledger, Position, Segment
from composer.ledger.category import MEASURED
from composer.ledger.ledger import parse_segments

C = Category


def segment(name: str, started: float = 0.0, state: str = "running", **given) -> Segment:
    seconds = {category: given.pop(category.value) for category in MEASURED if category.value in given}
    return Segment(name, started, seconds, state, **given)


def position(name: str, **seconds: float) -> Position:
    return Position(name, {Category(category): value for category, value in seconds.items()})


def spent(*segments: Segment | None) -> dict[str, float]:
    return {category.value: seconds for category, seconds in Ledger(segments).seconds.items() if seconds}


CRASHED = segment("a", 0.0, start_up=2.0, training=10.0, data=4.0, evaluation=2.0, other=1.0, last_batch=100)
SAVED = position("a", start_up=2.0, training=6.0, data=3.0, other=0.5)


def test_work_after_the_checkpoint_is_lost() -> None:
    resumed = segment("b", 30.0, repeated=4.0, training=1.0, first_batch=60, last_batch=110, resumed=SAVED)
    assert spent(CRASHED, resumed) == {
        "training": 7, "data": 3, "repeated": 4, "start_up": 2, "other": 1, "lost": 7, "not_running": 11
    }  # fmt: skip


def test_a_crash_without_a_checkpoint_loses_all_work() -> None:
    again = segment("b", 19.0, repeated=4.0)
    assert spent(CRASHED, again) == {"start_up": 2, "other": 1, "lost": 16, "repeated": 4}


def test_a_checkpoint_after_the_last_write_extends_the_segment() -> None:
    later = position("a", start_up=2.0, training=14.0, data=5.0, evaluation=2.0, other=1.0)
    resumed = segment("b", 30.0, training=4.0, first_batch=140, last_batch=150, resumed=later)
    ledger = Ledger([CRASHED, resumed])
    assert ledger.segments[0].last_batch == 140
    assert spent(CRASHED, resumed) == {
        "training": 18, "data": 5, "evaluation": 2, "start_up": 2, "other": 1, "not_running": 6
    }  # fmt: skip


def test_a_checkpoint_without_a_position_loses_nothing() -> None:
    assert "lost" not in spent(CRASHED, segment("b", 19.0, training=4.0, first_batch=60))


def test_several_crashes_after_the_same_checkpoint() -> None:
    second = segment("b", 20.0, start_up=1.0, repeated=3.0, first_batch=60, last_batch=90, resumed=SAVED)
    third = segment("c", 24.0, repeated=5.0, first_batch=60, last_batch=120, resumed=SAVED)
    assert spent(CRASHED, second, third) == {
        "training": 6, "data": 3, "start_up": 3, "other": 1, "lost": 10, "not_running": 1, "repeated": 5
    }  # fmt: skip
    assert Ledger([CRASHED, second]).repeated_until(60) == 100


def test_an_older_checkpoint_loses_more() -> None:
    second = segment("b", 20.0, training=3.0, last_batch=90, first_batch=60, resumed=SAVED)
    third = segment("c", 24.0, training=5.0, first_batch=20, resumed=position("a", start_up=2.0, training=2.0))
    assert spent(CRASHED, second, third)["lost"] == 8 + 4 + 2 + 3


@pytest.mark.parametrize(("state", "last", "lost"), [("finished", 60, 0), ("finished", 61, 7), ("stopped", 60, 0)])
def test_a_run_that_ended_lost_only_steps_that_are_trained_again(state, last, lost) -> None:
    ended = segment("a", 0.0, state, start_up=2.0, training=10.0, data=4.0, evaluation=2.0, other=1.0, last_batch=last)
    more = segment("b", 19.0, training=4.0, first_batch=60, resumed=SAVED)
    assert spent(ended, more).get("lost", 0) == lost


def test_an_exception_loses_what_followed_the_checkpoint() -> None:
    failed = segment("a", 0.0, "failed", training=10.0, evaluation=2.0, last_batch=60)
    more = segment("b", 12.0, first_batch=60, resumed=position("a", training=10.0))
    assert spent(failed, more) == {"training": 10, "lost": 2}


def test_segments_of_another_run_do_not_count() -> None:
    own = segment("b", 1000.0, training=4.0, first_batch=60, resumed=SAVED, begins_run=True)
    ledger = Ledger([CRASHED, own])
    assert spent(CRASHED, own) == {"training": 4}
    assert (ledger.segments, ledger.earlier) == ((own,), (CRASHED,))


def test_trainers_of_one_process() -> None:
    one = segment("a", 0.0, "finished", training=5.0, process="host:1:1")
    other = segment("b", 8.0, "finished", training=5.0, process="host:1:1", first_batch=1)
    assert spent(one, other) == {"training": 10, "other": 3}
    assert str(Ledger([one, other])).startswith("13.0 s in 1 process; 76.9 % goodput")


def test_time_beside_a_line_that_cannot_be_read_is_not_explained() -> None:
    one, other = segment("a", 0.0, training=5.0), segment("b", 8.0, training=5.0, first_batch=1)
    text = f"{one.line()}\n\0\0\0\n{{'torn\n{other.line()}   \n\n"
    entries = parse_segments(text)
    assert entries == [one, None, other]
    assert spent(*entries) == {"training": 10, "other": 3}


def test_segments_at_the_same_time_leave_no_negative_gap() -> None:
    one, other = segment("a", 0.0, training=10.0), segment("b", 8.0, training=5.0, first_batch=1)
    assert spent(one, other) == {"training": 15}


def test_an_empty_ledger() -> None:
    ledger = Ledger([])
    assert (ledger.total, ledger.goodput, ledger.explained, ledger.shares) == (0, 0, 0, {})
    assert str(ledger) == "0.0 s in 0 processes; 0.0 % goodput, 0.0 % explained"


def test_reads_folders_and_files(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="save_folder"):
        Ledger.read(tmp_path)
    (tmp_path / "ledger.jsonl").write_text(CRASHED.line() + "\n")
    assert Ledger.read(tmp_path).segments == Ledger.read(str(tmp_path / "ledger.jsonl")).segments == (CRASHED,)


PARTS = st.fixed_dictionaries({category: st.integers(0, 50).map(float) for category in MEASURED})


@given(st.data(), st.lists(PARTS, min_size=1, max_size=6))
def test_every_second_is_in_one_category(data, parts) -> None:
    segments: list[Segment] = []
    at = 0.0
    for number, seconds in enumerate(parts):
        at += data.draw(st.integers(0, 20))
        resumed = None
        if segments and data.draw(st.booleans()):
            origin = data.draw(st.sampled_from(segments))
            share = data.draw(st.floats(0, 1))
            resumed = Position(origin.id, {category: share * value for category, value in origin.seconds.items()})
        batches = sorted([data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))])
        state = data.draw(st.sampled_from(["running", "finished", "stopped", "failed"]))
        segments.append(Segment(str(number), at, seconds, state, *batches, resumed))
        at = segments[-1].ended
    ledger = Ledger(segments)
    assert ledger.total == pytest.approx(at - segments[0].started)
    assert min(ledger.seconds.values()) >= -1e-6
    assert 0 <= ledger.goodput <= ledger.explained + 1e-9 <= 1 + 2e-9
    assert sum(ledger.shares.values()) == pytest.approx(1 if ledger.total else 0)
    # What is lost was work of a process that another one followed.
    assert ledger.seconds[C.START_UP] == sum(one.seconds[C.START_UP] for one in segments)
