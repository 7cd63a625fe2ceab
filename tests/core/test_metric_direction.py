"""Whether higher or lower values of a metric are better: by attribute, by words of its name, without guesses."""

from __future__ import annotations

import pytest
import torchmetrics
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics import classification, wrappers

from composer import metrics
from composer.core.metric_direction import larger_is_better, require_direction


def _words(text: str) -> list[str]:
    return text.split()


LOWER = _words(
    "CrossEntropy CrossEntropyLoss cross_entropy BinaryCrossEntropy WordError WordErrorRate LanguagePerplexity loss "
    "val_loss eval/val_loss loss2 LossMetric MeanSquaredError top5_error hinge_loss_epoch nll wer RMSE"
)
HIGHER = _words(
    "accuracy MulticlassAccuracy val_acc top5_accuracy accuracy@5 Accuracy10 accuracy_top_5 F1 BinaryF1Score "
    "f1-weighted mIoU MIoU miou_val Jaccard MulticlassAUROC auc MeanAveragePrecision mAP Recall Dice BLEUScore "
    "R2Score"
)
UNKNOWN = _words(
    "M Spread terror lossless_ratio glossy LossScale accuracy_drop accuracy_loss error_accuracy AccuracyError "
    "neg_mean_squared_error 1-accuracy -loss one_minus_accuracy inverse_perplexity loss_improvement "
    "perplexity_reduction precisionist throughput"
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [*((name, False) for name in LOWER), *((name, True) for name in HIGHER), *((name, None) for name in UNKNOWN)],
)
def test_names(name, expected) -> None:
    assert larger_is_better(name) is expected


@given(name=st.sampled_from(LOWER + HIGHER), letters=st.text("abcdefgh", min_size=1, max_size=4))
def test_substring_is_not_a_word_match(name, letters) -> None:
    """Substrings decided before: "terror" was an error."""
    word = name.rpartition("/")[2].lower().strip("0123456789")
    if word.isalpha():
        assert larger_is_better(f"x{word}{letters}x") is None


@pytest.mark.parametrize("name", sorted(metrics.__all__))
def test_library_metrics_declare_a_direction(name) -> None:
    stated = getattr(metrics, name).higher_is_better
    assert isinstance(stated, bool)
    by_name = larger_is_better(name)
    assert by_name is None or by_name is stated


@pytest.mark.parametrize("name", sorted(dir(classification)))
def test_names_of_torchmetrics_do_not_contradict_the_metrics(name) -> None:
    stated = getattr(getattr(classification, name), "higher_is_better", None)
    if isinstance(stated, bool):
        assert larger_is_better(name) in (None, stated)


@pytest.mark.parametrize(
    ("name", "metric", "expected"),
    [
        ("accuracy", torchmetrics.MeanSquaredError(), False),  # the metric knows better than its name
        ("x", classification.BinarySpecificity(), True),  # which says nothing, but its class is named so
        ("x", torchmetrics.MeanMetric(), None),
        ("val_loss", torchmetrics.MeanMetric(), False),
        ("x", wrappers.Running(classification.BinaryAccuracy(), window=3), True),
        ("x", wrappers.MinMaxMetric(torchmetrics.MeanSquaredError()), None),
        ("x", wrappers.BootStrapper(torchmetrics.MeanSquaredError()), None),  # the spread of an error is no error
        ("x", 1 - classification.BinaryAccuracy(), None),  # type: ignore[operator]
        (
            "x",
            torchmetrics.MetricCollection([torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()]),
            False,
        ),
        ("x", torchmetrics.MetricCollection([torchmetrics.MeanSquaredError(), torchmetrics.R2Score()]), None),
        ("accuracy_drop", classification.BinarySpecificity(), None),
    ],
)
def test_metrics(name, metric, expected) -> None:
    assert larger_is_better(name, metric) is expected


def test_unknown_direction_is_an_error() -> None:
    assert require_direction("loss", None, "mode='min'") is False
    with pytest.raises(ValueError, match=r"monitor='Spread': .*Pass comp='less'\."):
        require_direction("Spread", torchmetrics.MeanMetric(), "comp='less'")


def test_metric_attribute_gives_the_direction() -> None:
    class Spread:
        higher_is_better = 1

    assert larger_is_better("spread", Spread()) is True
