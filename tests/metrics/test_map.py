from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator

import pytest
import torch

import composer.metrics.map
from composer._lazy import MissingConditionalImportError
from composer.metrics import MAP
from tests.metrics.laws import NoReads

needs_detection = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None or importlib.util.find_spec("pycocotools") is None,
    reason="needs torchvision and pycocotools",
)

NAMES = {
    *("map", "map_50", "map_75", "map_small", "map_medium", "map_large"),
    *("mar_1", "mar_10", "mar_100", "mar_small", "mar_medium", "mar_large"),
    *("map_per_class", "mar_100_per_class"),
}


def target(*boxes: list[float], labels: list[int] | None = None) -> dict[str, torch.Tensor]:
    return {"boxes": torch.tensor(boxes), "labels": torch.tensor(labels or [1] * len(boxes))}


def found(*boxes: list[float], scores: list[float], labels: list[int] | None = None) -> dict[str, torch.Tensor]:
    return {**target(*boxes, labels=labels), "scores": torch.tensor(scores)}


@pytest.fixture
def metric() -> Iterator[MAP]:
    yield MAP()


@needs_detection
def test_perfect_boxes(metric: MAP) -> None:
    with NoReads():
        metric.update([found([0.0, 0.0, 10.0, 10.0], scores=[0.9])], [target([0.0, 0.0, 10.0, 10.0])])
    values = metric.compute()
    assert set(values) == NAMES
    for name in ("map", "map_50", "map_75", "map_small", "mar_1", "mar_100", "mar_small"):
        assert values[name] == 1, name
    for name in ("map_medium", "map_large", "map_per_class"):
        assert values[name] == -1, name


@needs_detection
def test_a_box_that_overlaps_by_a_known_share(metric: MAP) -> None:
    # IoU 8 / 12 = 2/3 passes the thresholds 0.50, 0.55, 0.60 and 0.65 of ten.
    metric.update([found([0.0, 0.0, 10.0, 1.0], scores=[0.9])], [target([2.0, 0.0, 12.0, 1.0])])
    values = metric.compute()
    assert values["map"].item() == pytest.approx(0.4)
    assert (values["map_50"].item(), values["map_75"].item()) == (1, 0)


@needs_detection
def test_precision_falls_with_a_confident_mistake(metric: MAP) -> None:
    # Precision is 1/2 at the only recall there is, 1.
    boxes = [50.0, 50.0, 60.0, 60.0], [0.0, 0.0, 10.0, 10.0]
    metric.update([found(*boxes, scores=[0.9, 0.8])], [target(boxes[1])])
    assert metric.compute()["map"].item() == pytest.approx(0.5)


@needs_detection
def test_the_values_of_each_class() -> None:
    metric = MAP(class_metrics=True)
    box, far = [0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0]
    metric.update([found(box, box, scores=[0.9, 0.9], labels=[1, 4])], [target(box, far, labels=[1, 4])])
    values = metric.compute()
    assert values["classes"].tolist() == [1, 4]
    assert values["map_per_class"].tolist() == [1, 0]
    assert values["mar_100_per_class"].tolist() == [1, 0]


@needs_detection
def test_images_without_boxes_and_reset(metric: MAP) -> None:
    none = torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.long)
    empty = {"boxes": none[0], "scores": none[1], "labels": none[2]}
    metric.update([empty], [target([0.0, 0.0, 10.0, 10.0])])
    assert metric.compute()["map"] == 0
    metric.reset()
    metric.update([found([0.0, 0.0, 9.0, 9.0], scores=[0.5])], [target([0.0, 0.0, 9.0, 9.0])])
    assert metric.compute()["map"] == 1


@needs_detection
def test_the_options_of_several_ranks_are_passed_on() -> None:
    def gather(state: object, group: object) -> list[object]:
        return [state]

    metric = MAP(dist_sync_on_step=True, process_group="group", dist_sync_fn=gather)
    assert metric.dist_sync_on_step is True
    assert (metric.process_group, metric.dist_sync_fn) == ("group", gather)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(
        MissingConditionalImportError, match=r"MAP needs the package 'torchvision'.*composer-torch\[detection\]"
    ):
        MAP()


@needs_detection
def test_either_package_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"faster_coco_eval"}
    monkeypatch.setattr(composer.metrics.map, "find_spec", lambda name: name if name in there else None)
    made: list[str] = []

    def parent(self: object, **arguments: str) -> None:
        made.append(arguments["backend"])

    monkeypatch.setattr(composer.metrics.map.MeanAveragePrecision, "__init__", parent)
    MAP()
    there.add("pycocotools")
    MAP()
    assert made == ["faster_coco_eval", "pycocotools"]
