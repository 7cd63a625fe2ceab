"""cyclic_schedule: which batches are recorded, and ProfilerAction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composer import Engine, Event, State, Timestamp
from composer.profiler import Profiler, ProfilerAction, cyclic_schedule
from tests.profiler.traces import PLAIN

COUNTS = st.integers(0, 4)


def actions(batches: int, length: int | None = None, **arguments: int) -> str:
    """The first letters of the actions of an epoch; ``!`` is active and save."""
    state, schedule = State(model=nn.Linear(1, 1)), cyclic_schedule(**arguments)
    state.train_phase.length = length
    letters = {"skip": "s", "warmup": "w", "active": "a", "active_and_save": "!"}
    found = []
    for batch in range(batches):
        state.timestamp = Timestamp(epoch=1, batch=100 + batch, batch_in_epoch=batch)
        found.append(letters[schedule(state).value])
    return "".join(found)


def test_defaults() -> None:
    assert actions(8) == "waaa!sss"


def test_parts_of_a_cycle_and_their_number() -> None:
    assert actions(14, skip_first=2, wait=1, warmup=1, active=2, repeat=2) == "ssswa!swa!ssss"
    assert actions(9, wait=0, warmup=1, active=2, repeat=0) == "wa!" * 3
    assert actions(3, warmup=0, active=1, repeat=0) == "!!!"


def test_saves_after_the_last_batch_of_the_epoch() -> None:
    assert actions(3, length=3) == "wa!"
    assert actions(4, length=4, wait=1, warmup=2, active=9) == "sww!"


@given(
    skip_first=COUNTS, wait=COUNTS, warmup=COUNTS, active=st.integers(1, 4), repeat=COUNTS, batches=st.integers(1, 40)
)
def test_law(skip_first, wait, warmup, active, repeat, batches) -> None:
    cycle = "s" * wait + "w" * warmup + "a" * (active - 1) + "!"
    whole = "s" * skip_first + cycle * (repeat or batches) + "s" * batches
    arguments = {"skip_first": skip_first, "wait": wait, "warmup": warmup, "active": active, "repeat": repeat}
    assert actions(batches, **arguments) == whole[:batches]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"active": 0}, ValueError, "active must be greater than 0"),
        ({"wait": -1}, ValueError, "wait must be 0 or greater"),
        ({"skip_first": -2}, ValueError, "skip_first"),
        ({"warmup": "1"}, TypeError, "warmup must be an integer"),
        ({"repeat": -1}, ValueError, "repeat"),
    ],
)
def test_refuses_impossible_numbers(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        cyclic_schedule(**arguments)


def test_actions_have_names() -> None:
    assert ProfilerAction("warmup") is ProfilerAction.WARMUP
    with pytest.raises(ValueError, match=r"one of 'skip', .* but got 'activ'\. Did you mean 'active'\?"):
        ProfilerAction("activ")
    with pytest.raises(ValueError, match="got None"):
        ProfilerAction(None)


def test_counts_from_where_a_checkpoint_was_loaded() -> None:
    state = State(model=nn.Linear(1, 1))
    Profiler(cyclic_schedule(skip_first=1, warmup=1, active=1), [], **PLAIN).bind_to_state(state)
    engine = Engine(state)
    state.timestamp = Timestamp(batch=14, batch_in_epoch=4)
    engine.run_event(Event.AFTER_LOAD)
    found = []
    for time in ((0, 4), (0, 5), (0, 6), (0, 7), (1, 0), (1, 1), (1, 2)):
        state.timestamp = Timestamp(epoch=time[0], batch_in_epoch=time[1])
        found.append(state.profiler.schedule(state).value[0])
    assert "".join(found) == "swasswa"
    engine.close()
