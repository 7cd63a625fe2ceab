"""Which remedies are tried, and how those that pay are combined."""

from __future__ import annotations

from typing import Any

import pytest

from composer.diagnosis.paired import paired_ratio
from composer.diagnosis.remedies import Remedy, applicable, combination, would_save

DATA = {"is_loader": True, "workers": 0, "persistent": False, "prefetch": None, "pinned": False, "tensors": False}
ADAM = {"name": "AdamW", "module": "torch.optim.adamw", "tensors": 2, "accepts": ["foreach", "fused"]}
FACTS: dict[str, Any] = {
    "device": "cpu",
    "cores": 4,
    "ranks": 1,
    "data": DATA,
    "optimizers": [{**ADAM, "fused": None, "foreach": None}],
    "convolutions": False,
    "find_unused_parameters": False,
    "microbatch": None,
    "compiled": False,
    "float64": False,
    "savers": 0,
    "saves_in_background": True,
    "loggers": [],
}


def names(parts: dict[str, float], chosen: Any = None, **facts: Any) -> list[str]:
    return [one.name for one in applicable({"steps": [parts], "facts": FACTS | facts}, chosen)]


def test_only_what_takes_time_is_tried() -> None:
    assert names({"forward": 1.0}) == []
    assert names({"data": 1.0}) == ["workers-1", "workers-2", "workers-4"]
    assert names({"data": 1.0}, data={**DATA, "tensors": True})[-1] == "tensor_loader"
    assert names({"data": 1.0}, data={**DATA, "is_loader": False}) == []
    assert names({"optimizer": 0.5, "forward": 0.2}) == ["fused", "foreach"]
    assert names({"optimizer": 0.5}, optimizers=[{**ADAM, "fused": True}]) == []
    assert names({"forward": 1.0}, convolutions=True) == ["channels_last"]
    assert names({"forward": 1.0}, ["compile"]) == ["compile"]
    assert names({"saving": 1.0}, savers=1, saves_in_background=False) == ["save_async"]
    assert names({"backward": 1.0}, find_unused_parameters=True, ranks=2) == ["find_unused"]
    assert names({"forward": 1.0}, float64=True) == ["float32"]


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


def test_the_interval_of_a_ratio_has_its_value() -> None:
    before, after = [2.0, 2.1, 1.9, 2.0, 2.2, 2.0], [1.0, 1.0, 1.0, 1.1, 1.0, 0.9]
    ratio = paired_ratio(before, after)
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.low > 1.8 and ratio.high < 2.3
    with pytest.raises(ValueError, match="same number"):
        paired_ratio([1.0], [])
