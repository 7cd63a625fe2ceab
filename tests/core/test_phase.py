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


def test_counts_batches_of_the_loader_beside_steps():
    phase = Phase(TrainerMode.TRAIN, length=10)
    phase.timestamp = Timestamp(epoch=2, batch=23, batch_in_epoch=3)
    assert (phase.batches_loaded, phase.steps_per_epoch, phase.epochs_trained) == (3, 10, 2.3)
    phase.extra_batches, phase.joins_batches = 2, True
    assert (phase.batches_loaded, phase.steps_per_epoch, phase.epochs_trained) == (5, None, 2.5)
    phase.length = None
    assert (phase.steps_per_epoch, phase.epochs_trained) == (None, 2.0)
