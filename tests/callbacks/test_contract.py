"""Contract tests of every public callback."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from composer import Callback
from composer.warnings import ComposerWarning
from tests.accelerator import FakeAccelerator
from tests.callbacks.cases import Case, all_cases, matching, public_classes, run_of, run_with
from tests.common import At, Lives, Received, classifier, labeled_data, weights
from tests.declared_waits import WAITS, compare
from tests.tensor_devices import devices_of_state, differences
from tests.trainer.test_sync_free import Step

CASES = all_cases()
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def _allowed_warnings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ignore the warnings of a case that may warn; all others are errors."""
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    with warnings.catch_warnings():
        if case is not None and case.warns:
            warnings.simplefilter("ignore", ComposerWarning)
        yield


class SavedRandomNumbers(Callback):
    """Records the random state at the end of each batch, which shows whether a callback consumes random numbers."""

    def __init__(self) -> None:
        self.states: list[torch.Tensor] = []

    def batch_end(self, state, logger):
        self.states.append(torch.get_rng_state())


def test_every_public_callback_has_a_case():
    assert {case.name for case in CASES} == set(public_classes())
    assert all(isinstance(case, Case) for case in CASES)


@every_case
def test_logs_exactly_the_declared_names(case, tmp_path):
    run, without = run_of(case, case.make(tmp_path)), run_of(case)
    run.trainer.fit()
    without.trainer.fit()
    unknown, idle = matching(run.names - without.names, case.logs)
    assert not unknown, f"logged, but not among Case.logs: {sorted(unknown)}"
    assert not idle, f"in Case.logs, but nothing of the kind was logged: {sorted(idle)}"
    run.trainer.close()


@every_case
def test_logs_the_same_names_at_the_same_steps_each_time(case, tmp_path):
    found = []
    for part in ("one", "two"):
        run = run_of(case, case.make(_folder(tmp_path, part)))
        run.trainer.fit()
        run.trainer.close()
        found.append({name: run.steps(name) for name in run.log.data})
    assert found[0] == found[1]


@every_case
@pytest.mark.parametrize("more", [{}, {"device_train_microbatch_size": 1}], ids=["whole", "microbatches"])
def test_does_not_change_the_training_bit_for_bit(case, more, tmp_path):
    ends = []
    for watching in ([], [case.make(tmp_path)]):
        numbers = SavedRandomNumbers()
        run = run_of(case, *watching, numbers, **more)
        run.trainer.fit()
        assert len(numbers.states) == len(case.batches()), "a case must not stop the training"
        ends.append([weights(run.trainer), *numbers.states])
        run.trainer.close()
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


@every_case
def test_survives_the_round_trip_of_a_checkpoint(case, tmp_path):
    first = case.make(_folder(tmp_path, "first"))
    run = run_of(case, first, max_duration="2ba")
    run.trainer.fit()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    run.trainer.close()
    file.seek(0)
    saved = torch.load(file, weights_only=True)

    second = case.make(_folder(tmp_path, "second"))
    second.load_state_dict(saved)
    assert repr(second.state_dict()) == repr(saved)
    run = run_of(case, second)
    second.load_state_dict(saved)  # also after INIT, when a checkpoint is loaded
    run.trainer.fit()
    assert len(run.log.data)
    run.trainer.close()


@every_case
def test_loads_an_empty_state(case, tmp_path):
    run = run_of(case, callback := case.make(tmp_path))
    callback.load_state_dict({})
    run.trainer.fit()
    run.trainer.close()


@every_case
def test_SyncFree_between_log_points(case, tmp_path):
    """In a step in which no destination is due, the host synchronizes with the device only if declared."""
    with FakeAccelerator() as accelerator:
        callback = case.make(tmp_path)
        # Stands first, so that an epoch has ended for it before the callback acts at the end of the epoch.
        step = Step(lambda step: setattr(accelerator, "step", step))
        run = run_of(case, step, callback, loggers=Received(50))
        run.trainer.fit()
        run.trainer.close()
    assert compare(case.name, accelerator.found, 4) == ([], [])


