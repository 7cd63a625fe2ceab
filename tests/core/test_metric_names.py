"""One metric, three spellings, everywhere a metric is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchmetrics import Accuracy

from composer import Evaluator, Trainer
from composer.callbacks import CheckpointSaver, EarlyStopper, ThresholdStopper
from composer.core.metric_names import find_metric, spellings
from composer.models import ComposerClassifier
from composer.optim import ReduceOnPlateauScheduler
from tests.common import CLASSES, FEATURES, labeled_data

SPELLINGS = [{"monitor": "eval/Acc"}, {"monitor": "metrics/eval/Acc"}, {"monitor": "Acc"}]
LABELED = [{**one, "dataloader_label": "eval"} for one in SPELLINGS]


def trainer(eval_dataloader=None, **arguments) -> Trainer:
    accuracy = {"Acc": Accuracy("multiclass", num_classes=CLASSES)}
    torch.manual_seed(1)
    model = ComposerClassifier(nn.Linear(FEATURES, CLASSES), train_metrics=accuracy, val_metrics=accuracy)
    return Trainer(
        model=model,
        train_dataloader=labeled_data(),
        eval_dataloader=labeled_data(2, seed=2) if eval_dataloader is None else eval_dataloader,
        optimizers=torch.optim.SGD(model.parameters(), lr=1e-9),
        max_duration="5ep",
        progress_bar=False,
        **arguments,
    )


@pytest.mark.parametrize("names", SPELLINGS + LABELED, ids=str)
def test_stoppers(names) -> None:
    runs = [EarlyStopper(**names, patience=1), ThresholdStopper(**names, threshold=-1.0)]
    epochs = []
    for stopper in runs:
        run = trainer(callbacks=stopper)
        run.fit()
        epochs.append(int(run.state.timestamp.epoch))
    assert epochs == [3, 1]
    assert "Acc" in str(run.state.stop)


@pytest.mark.parametrize("names", SPELLINGS, ids=str)
def test_checkpoints_and_schedules(names, tmp_path) -> None:
    saver = CheckpointSaver(str(tmp_path), keep_best=1, **names)
    schedule = ReduceOnPlateauScheduler(**names, patience=0)
    run = trainer(callbacks=saver, schedulers=schedule)
    run.fit()
    assert schedule.multiplier < 1
    for other in SPELLINGS:
        assert run.load_best(**other).path == saver.best_checkpoint.path
    with pytest.raises(ValueError, match="monitor must be one of"):
        run.load_best("Ac")


@pytest.mark.parametrize("name", ["Acc", "eval/Acc", "metrics/eval/Acc"])
def test_evaluators_and_logged_values(name) -> None:
    evaluator = Evaluator(label="eval", dataloader=labeled_data(1), metric_names=[name])
    run = trainer(evaluator, loggers="in_memory")
    assert list(run.state.eval_metrics["eval"]) == ["Acc"]
    run.eval()
    if name != "Acc":
        assert len(run.logger.destinations[0].get_timeseries(name)[name]) == 1
    with pytest.raises(ValueError, match=r"matches none of the model's metrics.*Did you mean 'Acc'"):
        trainer(Evaluator(label="eval", dataloader=labeled_data(1), metric_names=["eval/Accc"]))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            {"monitor": "Accc"},
            r"'Accc' is not a metric of this run\. Did you mean 'eval/Acc'\? The metrics are 'eval/Acc', 'train",
        ),
        ({"monitor": "metrics/eval/Ac"}, "Did you mean 'eval/Acc'"),
        ({"monitor": "eval/Ac", "dataloader_label": "eval"}, "is not a metric of the data 'eval'. Did you mean 'Acc'"),
        ({"monitor": "Acc", "dataloader_label": "evla"}, "is not a label of the data of this run. Did you mean 'eval'"),
        ({"monitor": "train/Acc", "dataloader_label": "eval"}, "of other data than dataloader_label='eval'"),
    ],
)
def test_wrong_names_are_refused_before_training(names, message) -> None:
    run = trainer(callbacks=EarlyStopper(**names))
    with pytest.raises(ValueError, match=message):
        run.fit()
    assert run.state.timestamp.batch == 0


def test_types() -> None:
    for make in (EarlyStopper, ReduceOnPlateauScheduler, lambda m: ThresholdStopper(m, threshold=1),
                 lambda m: CheckpointSaver(monitor=m, keep_best=1)):  # fmt: skip
        with pytest.raises(TypeError, match="monitor must be the name of a metric such as 'eval/Accuracy', but got 3"):
            make(3)
    with pytest.raises(TypeError, match=r"pass ThresholdStopper\('eval/Acc', threshold=\.\.\.\)"):
        ThresholdStopper("eval/Acc", 0.9)
    with pytest.raises(TypeError, match="threshold is required"):
        ThresholdStopper("eval/Acc")
    with pytest.raises(TypeError, match="dataloader_label must be a string"):
        EarlyStopper("Acc", 3)


def test_multiple_evaluators_require_a_label() -> None:
    known = {"a/b": {"Acc": 1}, "eval": {"Acc": 2, "eval/Acc": 3}, "train": {"Acc": 4, "Loss": 5}}
    with pytest.raises(ValueError, match="several evaluators; give one of 'a/b/Acc', 'eval/Acc'"):
        find_metric(known, "Acc", training="train")
    for label, name in (("a/b", "Acc"), ("train", "Acc"), ("train", "Loss")):
        for written in spellings(label, name)[1:]:
            assert find_metric(known, written, training="train") == (label, name)
    assert find_metric(known, "Loss", training="train") == ("train", "Loss")
    # A metric's own name goes first.
    assert find_metric(known, "eval/Acc", training="train") == ("eval", "eval/Acc")


def test_the_training_data_by_its_label() -> None:
    for monitor in ("Acc", "train/Acc", "metrics/train/Acc"):
        run = trainer([], callbacks=EarlyStopper(monitor, patience=1))
        run.fit()
        assert run.state.timestamp.epoch == 3


def test_an_evaluation_outside_of_a_fit_is_left_alone() -> None:
    run = trainer([], callbacks=EarlyStopper("eval/Acc"))
    run.eval({"test": labeled_data(1)})
    run.eval(labeled_data(1))
    assert run.state.callbacks[0].best is not None


def test_evaluators_by_a_mapping() -> None:
    evaluator = Evaluator(label="d", dataloader=labeled_data(1))
    run = trainer({"a": labeled_data(1), "b/c": labeled_data(1), "d": evaluator}, callbacks=EarlyStopper("b/c/Acc"))
    run.fit()
    assert set(run.state.eval_metrics) == {"a", "b/c", "d"}
    assert run.state.timestamp.epoch == 3
    run.eval({"e": {"dataloader": labeled_data(1)}})
    assert "e/Acc" in run.state.eval_metric_values


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": torch.zeros(2, 4), "y": torch.zeros(2)}, r"eval_dataloader\['x'\]: must be a loader; got Tensor"),
        ({0: []}, r"eval_dataloader\[0\]: a key is the label of an evaluator, which must be a string"),
        ({"a": 3}, r"eval_dataloader\['a'\] must be iterable"),
        ({"a": None}, r"eval_dataloader\['a'\]: must be a loader; got NoneType"),
        ({"a": Evaluator(label="b", dataloader=[])}, "the evaluator has the label 'b'; use it as the key"),
    ],
    ids=["tensors", "number as label", "number", "none", "another label"],
)
def test_invalid_mappings_of_loaders(given, message) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        trainer(given)


def test_data_spec_arguments_are_not_a_mapping_of_loaders() -> None:
    run = trainer({"dataloader": labeled_data(1), "num_samples": 2})
    assert [(one.label, one.dataloader.num_samples) for one in run.state.evaluators] == [("eval", 2)]
