"""Names of classes, from the metric or from the data."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset
from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassRecall

from composer.core import DataSpec
from composer.metrics.class_names import array_axes, class_names


def dataset(classes=("cat", "dog")) -> TensorDataset:
    data = TensorDataset(torch.zeros(4))
    data.classes = classes
    return data


def test_metric_before_data() -> None:
    metric = MulticlassConfusionMatrix(2)
    assert array_axes(metric) == ((), "target", "predicted")
    assert array_axes(metric, dataset()).classes == ("cat", "dog")
    metric.labels = ["ham", "spam"]
    assert array_axes(metric, dataset()).classes == ("ham", "spam")
    assert array_axes(MulticlassRecall(2, average=None), dataset()) == (("cat", "dog"), "", "")


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: Subset(Subset(d, [0]), [0]), DataLoader, DataSpec])
def test_wrapped_data(wrap) -> None:
    data = dataset(["cat", "dog"])
    loader = DataLoader(data) if wrap is DataSpec else data
    assert class_names(wrap(loader)) == ("cat", "dog")


def test_hugging_face_features() -> None:
    label = SimpleNamespace(names=["neg", "pos"])
    assert class_names(SimpleNamespace(features={"text": None, "label": label})) == ("neg", "pos")
    assert class_names(SimpleNamespace(features={"text": None, "labels": label})) == ("neg", "pos")


@pytest.mark.parametrize("classes", [10, "ab", [0, 1], None, object(), {"cat": 0}])
def test_other_attributes_of_that_name(classes) -> None:
    assert class_names(dataset(classes)) == ()
    endless = SimpleNamespace()
    endless.dataset = endless
    assert class_names(endless) == ()
