"""Times in a run, as schedules that override ``__call__`` convert and compare them."""

from __future__ import annotations

import pytest

from composer.core.time import Time
from composer.optim.time_conversion import (
    convert_time,
    raise_if_max_duration_exceeds_t_max,
    raise_if_warmup_and_max_incompatible,
)
from tests.optim.schedules import state_of


@pytest.mark.parametrize(
    ("time", "max_duration", "epoch_length", "ssr", "expected"),
    [
        ("10ba", "100ba", None, 1.0, "10ba"),
        ("10ba", "100ba", None, 0.25, "2ba"),
        ("2ep", "10ep", 50, 1.0, "100ba"),
        ("1ep", "10ep", 50, 0.5, "25ba"),
        ("0.1dur", "10ep", 50, 1.0, "50ba"),
        ("0.1dur", "10ep", 50, 0.5, "50ba"),
        ("0.29dur", "100ba", None, 1.0, "29ba"),
        ("0.5dur", "33tok", None, 1.0, "16tok"),
        ("7sp", "2ep", None, 1.0, "7sp"),
        (Time(3, "ep"), "2ba", 4, 1.0, "12ba"),
    ],
)
def test_convert(time, max_duration, epoch_length, ssr, expected) -> None:
    found = convert_time(time, state_of(max_duration, epoch_length=epoch_length), ssr)
    assert found == Time.from_timestring(expected)
    assert isinstance(found.value, int)


def test_what_cannot_be_converted() -> None:
    for time in ("1ep", "0.5dur"):
        with pytest.raises(RuntimeError, match="the number of batches in an epoch is unknown"):
            convert_time(time, state_of("4ep"))
    with pytest.raises(ValueError, match=r"'1ba' cannot be converted, because state\.max_duration is None"):
        convert_time("1ba", state_of(None))


@pytest.mark.parametrize(
    ("t_max", "max_duration", "epoch_length", "refused"),
    [
        ("5ba", "10ba", None, True),
        ("10ba", "10ba", None, False),
        ("1dur", "10ba", None, False),
        ("19ba", "2ep", 10, True),
        ("20ba", "2ep", 10, False),
        ("19ba", "2ep", None, False),  # not comparable
        ("1ep", "11ba", 10, True),
        ("1ep", "10ba", 10, False),
        ("1tok", "10ba", 10, False),
    ],
)
def test_a_schedule_must_cover_the_run(t_max, max_duration, epoch_length, refused) -> None:
    state = state_of(max_duration, epoch_length=epoch_length)
    if refused:
        with pytest.raises(ValueError, match=f"t_max='{t_max}' is less than max_duration='{max_duration}'"):
            raise_if_max_duration_exceeds_t_max(t_max, state)
    else:
        raise_if_max_duration_exceeds_t_max(t_max, state)


def test_one_unit() -> None:
    raise_if_warmup_and_max_incompatible(Time(1, "ba"), Time(2, "ba"))
    with pytest.raises(ValueError, match="t_warmup='1tok' is counted in 'tok' and t_max='2ba' in 'ba'"):
        raise_if_warmup_and_max_incompatible(Time(1, "tok"), Time(2, "ba"))
