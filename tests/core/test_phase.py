from __future__ import annotations

from composer.core.phase import Phase, TrainerMode
from composer.core.timestamp import Timestamp


def test_starts_empty_at_time_zero():
    phase = Phase(TrainerMode.EVAL)
    assert phase.mode is TrainerMode.EVAL
    assert phase.timestamp == Timestamp()
    assert (phase.label, phase.loader, phase.length, phase.iterator, phase.repeated) == (None,) * 5


def test_phases_are_independent():
    first, second = Phase(TrainerMode.TRAIN), Phase(TrainerMode.TRAIN)
    first.timestamp = first.timestamp.to_next_batch()
    assert second.timestamp.batch == 0
