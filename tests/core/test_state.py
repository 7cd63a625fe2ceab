from __future__ import annotations

import copy
import re
from collections import namedtuple

import pytest
import torch
from torch.distributed.tensor.parallel import ColwiseParallel
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from composer.core import Algorithm, Callback, DataSpec, Engine, Evaluator, Precision, State, Time, Timestamp
from composer.devices import DeviceCPU
from composer.parallel.config import as_parallelism_config
from composer.warnings import ComposerWarning
from tests.common import Unsized, trainer_of


def state_of(**fields) -> State:
    return State(model=torch.nn.Linear(1, 1), **fields)


def loader(samples=6, batch_size=2):
    return DataLoader(TensorDataset(torch.arange(samples)), batch_size=batch_size)


class TestConstruction:
    def test_only_a_model_is_needed(self):
        state = state_of()
        assert (state.optimizers, state.schedulers, state.algorithms, state.callbacks, state.evaluators) == ([],) * 5
        assert (state.max_duration, state.batch, state.outputs, state.loss, state.dataloader) == (None,) * 5
        assert (state.train_dataloader, state.dataloader_len, state.previous_timestamp) == (None,) * 3
        assert state.timestamp == state.eval_timestamp == state.predict_timestamp == Timestamp()
        assert state.precision is Precision.FP32
        assert state.dataloader_label == "train"
        assert state.device_train_microbatch_size is None
        assert state.run_name
        assert isinstance(state.device, DeviceCPU)
        assert (state.seed, state.grad_accum) == (0, 1)

    def test_model_without_parameters(self):
        assert isinstance(State(model=torch.nn.Identity()).device, DeviceCPU)

    def test_model_on_another_device(self):
        with torch.device("meta"):
            model = torch.nn.Linear(1, 1)
        assert isinstance(State(model=model, device="cpu").device, DeviceCPU)

    def test_one_or_multiple(self):
        model = torch.nn.Linear(1, 1)
        first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
        assert State(model=model, optimizers=first).optimizers == [first]
        assert State(model=model, optimizers=(first, second)).optimizers == [first, second]
        algorithm, callback = Algorithm(), Callback()
        evaluator = Evaluator(label="e", dataloader=[1])
        state = State(model=model, algorithms=algorithm, callbacks=callback, evaluators=evaluator)
        assert (state.algorithms, state.callbacks, state.evaluators) == ([algorithm], [callback], [evaluator])

    def test_arguments_by_position(self):
        state = State(torch.nn.Linear(1, 1), 3, "name", DeviceCPU(), "4ba", 5)
        assert (state.rank_zero_seed, state.run_name, state.max_duration) == (3, "name", Time(4, "ba"))
        assert state.device_train_microbatch_size == 5

    def test_seed_is_that_of_the_rank(self, monkeypatch):
        monkeypatch.setattr("composer.dist.get_global_rank", lambda: 3)
        assert state_of(rank_zero_seed=40).seed == 43

    def test_precision_is_normalized_whenever_it_is_set(self):
        state = state_of(precision="AMP_BF16")
        assert state.precision is Precision.AMP_BF16
        state.precision = "fp16"
        assert state.precision is Precision.AMP_FP16
        with pytest.raises(ValueError, match="precision must be one of"):
            state.precision = "fp17"
        assert state.precision is Precision.AMP_FP16


