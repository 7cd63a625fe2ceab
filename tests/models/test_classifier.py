from __future__ import annotations

import copy
import functools
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

import composer.models
import composer.models.tasks
from composer.core.model import ComposerModel
from composer.loss import binary_cross_entropy_with_logits, soft_cross_entropy
from composer.metrics import CrossEntropy
from composer.models import ComposerClassifier
from composer.warnings import ComposerWarning
from tests import after_torch
from tests.common import trainer_of


def net(num_classes: int | None = None) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Linear(4, 3)
    if num_classes is not None:
        module.num_classes = num_classes  # type: ignore[assignment]
    return module


def batch(size: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(size, 4, generator=generator), torch.randint(3, (size,), generator=generator)


def test_it_has_its_old_homes() -> None:
    assert composer.models.tasks.ComposerClassifier is ComposerClassifier
    assert composer.models.ComposerModel is ComposerModel
    assert issubclass(ComposerClassifier, ComposerModel)


def test_forward_and_loss() -> None:
    model, (x, y) = ComposerClassifier(net(), num_classes=3), batch()
    outputs = model((x, y))
    assert torch.equal(outputs, model.module(x))
    torch.testing.assert_close(model.loss(outputs, (x, y)), F.cross_entropy(outputs, y))
    assert torch.equal(model.eval_forward((x, y)), outputs)


def test_pairs_may_be_lists_or_named() -> None:
    model, (x, y) = ComposerClassifier(net(), num_classes=3), batch()
    pair = namedtuple("pair", "image label")
    for each in ([x, y], pair(x, y)):
        assert torch.equal(model(each), model((x, y)))


@pytest.mark.parametrize(
    "wrong",
    [{"x": torch.ones(2, 4), "y": torch.zeros(2)}, torch.ones(2, 4), (torch.ones(2, 4),), (1, 2, 3), None],
)
def test_other_batches_are_refused(wrong: object) -> None:
    model = ComposerClassifier(net(), num_classes=3)
    for use in (
        lambda: model(wrong),
        lambda: model.loss(torch.zeros(2, 3), wrong),
        lambda: model.update_metric(wrong, torch.zeros(2, 3), CrossEntropy()),
    ):
        with pytest.raises(TypeError, match=r"\(x, y\).*ComposerModel"):
            use()


def test_loss_fn_of_the_users_own_gets_extra_arguments() -> None:
    model = ComposerClassifier(net(), 3, loss_fn=binary_cross_entropy_with_logits)
    outputs, pair = model(batch()), batch()
    expected = binary_cross_entropy_with_logits(outputs, pair[1], reduction="mean", scale_by_batch_size=False)
    assert torch.equal(model.loss(outputs, pair, reduction="mean", scale_by_batch_size=False), expected)
    assert torch.equal(model.loss(outputs, pair, None, "mean", None, False), expected)
    partial = ComposerClassifier(net(), 3, loss_fn=functools.partial(soft_cross_entropy, ignore_index=0))
    torch.testing.assert_close(partial.loss(outputs, pair), F.cross_entropy(outputs, pair[1], ignore_index=0))


def test_a_loss_module_moves_with_the_model() -> None:
    model = ComposerClassifier(net(), 3, loss_fn=nn.CrossEntropyLoss(weight=torch.ones(3))).double()
    assert model._loss_fn.weight.dtype == torch.float64  # type: ignore[union-attr]


def test_default_metrics() -> None:
    model, pair = ComposerClassifier(net(), num_classes=3), batch()
    assert list(model.get_metrics(is_train=True)) == ["MulticlassAccuracy"]
    assert list(model.get_metrics()) == ["CrossEntropy", "MulticlassAccuracy"]
    outputs = model(pair)
    metrics = {name: copy.deepcopy(metric) for name, metric in model.get_metrics(is_train=False).items()}
    for metric in metrics.values():
        model.update_metric(pair, outputs, metric)
    assert isinstance(metrics["MulticlassAccuracy"], MulticlassAccuracy)
    torch.testing.assert_close(metrics["CrossEntropy"].compute(), F.cross_entropy(outputs, pair[1]))
    torch.testing.assert_close(metrics["MulticlassAccuracy"].compute(), (outputs.argmax(1) == pair[1]).float().mean())


def test_train_and_val_do_not_share_a_metric() -> None:
    model = ComposerClassifier(net(), num_classes=3)
    assert model.get_metrics(True)["MulticlassAccuracy"] is not model.get_metrics(False)["MulticlassAccuracy"]


def test_forms_of_metrics() -> None:
    accuracy, f1 = MulticlassAccuracy(3), MulticlassF1Score(3)
    assert ComposerClassifier(net(), 3, train_metrics=accuracy).get_metrics(True) == {"MulticlassAccuracy": accuracy}
    collection = MetricCollection([accuracy, f1], prefix="my_")
    model = ComposerClassifier(net(), train_metrics=collection, val_metrics={"f": f1})
    assert list(model.get_metrics(True)) == ["my_MulticlassAccuracy", "my_MulticlassF1Score"]
    assert model.get_metrics(False) == {"f": f1}
    for metric in model.get_metrics(True).values():
        model.update_metric(batch(), model(batch()), metric)
        assert torch.isfinite(metric.compute())


@pytest.mark.parametrize("wrong", ["accuracy", ["accuracy"], {"accuracy": "accuracy"}])
def test_other_forms_are_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="val_metrics"):
        ComposerClassifier(net(), 3, val_metrics=wrong)  # type: ignore[arg-type]


