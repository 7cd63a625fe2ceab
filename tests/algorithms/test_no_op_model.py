from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassF1Score

from composer import Evaluator
from composer.algorithms import NoOpModel
from composer.algorithms.no_op_model import NoOpModelClass
from composer.callbacks import EarlyStopper
from composer.metrics import LanguageCrossEntropy
from composer.models import ComposerClassifier, HuggingFaceModel
from tests import loop
from tests.algorithms.cases import Case, make_batches, make_model
from tests.common import CLASSES, Regression, classifier, labeled_data, regression_data, trainer_of
from tests.models import tiny

CASE = Case(
    make=NoOpModel,
    by_hand=None,
    why_no_function="it replaces the entire model",
    neutral=None,
    why_not_neutral="it has no setting",
    graphs=0,
)


def test_one_step_by_hand():
    model = NoOpModelClass(nn.Linear(2, 2))
    batch = torch.zeros(2, 1), torch.tensor([1, 3])
    outputs = model(batch)
    assert outputs.tolist() == [1.5, 4.5]
    loss = model.loss(outputs, batch)
    assert loss.item() == pytest.approx((0.5**2 + 1.5**2) / 2)
    loss.backward()
    assert model.weights.grad.item() == pytest.approx((2 * 0.5 * 1 + 2 * 1.5 * 3) / 2)


def test_optimizer_learns_the_number_only():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    engine = loop.start(model, [NoOpModel()], optimizer)
    new = engine.state.model
    assert isinstance(new, NoOpModelClass)
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == [id(new.weights)]
    before = new.weights.item()
    loop.fit(engine, make_batches())
    assert 1 < new.weights.item() < before


@pytest.mark.parametrize(
    "batch",
    [
        (torch.zeros(2), torch.tensor([1, 2])),
        [torch.zeros(2), {"a": torch.zeros(2), "b": torch.tensor([1, 2])}],
        {"labels": torch.tensor([1, 2]), "z": torch.zeros(2)},
        {"image": torch.zeros(2), "class": torch.tensor([1, 2])},
        torch.tensor([1.0, 2.0]),
    ],
)
def test_batches(batch):
    assert NoOpModelClass(nn.Linear(1, 1))(batch).tolist() == [1.5, 3.0]


def images(classes: int = 3) -> Any:
    return [(torch.rand(2, 2, 4, 4), torch.randint(classes, (2, 4, 4))) for _ in range(3)]


def soft() -> Any:
    return [(torch.rand(2, 4), torch.rand(2, CLASSES)) for _ in range(3)]


def texts() -> Any:
    tokens = torch.randint(tiny.VOCABULARY, (2, 8))
    return [{"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}] * 3


def language_model() -> HuggingFaceModel:
    return HuggingFaceModel(tiny.gpt2(), metrics=[LanguageCrossEntropy()], use_logits=True)


@pytest.mark.parametrize(
    ("make", "data", "metric"),
    [
        (classifier, labeled_data, "CrossEntropy"),
        (classifier, soft, "MulticlassAccuracy"),
        (lambda: ComposerClassifier(nn.Conv2d(2, 3, 1), num_classes=3), images, "MulticlassAccuracy"),
        (lambda: ComposerClassifier(nn.Linear(4, 3), val_metrics=MulticlassF1Score(3), num_classes=3), soft, ".*F1"),
        (lambda: Regression(metrics=True), regression_data, "MeanSquaredError"),
        (language_model, texts, "LanguageCrossEntropy"),
    ],
)
def test_any_model_with_its_metrics_and_evaluators(make, data, metric):
    """The metrics keep their names, for evaluators, trackers and monitors, and have no values."""
    model = make()
    names = {is_train: list(model.get_metrics(is_train)) for is_train in (True, False)}
    evaluators = [
        Evaluator(label="one", dataloader=data(), metric_names=[metric]),
        Evaluator(label="all", dataloader=data()),
    ]
    watching = EarlyStopper(names[False][0], "all", patience="1ba")
    trainer = trainer_of(
        model, data(), eval_dataloader=evaluators, algorithms=NoOpModel(), callbacks=watching, max_duration="2ba"
    )
    trainer.fit()
    state = trainer.state
    assert isinstance(state.model, NoOpModelClass) and state.model.logger is trainer.logger
    assert state.timestamp.batch == 2 and torch.isfinite(state.loss)
    assert list(state.train_metrics) == names[True] and list(state.eval_metrics["all"]) == names[False]
    assert len(state.eval_metrics["one"]) == 1
    for found in (state.train_metrics, *state.eval_metrics.values()):
        assert all(torch.isnan(one.compute()) for one in found.values())
    for name, one in state.eval_metrics["all"].items():
        assert one.higher_is_better is model.get_metrics(False)[name].higher_is_better


def test_batch_without_tensors():
    with pytest.raises(TypeError, match="requires a tensor among the targets"):
        NoOpModelClass(nn.Linear(1, 1))(("text", "text"))


def test_takes_over_what_others_ask_for():
    original = nn.Linear(1, 1)
    original.num_classes = 7
    model = NoOpModelClass(original)
    assert model.num_classes == 7
    assert not hasattr(NoOpModelClass(nn.ReLU()), "num_classes")
    assert model.get_metrics(is_train=True) == NoOpModelClass(make_model()).get_metrics(is_train=False) == {}
    assert model.eval_forward((None, torch.ones(1))).tolist() == [1.5]
    assert NoOpModel.required_on_load()
