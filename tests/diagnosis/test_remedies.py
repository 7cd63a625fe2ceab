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


def test_lines_of_a_combination_are_one_program() -> None:
    workers = Remedy("workers-2", lines="DataLoader(..., num_workers=2, persistent_workers=True)", group="loader")
    prefetch = Remedy("prefetch-8", lines="DataLoader(..., prefetch_factor=8)", group="loader-prefetch")
    channels = "from composer.algorithms import ChannelsLast\nTrainer(..., algorithms=[ChannelsLast()])"
    last, fused = Remedy("channels_last", lines=channels), Remedy("fused", lines="AdamW(..., fused=True)")
    saves = Remedy("save_async", lines="Trainer(..., save_async=True)")
    made = combination([(workers, 0.5), (last, 0.4), (prefetch, 0.3), (fused, 0.2), (saves, 0.1)])
    assert made is not None
    assert made.lines.splitlines() == [
        "from composer.algorithms import ChannelsLast",
        "DataLoader(..., num_workers=2, persistent_workers=True, prefetch_factor=8)",
        "Trainer(..., algorithms=[ChannelsLast()], save_async=True)",
        "AdamW(..., fused=True)",
    ]


@pytest.mark.parametrize(
    ("loader", "name", "group"),
    [
        ("workers-0", "prefetch-8", "loader-prefetch"),  # DataLoader raises
        ("tensor_loader", "prefetch-8", "loader-prefetch"),
        ("tensor_loader", "pin", ""),
    ],
)
def test_what_excludes_another_remedy_is_not_combined_with_it(loader: str, name: str, group: str) -> None:
    fused = Remedy("fused", lines="AdamW(..., fused=True)")
    made = combination([(Remedy(loader, group="loader"), 0.5), (Remedy(name, group=group), 0.3), (fused, 0.1)])
    assert made is not None
    assert made.name == f"{loader}+fused"


def test_what_is_saved_without_a_callback() -> None:
    assert would_save({"steps": [{"forward": 3.0, "callback Slow": 1.0}]}) == {
        "callback Slow": pytest.approx(1 / 3),
    }


def test_what_is_saved_without_communication() -> None:
    gains = would_save({"steps": [{"forward": 3.0, "communication": 1.0, "waiting for other ranks": 0.01}]})
    assert [*gains] == ["communication"]
    assert gains["communication"] == pytest.approx(1 / 3, rel=0.01)


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
