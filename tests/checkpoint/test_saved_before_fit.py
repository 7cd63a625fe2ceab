"""A checkpoint that is saved between loading another one and training has what waits in that one until training."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from composer import State, Timestamp, Trainer
from composer.checkpoint.contents import STATE_ENTRIES
from composer.checkpoint.load import ResumeInfo
from composer.core.stop_reason import Stop
from tests.common import At, Regression, regression_data, trainer_of, weights
from tests.ranks import Ranks
from tests.trainer.test_resume_between_epochs import Sized, samples, trainer_on
from tests.trainer.test_resume_within_step import SaveIn

ROWS = {entry.name: entry for entry in STATE_ENTRIES}


def same(one: Any, other: Any) -> bool:
    """Whether two values of checkpoints are equal."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def differences(one: Path, other: Path, *ignored: str) -> list[str]:
    """The entries of two checkpoints that differ, other than those about the process that saved them."""
    contents = [torch.load(path, weights_only=True) for path in (one, other)]
    found = [{**content["state"], "rng": content["rng"]} for content in contents]
    names = (found[0].keys() | found[1].keys()) - {"ledger", "program", "callbacks", "run_name", *ignored}
    return sorted(name for name in names if not same(*(entries.get(name) for entries in found)))


def run(*callbacks: Any, **arguments: Any) -> tuple[Trainer, list[Any]]:
    return trainer_on(Sized(), *callbacks, eval_dataloader=DataLoader(samples(4), 2, shuffle=True), **arguments)


# Within an epoch, where an evaluation of the step is to come, and between two epochs.
FIRST = [("batch_checkpoint", 4), ("batch_end", 4), ("epoch_end", 6), ("epoch_checkpoint", 6)]


@pytest.mark.parametrize("how", ["save_checkpoint", "after_load", "fit_start", "eval_end"])
@pytest.mark.parametrize(("event", "step"), FIRST)
def test_saved_again_before_training(event: str, step: int, how: str, tmp_path: Path) -> None:
    first, again = tmp_path / f"{step}.pt", tmp_path / "again" / f"{step}.pt"
    again.parent.mkdir()
    whole, seen = run(SaveIn(event, tmp_path, step), eval_interval="2ba")
    whole.fit()
    savers = [] if how == "save_checkpoint" else [SaveIn(how, again.parent, step)]
    second, _ = run(*savers, load_path=str(first), eval_interval="2ba", max_duration=f"{step + 1}ba")
    torch.rand(3)
    if how == "save_checkpoint":
        second.save_checkpoint(again)
    elif how == "eval_end":
        second.eval()
        assert differences(first, again, "max_duration", "ending", "metric_values") == []
    if how == "fit_start":
        second.fit()
    if how != "eval_end":
        assert differences(first, again, "max_duration", "ending") == []
    third, rest = run(load_path=str(again), eval_interval="2ba")
    third.fit()
    assert rest == seen[step:]
    assert torch.equal(weights(third), weights(whole))


def test_the_random_state_is_that_of_the_process_once_training_has_started(tmp_path: Path) -> None:
    whole, _ = run(SaveIn("batch_end", tmp_path))
    whole.fit()
    (tmp_path / "again").mkdir()
    second, _ = run(SaveIn("batch_end", tmp_path / "again"), load_path=str(tmp_path / "4.pt"))
    second.fit()
    assert second.state.loaded is None
    found = differences(tmp_path / "9.pt", tmp_path / "again" / "9.pt")
    assert not {"rng", "dataset_state", "model", "optimizers"} & set(found)


def stopped(folder: Path, *callbacks: Any, **arguments: Any) -> Trainer:
    """The same command each time."""
    return trainer_of(
        Regression(metrics=True),
        regression_data(8),
        max_duration="8ba",
        save_folder=str(folder),
        save_interval="1ba",
        run_name="stopped",
        autoresume=True,
        callbacks=list(callbacks),
        eval_dataloader=regression_data(2),
        eval_interval="1ba",
        seed=1,
        **arguments,
    )


def test_a_run_that_was_stopped_stays_complete(tmp_path: Path) -> None:
    stop = At("batch_end", lambda state: state.timestamp.batch == 3 and state.stop_training(reason="good enough"))
    stopped(tmp_path, stop).fit()
    [first] = tmp_path.glob("*ba3-rank0.pt")
    second = stopped(tmp_path)
    second.save_checkpoint(tmp_path / "again.pt")
    assert differences(first, tmp_path / "again.pt") == []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "autoresume: this call of fit is already complete")
        second.fit()
    second.save_checkpoint(tmp_path / "after.pt")
    assert differences(first, tmp_path / "after.pt") == []


def test_the_end_of_a_run_whose_last_evaluation_is_missing() -> None:
    loaded = ResumeInfo(unevaluated=["eval"], planned_duration="8ba", max_duration="5ba", stop=Stop("me", "enough"))
    target = State(model=Regression(), max_duration="8ba")
    target.loaded, target.fit_calls = loaded, [{"began": {}, "end": "8ba"}]
    expected = {"planned_duration": "8ba", "stopped_by": "me", "reason": "enough", "evaluated": {"eval": False}}
    assert ROWS["ending"].get(target) == {**expected, "fit_calls": target.fit_calls}
    assert ROWS["max_duration"].get(target) == "5ba"
    target.is_fitting = True  # and has planned its end
    assert ROWS["max_duration"].get(target) == "8ba"


def test_states_of_schedules_and_values_of_metrics_for_what_fit_sets() -> None:
    target = State(model=Regression())
    value = {"value": torch.tensor(2.0), "inner": {}}
    later = {"train": {"MeanSquaredError": value}, "eval": {"eval": {"MeanSquaredError": value}}}
    target.loaded = ResumeInfo(schedulers={"ConstantScheduler": {"last_epoch": 3}}, metric_values=later)
    assert ROWS["schedulers"].get(target) == {"ConstantScheduler": {"last_epoch": 3}}
    assert ROWS["metric_values"].get(target) == later
    target.loaded = None
    assert ROWS["schedulers"].get(target) == {}
    assert ROWS["metric_values"].get(target) == {"train": {}, "eval": {}}


def test_the_timestamp_before_the_last_step_of_an_evaluation_to_come() -> None:
    target = State(model=Regression())
    target.train_phase.evaluation_event = "batch_end"
    target.train_phase.loaded_previous = Timestamp(batch=3)
    assert ROWS["previous_timestamp"].get(target)["Timestamp"]["batch"] == 3


def _of_a_rank(folder: str) -> bool:
    path = Path(folder)
    whole, _ = trainer_on(Sized(), SaveIn("batch_end", path), device="cpu")
    whole.fit()
    second, _ = trainer_on(Sized(), load_path=f"{folder}/4.pt", device="cpu")
    torch.rand(3)
    second.save_checkpoint(path / "again.pt")
    third, _ = trainer_on(Sized(), load_path=f"{folder}/again.pt", device="cpu")
    third.fit()
    return torch.equal(weights(third), weights(whole))


def test_two_ranks(tmp_path: Path, two_ranks: Ranks) -> None:
    assert two_ranks.run(_of_a_rank, str(tmp_path)) == [True, True]
    assert differences(tmp_path / "4.pt", tmp_path / "again.pt", "max_duration", "ending") == []
