"""State attributes of Composer 0.32: readable, settable where they were, and on mocks too."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, SumMetric

from composer.core import Algorithm, Callback, DataSpec, Evaluator, Precision, State, Time, Timestamp
from composer.devices import DeviceCPU
from composer.parallel.config import as_parallelism_config
from tests.common import trainer_of

MODEL = torch.nn.Linear(1, 1)
SGD = torch.optim.SGD(MODEL.parameters(), lr=0.1)
SCHEDULE = torch.optim.lr_scheduler.ConstantLR(SGD)
LOADER = DataLoader(TensorDataset(torch.arange(6)), batch_size=2)
EVALUATOR = Evaluator(label="e", dataloader=[1])
FSDP = as_parallelism_config({"fsdp": {}}).fsdp

# What is assigned, and what is read then.
SETTABLE = {
    "_iteration_length": ("2ep", Time(2, "ep")),
    "_train_dataloader": (LOADER, LOADER),
    "algorithms": (methods := [Algorithm()], methods),
    "auto_microbatching": (True, True),
    "batch": ((1, 2), (1, 2)),
    "callbacks": (callbacks := [Callback()], callbacks),
    "dataloader_len": (2, Time(2, "ba")),
    "device": (device := DeviceCPU(), device),
    "device_mesh": ("mesh", "mesh"),
    "device_train_microbatch_size": (3, 3),
    "eval_metric_values": ({"a": 1}, {"a": 1}),
    "eval_metrics": ({"eval": {}}, {"eval": {}}),
    "eval_timestamp": (Timestamp(batch=3), Timestamp(batch=3)),
    "evaluators": (EVALUATOR, [EVALUATOR]),
    "fsdp_config": (FSDP, FSDP),
    "load_path": ("file.pt", "file.pt"),
    "loss": (torch.tensor(1.0), torch.tensor(1.0)),
    "max_duration": ("3ep", Time(3, "ep")),
    "metric_outputs": ({"a": 1}, {"a": 1}),
    "model": (MODEL, MODEL),
    "optimizers": (SGD, [SGD]),
    "outputs": ((1,), (1,)),
    "precision": ("amp_bf16", Precision.AMP_BF16),
    "predict_timestamp": (Timestamp(batch=4), Timestamp(batch=4)),
    "previous_timestamp": (Timestamp(batch=5), Timestamp(batch=5)),
    "profiler": ("profiler", "profiler"),
    "rank_zero_seed": (7, 7),
    "run_name": ("name", "name"),
    "scaler": ("scaler", "scaler"),
    "schedulers": (SCHEDULE, [SCHEDULE]),
    "timestamp": (Timestamp(batch=6), Timestamp(batch=6)),
    "total_loss_dict": ({"loss": 1}, {"loss": 1}),
    "tp_config": ("tp", "tp"),
    "train_dataloader": (LOADER, LOADER),
    "train_metric_values": ({"a": 1}, {"a": 1}),
    "train_metrics": ({}, {}),
}
# And what a new state has of these that could only be read.
READABLE = {
    "dataloader": None,
    "dataloader_label": "train",
    "fsdp_config_version": 0,
    "fsdp_enabled": False,
    "fsdp_sharded_state_dict_enabled": False,
    "fsdp_state_dict_type": None,
    "is_model_ddp": False,
    "load_monolith_rank0_only": False,
    "precision_config": None,
    "seed": 0,
}


class Double(State):
    """As tests of others have it: without the constructor."""

    def __init__(self):
        self.model = MODEL


@pytest.mark.parametrize("make", [lambda: State(model=MODEL), Double], ids=["state", "double"])
class TestEveryName:
    @pytest.mark.parametrize("name", SETTABLE)
    def test_set(self, make, name):
        given, expected = SETTABLE[name]
        state = make()
        getattr(state, name, None)
        setattr(state, name, given)
        assert getattr(state, name) == expected
        other = make()
        setattr(other, name, given)  # before anything was read
        assert getattr(other, name) == expected

    @pytest.mark.parametrize("name", READABLE)
    def test_read(self, make, name):
        assert getattr(make(), name) == READABLE[name]

    def test_all_at_once(self, make):
        state = make()
        for name in sorted(SETTABLE, key=lambda name: name == "dataloader_len"):  # which is of the data
            setattr(state, name, SETTABLE[name][0])
        for name, (_, expected) in SETTABLE.items():
            assert getattr(state, name) == expected
        state.scaler = state.device = None
        assert copy.deepcopy(state).max_duration == "3ep"

    def test_methods(self, make):
        state = make()
        state.max_duration = "10ba"
        state.timestamp = Timestamp(batch=5)
        assert state.get_elapsed_duration() == "0.5dur"
        state.stop_training()
        assert state.finished
        state.set_dataloader(LOADER, "train", 1)
        state.batch = {"x": 1}
        state.batch_set_item("x", 2)
        assert (state.dataloader_len, state.batch_get_item("x")) == (Time(1, "ba"), 2)


def test_lists_keep_their_object():
    state = State(model=MODEL, optimizers=SGD, evaluators=EVALUATOR)
    for name, item in (("optimizers", SGD), ("schedulers", SCHEDULE), ("evaluators", EVALUATOR)):
        before = getattr(state, name)
        setattr(state, name, [item, item])
        assert getattr(state, name) is before == [item, item]
        setattr(state, name, before)  # itself
        assert before == [item, item]
        setattr(state, name, None)
        assert before == []


def test_a_mock_has_every_name():
    double = MagicMock(spec=State)
    for name in {*SETTABLE, *READABLE} - {"model", "run_name", "device"}:
        getattr(double, name)
    double.timestamp = Timestamp(batch=1)
    assert double.timestamp.batch == 1


class TestMicrobatchSize:
    def test_batch_size_is_the_default(self):
        state = State(model=MODEL, train_dataloader=LOADER)
        assert (state.device_train_microbatch_size, state.microbatch_size, state.grad_accum) == (2, None, 1)
        state.device_train_microbatch_size = 1
        assert (state.device_train_microbatch_size, state.microbatch_size, state.grad_accum) == (1, 1, 2)
        assert State(model=MODEL, train_dataloader=[1]).device_train_microbatch_size is None
        assert State(model=MODEL).device_train_microbatch_size is None

    def test_in_a_run(self):
        seen = []

        class Watch(Callback):
            def before_forward(self, state, logger):
                seen.append((len(state.batch[0]), state.device_train_microbatch_size))

            def batch_end(self, state, logger):
                state.device_train_microbatch_size = 3  # a script may set it at any time

        data = DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 1)), batch_size=4)
        trainer = trainer_of(data=data, callbacks=Watch())
        assert trainer.state.device_train_microbatch_size == 4
        trainer.fit()
        assert seen == [(4, 4), (3, 3), (1, 3)]


class TestMetricValues:
    def test_assigned_values_are_kept_until_the_metric_is_updated(self):
        metric = SumMetric()
        metric.update(1.0)
        state = State(model=MODEL)
        state.train_metrics, state.eval_metrics = {"Sum": metric}, {"eval": {"Sum": metric}}
        for values, name in (
            (lambda: state.train_metric_values, "Sum"),
            (lambda: state.eval_metric_values, "eval/Sum"),
        ):
            before = float(metric.compute())
            assert values()[name] == before
            values()["mine"] = 5
            values()[name] = 9.0
            assert (values()["mine"], values()[name]) == (5, 9.0)
            metric.update(1.0)
            assert (values()["mine"], values()[name]) == (5, before + 1)
            values().update(other=1)
            assert values()["other"] == 1

    def test_removed_metrics(self):
        first, second = MeanMetric(), MeanMetric()
        first.update(1.0)
        second.update(2.0)
        state = State(model=MODEL)
        state.train_metrics = {"A": first}
        state.train_metric_values["B"] = 3
        state.train_metrics = {"C": second}
        assert state.train_metric_values == {"B": 3, "C": 2.0}
        state.train_metrics = None
        assert state.train_metric_values == {"B": 3}

    def test_in_a_run(self):
        class Gauntlet(Callback):
            """As clients have it: adds a value of its own after each evaluation."""

            def eval_end(self, state, logger):
                state.eval_metric_values["mine"] = state.evaluations

        data = DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 1)), batch_size=4)
        trainer = trainer_of(data=data, eval_dataloader=data, callbacks=Gauntlet(), max_duration="2ep")
        trainer.fit()
        assert trainer.state.eval_metric_values["mine"] == 2


class TestIterationLength:
    @pytest.mark.parametrize(
        "given, expected",
        [
            ("2ep", Time(2, "ep")),
            ("9tok", Time(9, "tok")),
            (Time(1, "ep"), Time(1, "ep")),
            (3, Time(3, "ep")),
            (None, None),
        ],
    )
    def test_set(self, given, expected):
        state = State(model=MODEL)
        assert state._iteration_length is None
        state._iteration_length = given
        assert state._iteration_length == expected

    def test_in_batches(self):
        with pytest.raises(NotImplementedError, match="'2ba' must be in epochs or tokens"):
            State(model=MODEL)._iteration_length = "2ba"

    def test_in_a_run(self):
        ends = []

        class Watch(Callback):
            def iteration_end(self, state, logger):
                ends.append(int(state.timestamp.epoch))

        trainer = trainer_of(callbacks=Watch(), max_duration="4ep")
        trainer.state._iteration_length = "2ep"
        trainer.fit()
        assert ends == [2, 4]


def test_the_welcome_tour():
    """As the predecessor's guide makes a state."""
    state = State(
        model=MODEL,
        rank_zero_seed=0,
        run_name="tour",
        device=DeviceCPU(),
        max_duration="3ep",
        dataloader=LOADER,
        optimizers=SGD,
    )
    assert (state.dataloader, state.dataloader_label, state.dataloader_len) == (LOADER, "train", Time(3, "ba"))


def test_the_mesh_of_a_sharded_run():
    trainer = trainer_of(parallelism_config={"fsdp": {}})
    assert trainer.state.device_mesh.mesh_dim_names == ("data_parallel_shard",)
    trainer.close()
    torch.distributed.destroy_process_group()
    assert trainer_of().state.device_mesh is None


def test_a_data_spec_is_unwrapped():
    state = State(model=MODEL)
    state._train_dataloader = DataSpec(LOADER)
    assert state._train_dataloader is state.train_dataloader is LOADER
    assert SimpleNamespace(state=state).state.dataloader_len == 3
