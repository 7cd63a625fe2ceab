"""The entries of a checkpoint: saved state is restored."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import torch
from torchmetrics import MeanSquaredError
from torchmetrics.aggregation import CatMetric, MeanMetric

from composer import Algorithm, Callback, State, Timestamp, dist
from composer.algorithms import LabelSmoothing
from composer.checkpoint.contents import STATE_ENTRIES
from composer.checkpoint.rank_values import gathered_on_every_rank
from composer.warnings import ComposerWarning
from tests.common import Regression, TwoLayers

ROWS = {part.name: part for part in STATE_ENTRIES}


def state(**arguments: Any) -> State:
    model = Regression()
    arguments.setdefault("optimizers", torch.optim.SGD(model.parameters(), lr=0.1))
    return State(model=model, **arguments)


def pass_through(name: str, source: State, target: State) -> Any:
    saved = ROWS[name].get(source)
    set_value = ROWS[name].set
    assert set_value is not None
    set_value(target, saved)
    return saved


def test_entries_are_unique_and_follow_their_dependencies() -> None:
    names = [part.name for part in STATE_ENTRIES]
    assert len(names) == len(set(names))
    assert names.index("timestamp") < names.index("dataset_state")  # the place counts from the time
    assert [part.name for part in STATE_ENTRIES if part.in_weights_only] == ["model", "integrations", "metadata"]


def test_timestamp() -> None:
    now = Timestamp(epoch=1, batch=7, sample=20, batch_in_epoch=2, total_wct=datetime.timedelta(seconds=1.25))
    source, target = state(), state()
    source.timestamp = now
    saved = pass_through("timestamp", source, target)
    assert target.timestamp == now
    assert saved["Timestamp"]["total_wct"] == 1.25


class Count(Callback):
    """Has a number of its own, and no state at zero."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    def state_dict(self):
        return {"number": self.number} if self.number else {}

    def load_state_dict(self, state):
        self.number = state.get("number", 0)


class Other(Count):
    pass


@pytest.mark.parametrize("numbers", [(1, 2, 3), (0, 2, 0), (0, 0, 3)])
def test_multiple_callbacks_of_one_class(numbers) -> None:
    """Each finds its own state, also when others of the class have none."""
    source, target = state(), state()
    source.callbacks = [Count(numbers[0]), Other(9), Count(numbers[1]), Count(numbers[2])]
    target.callbacks = [Other(), Count(7), Count(7), Count(7)]
    pass_through("callbacks", source, target)
    assert [one.number for one in target.callbacks] == [9, *numbers]


def test_states_are_found_by_the_class_name() -> None:
    source = state()
    source.callbacks = [Count(0), Other(1), Count(2)]
    assert ROWS["callbacks"].get(source) == {"Count": {}, "Other": {"number": 1}, "Count#2": {"number": 2}}
    assert list(ROWS["optimizers"].get(source)) == ["SGD"]
    source.algorithms = [LabelSmoothing(0.1)]
    ((name, saved),) = ROWS["algorithms"].get(source)  # pairs, whose order counts
    assert (name, saved["repr"][:20]) == ("LabelSmoothing", "LabelSmoothing(smoot")


@pytest.mark.parametrize("kind", ["callbacks", "algorithms"])
def test_state_that_is_not_a_dict_is_rejected_on_save(kind) -> None:
    class Odd(Callback if kind == "callbacks" else Algorithm):
        value: Any = 3

        def state_dict(self):
            return self.value

        def match(self, event, state):
            return False

        def apply(self, event, state, logger):
            pass

    source, odd = state(), Odd()
    setattr(source, kind, [odd])
    with pytest.raises(TypeError, match=rf"{kind}: .*Odd.state_dict\(\) returned int, but must return a dict"):
        ROWS[kind].get(source)
    odd.value = None
    assert list(dict(ROWS[kind].get(source)).values()) == [{}]


def test_states_of_missing_callbacks_are_skipped() -> None:
    source, target = state(), state()
    source.callbacks = [Count(1), Count(2)]
    target.callbacks = [Count()]
    pass_through("callbacks", source, target)
    assert target.callbacks[0].number == 1


def test_multiple_optimizers() -> None:
    models = [TwoLayers(), TwoLayers()]
    source, target = (State(model=model, optimizers=model.optimizers()) for model in models)
    for optimizer in source.optimizers:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
    pass_through("optimizers", source, target)
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in target.optimizers]
    assert rates == [[0.01], [0.005]]


def test_different_optimizers() -> None:
    source = state()
    target = state(optimizers=None)
    target.optimizers = [torch.optim.AdamW(target.model.parameters())]
    with pytest.raises(ValueError, match=r"the optimizers \['SGD'\], but this run has \['AdamW'\]. Pass"):
        pass_through("optimizers", source, target)
    target.optimizers = [torch.optim.SGD(target.model.parameters()), torch.optim.Adam(target.model.parameters())]
    with pytest.warns(ComposerWarning, match=r"no state of the optimizers \['Adam'\]"):
        pass_through("optimizers", source, target)