def test_the_modules_number_of_classes_is_used() -> None:
    model = ComposerClassifier(net(num_classes=3))
    assert model.num_classes == 3
    assert model.get_metrics(True)["MulticlassAccuracy"].num_classes == 3
    assert ComposerClassifier(net(num_classes=3), num_classes=3).num_classes == 3
    with pytest.warns(ComposerWarning, match="num_classes=5 .*num_classes=3") as caught:
        assert ComposerClassifier(net(num_classes=3), num_classes=5).num_classes == 3
    assert caught[0].filename == __file__


def test_a_module_without_a_number_of_its_own() -> None:
    for other in (0, "many", nn.Linear):  # a headless model says 0; others use the name for something else
        assert ComposerClassifier(net(other), num_classes=3).num_classes == 3  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{}, {"train_metrics": {}}, {"val_metrics": {}}])
def test_default_metrics_need_the_number_of_classes(given: dict[str, dict]) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match="num_classes is required"):
        ComposerClassifier(net(), **given)


def test_no_metrics_need_no_number_and_no_torchmetrics() -> None:
    code = (
        "import sys, torch; from composer.models import ComposerClassifier\n"
        "model = ComposerClassifier(torch.nn.Linear(2, 2), train_metrics={}, val_metrics={})\n"
        "assert model.num_classes is None and model.get_metrics(True) == model.get_metrics(False) == {}\n"
        "assert 'torchmetrics' not in sys.modules\n"
    )
    done = after_torch.run(code, warn="ignore")
    assert done.returncode == 0, done.stderr


def test_metrics_are_no_part_of_the_model() -> None:
    model = ComposerClassifier(net(), num_classes=3)
    assert set(model.state_dict()) == {"module.weight", "module.bias"}
    assert [name for name, _ in model.named_modules()] == ["", "module"]


@pytest.mark.parametrize("phase", ["train", "val"])
def test_metrics_may_be_set_afterwards(phase: str) -> None:
    model, f1 = ComposerClassifier(net(), num_classes=3), MulticlassF1Score(3)
    named: list[tuple[object, dict[str, object]]] = [
        (f1, {"MulticlassF1Score": f1}),
        (collection := MetricCollection([f1], prefix="my_"), {"my_MulticlassF1Score": collection["MulticlassF1Score"]}),
        ({"f": f1}, {"f": f1}),
        ([f1], {"MulticlassF1Score": f1}),
        (None, {}),
    ]
    for given, expected in named:
        setattr(model, f"{phase}_metrics", given)
        assert getattr(model, f"{phase}_metrics") is given  # as it was set
        assert model.get_metrics(is_train=phase == "train") == expected
        assert [name for name, _ in model.named_modules()] == ["", "module"]
    with pytest.raises(TypeError, match=f"{phase}_metrics must be a Metric"):
        setattr(model, f"{phase}_metrics", "accuracy")
    twin = copy.deepcopy(model)
    twin.val_metrics = f1
    assert list(twin.get_metrics()) == ["MulticlassF1Score"]


def test_the_trainer_uses_metrics_that_were_set() -> None:
    model = ComposerClassifier(net(), num_classes=3)
    model.train_metrics, model.val_metrics = MulticlassF1Score(3), MulticlassF1Score(3)
    trainer = trainer_of(model, [batch()], eval_dataloader=[batch()])
    trainer.fit()
    assert list(trainer.state.train_metrics) == list(trainer.state.eval_metrics["eval"]) == ["MulticlassF1Score"]


def test_the_loss_may_be_set_afterwards() -> None:
    model, pair = ComposerClassifier(net(), num_classes=3), batch()
    model._loss_fn = lambda outputs, targets: outputs.sum() * 0 + 7
    assert model.loss(model(pair), pair).item() == 7
    model._loss_fn = nn.CrossEntropyLoss(weight=torch.ones(3))
    torch.testing.assert_close(model.loss(model(pair), pair), F.cross_entropy(model(pair), pair[1]))
    assert "_loss_fn.weight" in model.state_dict()  # as in checkpoints of the predecessor


def test_get_metrics_hands_out_a_dict_that_can_be_changed() -> None:
    model = ComposerClassifier(net(), num_classes=3)
    model.get_metrics(True).clear()
    assert list(model.get_metrics(True)) == ["MulticlassAccuracy"]


def test_it_learns() -> None:
    model, pair = ComposerClassifier(net(), num_classes=3), batch(12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(20):
        loss = model.loss(model(pair), pair)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
