from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from composer.reports.groups import groups


@given(st.lists(st.text("/-abclosmetri", max_size=20), unique=True, max_size=40))
def test_each_metric_is_in_one_figure(names: list[str]) -> None:
    found = groups(names)
    assert sorted(name for group in found for name in group.names) == sorted(names)
    assert all(0 < len(group.names) == len(group.labels) <= 10 for group in found)


def test_many_metrics_of_one_kind() -> None:
    names = ["loss/train/total", *(f"l2_norm/grad/layer{number}.weight" for number in range(25))]
    found = groups(names)
    assert [group.title for group in found] == [
        "loss",
        "l2_norm/grad (1 to 10 of 25)",
        "l2_norm/grad (11 to 20 of 25)",
        "l2_norm/grad (21 to 25 of 25)",
    ]
    assert [group.is_main for group in found] == [True, False, False, False]
    assert found[1].labels[0] == "layer0.weight"


def test_what_is_shown_at_once() -> None:
    names = ["lr-AdamW/group0", "metrics/eval/F1", "metrics/train/F1", "throughput/samples_per_sec", "val_loss", "x/y"]
    assert [(group.title, group.is_main) for group in groups(names)] == [
        ("loss", True),
        ("F1", True),
        ("learning rate", True),
        ("samples per second", True),
        ("x", False),
    ]
