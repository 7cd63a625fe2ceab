"""GarbageCollector: what it collects when, and that the automatic collector is restored."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from composer import Callback
from composer.callbacks import GarbageCollector
from tests.callbacks.cases import Case, run_with
from tests.common import At, labeled_data

CASE = Case(
    make=lambda folder: GarbageCollector("2ba"), logs=("garbage_collector/seconds", "garbage_collector/objects")
)


@pytest.fixture(autouse=True, scope="module")
def _frozen_again() -> Iterator[None]:
    """Freeze objects for later tests."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_is_frozen() -> None:
    """Unfreeze objects frozen by earlier code of this process."""
    gc.unfreeze()


@pytest.fixture
def generations(monkeypatch) -> list[int]:
    """The collected generations."""
    found: list[int] = []
    collect = gc.collect

    def noting(generation: int = 2) -> int:
        found.append(generation)
        return collect(generation)

    monkeypatch.setattr(gc, "collect", noting)
    return found


def test_collects_at_fixed_steps(generations) -> None:
    run = run_with(GarbageCollector("2ba", "1ep"), data=labeled_data(5), max_duration="2ep")
    run.trainer.fit()
    # First a full collection; then after batches 2, 4 | the epoch | 6, 8, 10 | the epoch.
    assert generations == [2, 1, 1, 2, 1, 1, 1, 2]
    assert run.steps("garbage_collector/seconds") == [2, 4, 5, 6, 8, 10, 10]


def test_when_both_are_due_everything_is_collected(generations) -> None:
    run_with(GarbageCollector("1ba", "2ba"), data=labeled_data(4)).trainer.fit()
    assert generations == [2, 1, 2, 1, 2]


def test_the_automatic_collector_is_off_in_training_and_on_in_evaluations() -> None:
    states = {event: At(event, lambda state: gc.isenabled()) for event in ("batch_end", "eval_batch_end", "fit_end")}
    run = run_with(GarbageCollector(), *states.values(), eval_dataloader=labeled_data(1))
    run.trainer.fit()
    assert {event: set(at.found) for event, at in states.items()} == {
        "batch_end": {False},
        "eval_batch_end": {True},
        "fit_end": {True},
    }
    assert gc.isenabled()


def test_earlier_objects_are_frozen_during_training() -> None:
    frozen = At("batch_end", lambda state: gc.get_freeze_count())
    run = run_with(GarbageCollector(), frozen)
    run.trainer.fit()
    assert min(frozen.found) > 1000
    assert gc.get_freeze_count() == 0
    gc.freeze()
    try:
        run = run_with(GarbageCollector())
        run.trainer.fit()
        assert gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()


def test_is_restored_after_an_error() -> None:
    class Fail(Callback):
        def batch_end(self, state, logger):
            raise RuntimeError("stop here")

    run = run_with(GarbageCollector(), Fail())
    with pytest.raises(RuntimeError, match="stop here"):
        run.trainer.fit()
    assert not gc.isenabled()
    run.trainer.close()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_stays_disabled_if_it_was_disabled() -> None:
    gc.disable()
    try:
        run = run_with(GarbageCollector(), eval_dataloader=labeled_data(1))
        run.trainer.fit()
        run.trainer.close()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_frees_cycles_while_training() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self

    made: list[weakref.ref[Cycle]] = []
    at = At("batch_start", lambda state: made.append(weakref.ref(Cycle())))
    alive = At("batch_end", lambda state: [cycle() is not None for cycle in made])
    run_with(at, alive, GarbageCollector("2ba")).trainer.fit()
    # The collector is behind `alive` in the list, so its work shows in the batch after.
    assert alive.found == [[True], [True, True], [False, False, True], [False, False, True, True]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"interval": "30s"}, "interval must be in iterations, epochs, .*; got '30s'"),
        ({"interval": 0}, "interval must be positive"),
        ({"full_interval": "0ba"}, "full_interval must be positive"),
        ({"full_interval": "often"}, "full_interval='often'"),
    ],
)
def test_refuses_invalid_intervals(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        GarbageCollector(**arguments)
