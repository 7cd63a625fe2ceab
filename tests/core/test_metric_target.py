"""Targets in the forms in which they are written."""

from __future__ import annotations

import pytest

from composer.core.metric_target import MetricTarget


@pytest.mark.parametrize(
    ("text", "metric", "value", "mode"),
    [
        ("MulticlassAccuracy>=0.96", "MulticlassAccuracy", 0.96, "max"),
        ("  eval/CrossEntropy <= 2e-1 ", "eval/CrossEntropy", 0.2, "min"),
        ("k=5 accuracy>=.9", "k=5 accuracy", 0.9, "max"),
    ],
)
def test_forms(text: str, metric: str, value: float, mode: str) -> None:
    assert MetricTarget.parse(text) == MetricTarget(metric, value, mode)


@pytest.mark.parametrize(
    "text", ["", "acc", "acc>0.9", "acc=0.9", "acc>=", ">=0.9", "acc>=0.9>=0.8", "acc>=nan", "acc<=-inf", "acc>=1 0"]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"target must be METRIC>=VALUE or METRIC<=VALUE, .*; got "):
        MetricTarget.parse(text)


def test_a_metric_in_float32_reaches_what_it_equals() -> None:
    target = MetricTarget.parse("accuracy>=0.95")
    assert target.is_reached(0.949999988079071)
    assert not target.is_reached(0.94999)
    assert target.condition == ">= 0.95"


@pytest.mark.parametrize(
    ("text", "larger_is_better", "remedy"),
    [
        ("accuracy<=0.9", True, r"larger values of accuracy are better. Write accuracy>=0.9."),
        ("loss >= 0.4", False, r"target='loss>=0.4': smaller values of loss are better. Write loss<=0.4."),
    ],
)
def test_a_target_in_the_wrong_direction(text: str, larger_is_better: bool, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        MetricTarget.parse(text).check_direction(larger_is_better)


def test_the_right_direction_and_an_unknown_one() -> None:
    MetricTarget.parse("accuracy>=0.9").check_direction(True)
    MetricTarget.parse("spread>=0.9").check_direction(None)
    MetricTarget.parse("spread<=0.9").check_direction(None)