def test_missing_schedulers_are_reported() -> None:
    source, target = state(), state()
    source.schedulers = [torch.optim.lr_scheduler.StepLR(source.optimizers[0], 2)]
    pass_through("schedulers", source, target)  # some may come yet
    target.schedulers = [torch.optim.lr_scheduler.ConstantLR(target.optimizers[0])]
    with pytest.warns(ComposerWarning, match="the state of StepLR, which is not among the schedulers"):
        pass_through("schedulers", source, target)


@pytest.mark.parametrize("in_class", [False, True])
def test_scaler(in_class) -> None:
    source, target = state(), state()
    source.scaler, target.scaler = (torch.amp.GradScaler("cpu", init_scale=scale) for scale in (2.0, 8.0))
    saved = ROWS["scaler"].get(source)
    ROWS["scaler"].set(target, {"ClosureGradScaler": saved} if in_class else saved)
    assert target.scaler.get_scale() == 2.0


@pytest.mark.parametrize("saved", [{}, {"ClosureGradScaler": {}}])
def test_disabled_scaler(saved) -> None:
    target = state()
    target.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    ROWS["scaler"].set(target, saved)
    assert target.scaler.get_scale() == 8.0


def test_metrics() -> None:
    source, target = state(), state()
    for one in (source, target):
        one.train_metrics = {"MSE": MeanSquaredError(), "Cat": CatMetric()}
        one.eval_metrics = {
            "eval": {"MSE": MeanSquaredError()},
            "new" if one is target else "old": {"MSE": CatMetric()},
        }
    source.train_metrics["MSE"].update(torch.tensor([1.0]), torch.tensor([3.0]))
    source.train_metrics["Cat"].update(torch.tensor([1.0]))
    source.train_metrics["Cat"].update(torch.tensor([2.0]))
    target.train_metrics["MSE"].update(torch.tensor([1.0]), torch.tensor([1.0]))
    assert target.train_metrics["MSE"].compute() == 0  # cached by the metric until it is updated
    pass_through("metrics", source, target)
    assert target.train_metrics["MSE"].compute() == 4
    assert target.train_metrics["Cat"].compute().tolist() == [1.0, 2.0]
    assert not target.eval_metrics["eval"]["MSE"].update_called


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ({"kind": "indices"}, {"kind": "indices"}),
        ({"epoch": 3}, {"kind": "dataset", "state": {"epoch": 3}}),
        (None, {"kind": "any", "rng": None}),
    ],
)
def test_position_in_the_data(place, expected) -> None:
    target = state()
    target.timestamp = Timestamp(batch=1, batch_in_epoch=1)
    ROWS["dataset_state"].set(target, {"train": place, "eval": {}})
    assert target.train_phase.resume_position == expected
    target.timestamp = Timestamp(epoch=1, batch=1)
    ROWS["dataset_state"].set(target, {"train": place, "eval": {}})
    assert target.train_phase.resume_position is None


def test_integrations() -> None:
    source = state()
    assert ROWS["integrations"].get(source) == {}
    source.model.get_metadata = lambda: {"model": 1}
    assert ROWS["integrations"].get(source) == {"huggingface": {"model": 1}}


def test_metadata_is_plain() -> None:
    metadata = ROWS["metadata"].get(state())
    assert {type(value) for value in metadata.values()} <= {str, int, type(None)}
    assert type(metadata["torch_version"]) is str  # not torch's own kind of text


def counted(resumed: bool) -> float:
    """The mean over both processes, where each has counted its own data before and after."""
    one, rank = state(), dist.get_global_rank()
    one.train_metrics = {"mean": MeanMetric()}
    one.train_metrics["mean"].update(torch.tensor([1.0, 2.0, 3.0][: rank + 1]))
    if resumed:
        other = state()
        other.train_metrics = {"mean": MeanMetric()}
        with gathered_on_every_rank():  # in a checkpoint only rank 0 has them
            pass_through("metrics", one, other)
        one = other
    one.train_metrics["mean"].update(torch.tensor(10.0 * rank))
    return float(one.train_metrics["mean"].compute())


def test_metrics_of_multiple_ranks(two_ranks) -> None:
    assert two_ranks.run(counted, True) == two_ranks.run(counted, False) == [pytest.approx(14 / 5)] * 2


def test_metrics_are_reset_for_another_world_size() -> None:
    one = state()
    one.train_metrics = {"mean": MeanMetric()}
    set_value = ROWS["metrics"].set
    assert set_value is not None
    with pytest.warns(ComposerWarning, match="saved by 2 ranks, but there are now 1 rank"):
        set_value(one, {"ranks": [{}, {}]})
    assert one.train_metrics["mean"].update_count == 0
