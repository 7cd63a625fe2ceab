from __future__ import annotations

import re

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, SumMetric

from composer.core import DataSpec, Evaluator, Event, State, Time, Timestamp, ensure_evaluator


def evaluator_of(**arguments) -> Evaluator:
    return Evaluator(**{"label": "test", "dataloader": [1, 2], **arguments})


def metrics():
    return {"MulticlassAccuracy": MeanMetric(), "CrossEntropy": MeanMetric(), "TopAccuracy": SumMetric()}


class TestSelect:
    def test_all_by_default(self):
        assert list(evaluator_of().__select__(metrics())) == list(metrics())

    @pytest.mark.parametrize(
        ("asked", "found"),
        [
            ([], []),
            (["MulticlassAccuracy"], ["MulticlassAccuracy"]),
            (["accuracy"], ["MulticlassAccuracy", "TopAccuracy"]),
            (["TopAccuracy", "cross"], ["CrossEntropy", "TopAccuracy"]),
            (["^multi", "MulticlassAccuracy"], ["MulticlassAccuracy"]),
            (["class|entropy"], ["MulticlassAccuracy", "CrossEntropy"]),
            (["Top|Cross"], ["CrossEntropy", "TopAccuracy"]),
            (["C.*y$"], ["MulticlassAccuracy", "CrossEntropy", "TopAccuracy"]),
        ],
    )
    def test_by_patterns_in_the_models_order(self, asked, found):
        assert list(evaluator_of(metric_names=asked).__select__(metrics())) == found

    @pytest.mark.parametrize("asked", [None, ["Accuracy"]])
    def test_copies(self, asked):
        given = metrics()
        chosen = evaluator_of(metric_names=asked).__select__(given)
        chosen["TopAccuracy"].update(torch.tensor(1.0))
        assert not given["TopAccuracy"].update_called
        assert type(chosen["TopAccuracy"]) is SumMetric

    def test_unknown_metric_name(self):
        message = (
            "Evaluator 'test': metric_names has 'CrosEntropy', which matches none of the model's metrics "
            "['CrossEntropy', 'MulticlassAccuracy', 'TopAccuracy']. Did you mean 'CrossEntropy'?"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            evaluator_of(metric_names=["accuracy", "CrosEntropy"]).__select__(metrics())
        with pytest.raises(ValueError, match=re.escape("none of the model's metrics [].")):
            evaluator_of(metric_names=["accuracy"]).__select__({})

    def test_invalid_patterns(self):
        message = (
            "Evaluator 'test': metric_names has 'F1(', which is not a valid regular expression: missing ), "
            "unterminated subpattern at position 2. Escape special characters: 'F1\\\\('."
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            evaluator_of(metric_names=["F1("]).__select__({"F1(macro)": MeanMetric()})
        assert list(evaluator_of(metric_names=["F1\\("]).__select__({"F1(macro)": MeanMetric()})) == ["F1(macro)"]


class TestArguments:
    @pytest.mark.parametrize("names", ["Accuracy", ("Accuracy",), [1], {"Accuracy": 1}])
    def test_metric_names(self, names):
        message = f"metric_names must be a list of strings; got {names!r}."
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            evaluator_of(metric_names=names)

    @pytest.mark.parametrize("size", [0, -1, 0.5, "many"])
    def test_microbatch_size(self, size):
        message = f"device_eval_microbatch_size must be a positive integer, or 'auto' to determine it; got {size!r}."
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            evaluator_of(device_eval_microbatch_size=size)
        assert evaluator_of(device_eval_microbatch_size=3).device_eval_microbatch_size == 3

    def test_automatic_microbatch_size(self):
        evaluator = evaluator_of(device_eval_microbatch_size="auto")
        assert evaluator.auto_microbatching
        assert evaluator.device_eval_microbatch_size is None
        assert not evaluator_of(device_eval_microbatch_size=3).auto_microbatching

    def test_batch_size_is_the_default_microbatch_size(self):
        loader = DataLoader(TensorDataset(torch.zeros(6)), batch_size=4)
        for given, shown in ((None, 4), ("auto", 4), (3, 3)):
            evaluator = evaluator_of(dataloader=loader, device_eval_microbatch_size=given)
            assert evaluator.device_eval_microbatch_size == shown
            evaluator.device_eval_microbatch_size = 2
            assert (evaluator.device_eval_microbatch_size, evaluator.microbatch_size) == (2, 2)

    @pytest.mark.parametrize("count", [0, -2])
    def test_subset(self, count):
        message = f"subset_num_batches must be positive, or -1 for all; got {count!r}."
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            evaluator_of(subset_num_batches=count)

    @pytest.mark.parametrize("count", [0.5, "all"])
    def test_subset_that_is_not_whole(self, count):
        with pytest.raises(TypeError, match=f"^subset_num_batches must be an integer, but got {count!r} of type"):
            evaluator_of(subset_num_batches=count)

    @pytest.mark.parametrize("count", [None, -1, 5, 5.0])
    def test_subset_given(self, count):
        assert evaluator_of(subset_num_batches=count).subset_num_batches == count

    def test_data(self):
        spec = DataSpec([1])
        assert evaluator_of(dataloader=spec).dataloader is spec
        assert evaluator_of(dataloader={"dataloader": [1], "num_samples": 3}).dataloader.num_samples == 3
        with pytest.raises(TypeError, match="dataloader must be iterable"):
            evaluator_of(dataloader=3)


class TestInterval:
    @staticmethod
    def due(interval, epoch, event):
        state = State(model=torch.nn.Linear(1, 1), max_duration="10ep")
        state.previous_timestamp = Timestamp(epoch=epoch - 1, batch=epoch * 3 - 1)
        state.timestamp = Timestamp(epoch=epoch, batch=epoch * 3)
        check = evaluator_of(eval_interval=interval).eval_interval
        assert check is not None
        return check(state, event)

    @pytest.mark.parametrize("interval", [2, "2ep", Time(2, "ep")])
    def test_a_time(self, interval):
        found = [self.due(interval, epoch, Event.EPOCH_END) for epoch in range(1, 5)]
        assert found == [False, True, False, True]
        assert not self.due(interval, 2, Event.BATCH_END)

    def test_a_function_and_none(self):
        check = lambda state, event: True  # noqa: E731
        evaluator = evaluator_of(eval_interval=check)
        assert evaluator.eval_interval is check
        evaluator.eval_interval = None
        assert evaluator.eval_interval is None
        assert evaluator_of().eval_interval is None

    def test_invalid_intervals(self):
        with pytest.raises(ValueError, match="soon"):
            evaluator_of(eval_interval="soon")


class TestEnsure:
    def test_evaluator_is_returned_unchanged(self):
        evaluator = evaluator_of()
        assert ensure_evaluator(evaluator, ["x"]) is evaluator

    def test_data_get_a_label(self):
        evaluator = ensure_evaluator([1, 2])
        assert (evaluator.label, evaluator.metric_names, evaluator.dataloader.__length__) == ("eval", None, 2)
        assert ensure_evaluator(DataSpec([1]), ("Accuracy",)).metric_names == ["Accuracy"]
        assert ensure_evaluator({"dataloader": [1]}, []).metric_names == []