class TestData:
    def test_set_and_removed(self):
        data = loader()
        state = state_of(train_dataloader=data)
        assert state.dataloader is state.train_dataloader is data
        assert (state.dataloader_label, state.dataloader_len) == ("train", Time(3, "ba"))
        state.set_dataloader(None)
        assert (state.dataloader, state.dataloader_label, state.dataloader_len) == (None, None, None)
        state.train_dataloader = data
        assert (state.dataloader_label, state.dataloader_len) == ("train", Time(3, "ba"))
        state.train_dataloader = None
        assert state.train_dataloader is None

    def test_a_label_is_needed(self):
        message = "dataloader_label must be given with dataloader; it names the data in metrics."
        with pytest.raises(ValueError, match=re.escape(message)):
            state_of().set_dataloader([1])

    def test_data_of_the_active_phase(self):
        state = state_of(train_dataloader=loader())
        state.phase = state.eval_phase
        assert (state.dataloader, state.dataloader_len) == (None, None)
        state.set_dataloader([1, 2], "test", 1)
        assert (state.dataloader, state.dataloader_label, state.dataloader_len) == ([1, 2], "test", Time(1, "ba"))
        state.train_dataloader = other = loader(8)
        assert state.phase is state.eval_phase
        assert state.train_dataloader is other
        state.phase = state.train_phase
        assert (state.dataloader, state.dataloader_len) == (other, Time(4, "ba"))

    def test_other_data_end_the_current_epoch(self):
        data = loader()
        state = state_of(train_dataloader=data)
        state.train_phase.iterator = iter(data)
        state.set_dataloader(DataSpec(data), "train")
        assert state.train_phase.iterator is not None
        state.set_dataloader(loader(), "train")
        assert state.train_phase.iterator is None

    def test_length(self):
        state = state_of(train_dataloader=loader())
        for given, expected in ((2, 2), (Time(1, "ba"), 1), ("3ba", 3), (-1, 3), (0, 0)):
            state.dataloader_len = given
            assert state.dataloader_len == Time(expected, "ba")

    def test_length_beyond_the_data(self):
        state = state_of(train_dataloader=loader())
        message = "The data has 3 batches per epoch, fewer than dataloader_len=4; 3 are used."
        with pytest.warns(ComposerWarning, match=f"^{re.escape(message)}$") as caught:
            state.dataloader_len = 4
        assert state.dataloader_len == Time(3, "ba")
        assert caught[0].filename == __file__

    def test_length_of_unsized_data(self):
        state = state_of(train_dataloader=Unsized([1, 2]))
        assert state.dataloader_len is None
        state.dataloader_len = 100
        assert state.dataloader_len == Time(100, "ba")
        state.dataloader_len = -1
        assert state.dataloader_len is None

    @pytest.mark.parametrize(("given", "shown"), [("1ep", "'1ep'"), (-2, "'-2ba'")])
    def test_invalid_lengths(self, given, shown):
        state = state_of(train_dataloader=loader())
        message = f"dataloader_len must be a number of batches, or -1 for all; got {shown}."
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            state.dataloader_len = given
        assert state.dataloader_len == Time(3, "ba")

    @pytest.mark.parametrize(("microbatch", "expected"), [(None, 1), (1, 7), (2, 4), (3, 3), (7, 1), (9, 1)])
    def test_grad_accum_is_the_number_of_microbatches(self, microbatch, expected):
        state = state_of(train_dataloader=loader(21, 7), device_train_microbatch_size=microbatch)
        assert state.grad_accum == expected


class TestBatch:
    Pair = namedtuple("Pair", ["x", "y"])

    @pytest.mark.parametrize(
        ("batch", "key", "part", "after"),
        [
            ((1, 2), 1, 2, (1, 9)),
            ([1, 2], -1, 2, [1, 9]),
            ({"x": 1, "y": 2}, "y", 2, {"x": 1, "y": 9}),
            (Pair(1, 2), "y", 2, Pair(1, 9)),
            (({"a": [1, 2]}, 3), "0.a.1", 2, ({"a": [1, 9]}, 3)),
            ({"in": {"ids": 2}}, "in.ids", 2, {"in": {"ids": 9}}),
            ((1, 2), (lambda b: b[1], lambda b, v: (b[0], v)), 2, (1, 9)),
        ],
    )
    def test_batch_items(self, batch, key, part, after):
        state = state_of()
        state.batch = batch
        before = copy.deepcopy(batch)
        assert state.batch_get_item(key) == part
        state.batch_set_item(key, 9)
        assert state.batch == after
        assert type(state.batch) is type(after)
        assert batch == before

    def test_multiple_batch_items(self):
        state = state_of()
        state.batch = {"x": 1, "y": 2, "z": 3}
        assert state.batch_get_item(["z", "x"]) == (3, 1)
        state.batch_set_item(["z", "x"], (30, 10))
        assert state.batch == {"x": 10, "y": 2, "z": 30}
        with pytest.raises(ValueError, match="one value for each of the 2 keys"):
            state.batch_set_item(["z", "x"], [1])
        with pytest.raises(KeyError, match="Did you mean 'x'"):
            state.batch_get_item("X")


