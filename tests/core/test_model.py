from __future__ import annotations

import copy
import pickle
import re

import pytest
import torch
from torchmetrics import MeanMetric, MeanSquaredError, MetricCollection

from composer.core import ComposerModel, Logger, State
from tests.common import Regression


class Modern(ComposerModel):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)
        self.calls = 0

    def forward(self, batch):
        self.calls += 1
        return self.linear(batch[0])


class Early(Modern):
    """As models were written for the first versions."""

    def loss(self, outputs, batch):
        return torch.nn.functional.mse_loss(outputs, batch[1])

    def validate(self, batch):
        return self.forward(batch), batch[1]

    def metrics(self, train=False):
        return MeanSquaredError() if train else MetricCollection([MeanSquaredError(), MeanMetric()])


BATCH = (torch.ones(4, 2), torch.zeros(4, 1))


class TestModern:
    def test_forward_and_loss_must_be_defined(self):
        class Nothing(ComposerModel):
            pass

        with pytest.raises(NotImplementedError, match=re.escape("Nothing must define forward(self, batch).")):
            Nothing()(BATCH)
        with pytest.raises(NotImplementedError, match=re.escape("Nothing must define loss(self, outputs, batch).")):
            Nothing().loss(None, BATCH)

    def test_eval_forward_uses_outputs_that_are_there(self):
        model = Modern()
        outputs = model.eval_forward(BATCH)
        assert torch.equal(outputs, model.linear(BATCH[0]))
        assert model.eval_forward(BATCH, outputs) is outputs
        assert model.calls == 1

    def test_no_metrics_by_default(self):
        assert Modern().get_metrics(is_train=True) == Modern().get_metrics(is_train=False) == {}

    def test_metrics_need_update_metric(self):
        message = (
            "Modern has metrics, so it must define update_metric(self, batch, outputs, metric), for a classifier: "
            "metric.update(outputs, batch[1])."
        )
        with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
            Modern().update_metric(BATCH, None, MeanMetric())


class TestEarly:
    def test_metrics_by_name(self):
        train, evaluation = (Early().get_metrics(is_train=flag) for flag in (True, False))
        assert {name: type(metric) for name, metric in train.items()} == {"MeanSquaredError": MeanSquaredError}
        assert {name: type(metric) for name, metric in evaluation.items()} == {
            "MeanSquaredError": MeanSquaredError,
            "MeanMetric": MeanMetric,
        }

    def test_metrics_are_updated_with_validate_outputs(self):
        model = Early()
        (metric,) = model.get_metrics(is_train=True).values()
        outputs = model.eval_forward(BATCH)
        model.update_metric(BATCH, outputs, metric)
        torch.testing.assert_close(metric.compute(), model.loss(outputs, BATCH))

    def test_one_of_both_interfaces_only(self):
        class OnlyMetrics(Modern):
            def metrics(self, train):
                return {"a": MeanMetric()}

        assert list(OnlyMetrics().get_metrics(is_train=True)) == ["a"]
        outputs = torch.zeros(1)
        assert OnlyMetrics().eval_forward(BATCH, outputs) is outputs


def with_run(kind):
    model = kind()
    model.logger = Logger(State(model=model))
    if kind is Early:
        model.eval_forward(BATCH)
    return model


@pytest.mark.parametrize("kind", [Modern, Early])
@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_and_pickles_exclude_run_state(kind, copied):
    model = with_run(kind)
    other = copied(model)
    # A copy logs to where the model does; a file cannot.
    assert other.logger is (model.logger if copied in (copy.copy, copy.deepcopy) else None)
    assert not hasattr(other, "_ComposerModel__targets")
    assert model.logger is not None
    assert torch.equal(other(BATCH), model(BATCH))


def test_deep_copies_share_only_the_logger():
    model = with_run(Modern)
    model.linear.twin, model.notes = model.linear, {"of": [model.linear.weight]}
    memo = {}
    other = copy.deepcopy(model, memo)
    assert memo[id(model)] is other and type(other) is Modern
    assert other.linear.weight.data_ptr() != model.linear.weight.data_ptr()
    assert other.linear.twin is other.linear and other.notes["of"][0] is other.linear.weight
    assert copy.deepcopy([model, model])[0].linear is not model.linear
    shallow = copy.copy(model)
    assert shallow.linear is model.linear and shallow.__dict__ is not model.__dict__


def test_copy_of_a_model_without_a_run_has_none():
    assert "logger" not in copy.deepcopy(Modern()).__dict__


def test_logger_is_not_in_the_state_dict():
    assert list(with_run(Early).state_dict()) == ["linear.weight", "linear.bias"]


def test_a_copy_of_a_compiled_model_runs_the_copied_weights() -> None:
    model = Regression()
    model.compile(backend="eager")
    twin = copy.deepcopy(model)
    torch.nn.init.zeros_(twin.linear.weight)
    torch.nn.init.zeros_(twin.linear.bias)
    assert twin((torch.ones(1, 4), None)).item() == 0
