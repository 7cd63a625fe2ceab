"""Which remedies are combined, and what is computed rather than tried."""

from __future__ import annotations

import pytest

from composer.diagnosis.remedies import Remedy, combination, would_save
from composer.statistics.paired import paired_ratio


def test_the_best_of_each_group_is_combined() -> None:
    one = Remedy("workers-2", ("train_dataloader.num_workers=2",), group="loader")
    two = Remedy("tensor_loader", edits=("tensor_loader",), group="loader")
    fused, single = Remedy("fused", ("optimizers.fused=True",)), Remedy("float32", exact=False)
    made = combination([(one, 0.5), (two, 0.7), (fused, 0.1), (single, 2.0)])
    assert made is not None
    assert (made.name, made.changes, made.edits) == (
        "tensor_loader+fused",
        ("optimizers.fused=True",),
        ("tensor_loader",),
    )
    assert combination([(one, 0.5), (two, 0.7)]) is None


def test_what_is_saved_without_a_callback() -> None:
    assert would_save({"steps": [{"forward": 3.0, "callback Slow": 1.0}]}) == {
        "callback Slow": pytest.approx(1 / 3),
    }


def test_evaluation_as_often_is_computed() -> None:
    gains = would_save({"steps": [{"forward": 1.0, "evaluation": 1.0}]})
    assert gains["evaluation"] == pytest.approx(1)
    assert gains["evaluation half as often"] == pytest.approx(1 / 0.75 - 1)
    assert gains["evaluation a tenth as often"] == pytest.approx(1 / 0.55 - 1)


def test_the_interval_of_a_ratio_has_its_value() -> None:
    before, after = [2.0, 2.1, 1.9, 2.0, 2.2, 2.0], [1.0, 1.0, 1.0, 1.1, 1.0, 0.9]
    ratio = paired_ratio(before, after)
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.low > 1.8 and ratio.high < 2.3
    with pytest.raises(ValueError, match="same number"):
        paired_ratio([1.0], [])