class TestMetrics:
    def test_values(self):
        state = state_of()
        first, second, unused = MeanMetric(), MeanMetric(), MeanMetric()
        first.update(1.0)
        second.update(3.0)
        state.train_metrics = {"Mean": first}
        state.eval_metrics = {"a": {"Mean": first, "Unused": unused}, "b": {"Mean": second}}
        assert state.train_metric_values == {"Mean": torch.tensor(1.0)}
        assert state.eval_metric_values == {"Mean": 3.0, "a/Mean": 1.0, "b/Mean": 3.0}


class TestCopies:
    def test_copy_is_independent(self):
        told = []
        state = state_of(algorithms=Algorithm(), callbacks=Callback(), max_duration="3ep")
        engine = Engine(state)
        state.on_listeners_changed(lambda: told.append(1))
        other = copy.deepcopy(state)
        other.algorithms.append(Algorithm())
        other.max_duration = "5ep"
        assert (told, len(state.algorithms), state.max_duration) == ([], 1, Time(3, "ep"))
        assert other.model is not state.model
        assert other.phase is other.train_phase
        engine.state.algorithms.clear()
        assert told == [1]

    def test_lists_of_a_copy_notify_its_engines(self):
        seen = []

        class Sees(Callback):
            def batch_end(self, state, logger):
                seen.append(state)

        other = copy.deepcopy(state_of(callbacks=Callback()))
        engine = Engine(other)
        engine.run_event("batch_end")
        other.callbacks.append(Sees())
        engine.run_event("batch_end")
        assert seen == [other]


class TestShardingAttributes:
    def test_nothing_is_sharded(self):
        state = state_of()
        assert (state.fsdp_config, state.tp_config, state.fsdp_state_dict_type) == (None, None, None)
        assert (state.fsdp_enabled, state.fsdp_config_version, state.load_monolith_rank0_only) == (False, 0, False)
        assert not state.fsdp_sharded_state_dict_enabled

    def test_weights_are_sharded(self):
        config = as_parallelism_config({"fsdp": {"state_dict_type": "sharded", "load_monolith_rank0_only": True}})
        state = state_of(parallelism_config=config)
        assert state.fsdp_config is config.fsdp
        assert (state.fsdp_enabled, state.fsdp_config_version, state.load_monolith_rank0_only) == (True, 2, True)
        assert (state.fsdp_state_dict_type, state.fsdp_sharded_state_dict_enabled) == ("sharded", True)

    def test_layers_are_sharded(self):
        config = as_parallelism_config({"tp": {"tensor_parallel_degree": 2, "layer_plan": {"": ColwiseParallel()}}})
        state = state_of(parallelism_config=config)
        assert state.tp_config is config.tp
        assert not state.fsdp_enabled

    def test_set_by_the_trainer(self):
        trainer = trainer_of(fsdp_config={"state_dict_type": "sharded"})
        assert trainer.state.fsdp_sharded_state_dict_enabled
        assert not trainer.state.is_model_ddp
        trainer.close()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


class TestCustomData:
    def test_label_and_length(self):
        state = state_of(
            dataloader=DataLoader(TensorDataset(torch.zeros(6, 1))), dataloader_label="mine", dataloader_len=4
        )
        assert (state.dataloader_label, state.dataloader_len) == ("mine", Time(4, "ba"))
        assert state.train_dataloader is state.dataloader

    def test_alternative_spelling(self):
        with pytest.raises(ValueError, match="train_dataloader and dataloader are both given"):
            state_of(train_dataloader=[1, 2], dataloader=[1, 2], dataloader_label="mine")
        data = [1, 2]
        assert state_of(train_dataloader=data, dataloader=data, dataloader_label="mine").dataloader_label == "mine"

    def test_no_label_is_needed(self):
        assert state_of(dataloader=[1, 2]).dataloader_label == "train"


class TestPrecisionContext:
    def test_casts_are_cached_unless_disabled(self):
        state = state_of(precision="amp_bf16")
        found = []
        for state.autocast_cache_enabled in (True, False):
            with state.precision_context():
                found.append((torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()))
        assert found == [(True, True), (True, False)]

    def test_it_follows_the_precision(self):
        state = state_of(precision="amp_bf16")
        state.precision = "fp32"
        with torch.autocast("cpu", torch.bfloat16), state.precision_context():
            assert not torch.is_autocast_enabled("cpu")