def test_SyncFree_with_the_full_set(tmp_path):
    """All callbacks that train a classifier, at once: device values are read only when a destination is due."""
    plain = [case for case in CASES if case.model is classifier and case.batches is labeled_data]
    cases = [case for case in plain if case.name not in WAITS]
    assert len(cases) > 12
    with FakeAccelerator() as accelerator:
        step = Step(lambda step: setattr(accelerator, "step", step))
        watching = [case.make(_folder(tmp_path, f"{case.name}{index}")) for index, case in enumerate(cases)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ComposerWarning)  # of those that watch what is not there
            run = run_with(
                step,
                *watching,
                data=labeled_data(60),
                loggers=Received(50),
                device_train_microbatch_size=1,
                **_for_all(cases),
            )
            run.trainer.fit()
            run.trainer.close()
    assert {wait.step for wait in accelerator.found} <= {50}, accelerator.found


@every_case
def test_loaded_tensors_are_on_the_device_of_the_first_step(case, tmp_path):
    """On every device: after resuming, no state of a callback stays on the host."""

    def places_in_a_run(folder, **arguments):
        run = run_of(case, case.make(folder), at := At("batch_end", devices_of_state), run_name="run", **arguments)
        run.trainer.fit()
        run.trainer.close()
        return at.found

    with FakeAccelerator():
        fresh = places_in_a_run(_folder(tmp_path, "fresh"), save_folder=str(tmp_path / "saved"), save_interval="2ba")
        (saved,) = (tmp_path / "saved").glob("*ba2*.pt")
        resumed = places_in_a_run(_folder(tmp_path, "resumed"), load_path=str(saved))
    assert len(fresh) == len(case.batches())
    assert differences(fresh[2], resumed[0]) == {}


def _for_all(cases):
    arguments = {}
    for case in cases:
        arguments |= {name: value for name, value in case.arguments().items() if name.startswith("eval")}
    return arguments


@every_case
def test_closes_twice_and_leaves_nothing_behind(case, tmp_path):
    before = set(threading.enumerate())
    run = run_of(case, callback := case.make(tmp_path))
    run.trainer.fit()
    state, logger = run.trainer.state, run.trainer.logger
    run.trainer.close()
    run.trainer.close()
    callback.close(state, logger)
    callback.post_close()
    assert set(threading.enumerate()) <= before


@every_case
def test_keeps_nothing_of_a_closed_run(case, tmp_path):
    """Model, batches and outputs are released while the callback itself lives on."""
    callback, watch = case.make(tmp_path), Lives()
    run = run_of(case, callback, watch)
    run.trainer.fit()
    run.trainer.close()
    watch.note(trainer=run.trainer, state=run.trainer.state)
    del run
    assert watch.left() == []


@every_case
def test_can_be_used_in_a_second_run(case, tmp_path):
    callback = case.make(tmp_path)
    for _ in range(2):
        run = run_of(case, callback)
        run.trainer.fit()
        run.trainer.close()


@every_case
def test_continues_in_a_second_fit(case, tmp_path):
    run = run_of(case, case.make(tmp_path))
    run.trainer.fit()
    run.trainer.fit(duration="2ba")
    assert run.trainer.state.timestamp.batch == len(case.batches()) + 2
    run.trainer.close()


@every_case
def test_runs_without_loggers(case, tmp_path):
    run = run_of(case, case.make(tmp_path), loggers=[])
    run.trainer.fit()
    run.trainer.close()


@every_case
def test_closes_after_an_error_and_before_any_training(case, tmp_path):
    class Fail(Callback):
        def batch_end(self, state, logger):
            raise RuntimeError("stop here")

    run = run_of(case, case.make(_folder(tmp_path, "failing")), Fail())
    with pytest.raises(RuntimeError, match="stop here"):
        run.trainer.fit()
    run.trainer.close()
    run_of(case, case.make(_folder(tmp_path, "idle"))).trainer.close()


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder
