"""Metrics that are arrays: tables and pictures in trackers, nothing lost and no error."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import (
    MulticlassConfusionMatrix,
    MulticlassRecall,
    MulticlassROC,
    MultilabelConfusionMatrix,
)

from composer.core.array_axes import ArrayAxes
from composer.loggers import ConsoleLogger, InMemoryLogger, JSONLinesLogger, TensorboardLogger
from composer.loggers._arrays import array_tables
from composer.models import ComposerClassifier
from tests.common import trainer_of
from tests.loggers.test_tracker import Toy

NAMES = ["cat", "dog", "<b>"]


class Recorder(Toy):
    """A tracker that keeps tables and images."""

    flush_interval = 1

    def log_table(self, columns, rows, name="Table", step=None):
        if self._ready(self.log_table, columns, rows, name, step):
            self.calls.append(("table", name, step, columns, rows))

    def log_images(self, images, name="Images", channels_last=False, step=None, *args, use_table=True):
        if self._ready(self.log_images, images, name, channels_last, step):
            self.calls.append(("image", name, step, images[0].shape, images[0].dtype))

    def of(self, kind: str, name: str) -> list:
        return [call[2:] for call in self.calls if isinstance(call, tuple) and call[:2] == (kind, name)]


def train(*loggers, **arguments):
    def metrics():
        return {"CM": MulticlassConfusionMatrix(3), "Recall": MulticlassRecall(3, average=None)}

    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(24, 4, generator=generator), torch.arange(24) % 3)
    data.classes = NAMES
    loader = DataLoader(data, batch_size=4)
    model = ComposerClassifier(torch.nn.Linear(4, 3), train_metrics=metrics(), val_metrics=metrics())
    trainer = trainer_of(
        model,
        loader,
        eval_dataloader=loader,
        max_duration="2ep",
        loggers=[*loggers],
        on_logger_error="raise",
        **arguments,
    )
    trainer.fit()
    trainer.close()
    return trainer


def test_trackers_show_tables_and_pictures() -> None:
    recorder, memory = Recorder(), InMemoryLogger()
    train(recorder, memory)
    # Once an epoch, though training metrics are logged with each batch.
    for label, steps in (("train", [5, 11]), ("eval", [6, 12])):
        tables = recorder.of("table", f"metrics/{label}/CM")
        assert [step for step, *_ in tables] == steps
        _, columns, rows = tables[-1]
        assert columns == ["target / predicted", *NAMES]
        assert [row[0] for row in rows] == NAMES
        np.testing.assert_array_equal([row[1:] for row in rows], memory.data[f"metrics/{label}/CM"][-1][1])
        pictures = recorder.of("image", f"metrics/{label}/CM/picture")
        assert [(step, shape[-1], dtype) for step, shape, dtype in pictures] == [(step, 3, np.uint8) for step in steps]
        (_, columns, rows) = recorder.of("table", f"metrics/{label}/Recall")[-1]
        assert columns == ["class", "value"]
        assert dict(rows) == dict(zip(NAMES, memory.data[f"metrics/{label}/Recall"][-1][1].tolist(), strict=True))
    assert not recorder.of("image", "metrics/eval/Recall/picture")
    numbers = [call[1] for call in recorder.calls if isinstance(call, tuple) and isinstance(call[1], dict)]
    assert all(numbers)
    assert not any(isinstance(value, torch.Tensor) and value.numel() > 1 for one in numbers for value in one.values())


def test_steps_of_a_tracker_never_go_back() -> None:
    recorder = Recorder()
    train(recorder, eval_interval="4ba")
    calls = [call for call in recorder.calls if isinstance(call, tuple)]
    steps = [call[0] if isinstance(call[0], int) else call[2] for call in calls]
    assert steps == sorted(steps)
    assert [step for step, *_ in recorder.of("table", "metrics/eval/CM")] == [4, 8, 12]
    assert [step for step, *_ in recorder.of("table", "metrics/train/CM")] == [5, 12]


def test_without_matplotlib_there_are_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    recorder = Recorder()
    train(recorder)
    assert len(recorder.of("table", "metrics/eval/CM")) == 2
    assert not recorder.of("image", "metrics/eval/CM/picture")


def test_files_and_console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, board = JSONLinesLogger(str(tmp_path / "log.jsonl")), TensorboardLogger(str(tmp_path))
    train(lines, board, ConsoleLogger("1ep", stream="stdout"), run_name="run")
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [r for r in records if r["kind"] == "axes" and r["metric"] == "metrics/eval/CM"] == [
        {"kind": "axes", "metric": "metrics/eval/CM", "classes": NAMES, "rows": "target", "columns": "predicted"}
    ]
    values = [r["values"]["metrics/eval/CM"] for r in records if "metrics/eval/CM" in r.get("values", ())]
    assert np.sum(values[-1]) == 24
    found = EventAccumulator(str(tmp_path / "run"), size_guidance={"images": 0, "tensors": 0}).Reload()
    text = found.Tensors("metrics/eval/CM/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert text.splitlines()[0] == "| target / predicted | cat | dog | <b> |"
    assert [event.step for event in found.Images("metrics/eval/CM/picture")] == [6, 12]
    assert "metrics/eval/CM: Tensor of shape (3, 3)" in capsys.readouterr().out


def tables(value, axes=ArrayAxes()):  # noqa: B008
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return {table.name: table for table in array_tables("x", value, axes)}


def test_matrices() -> None:
    nan = float("nan")
    found = tables(
        torch.tensor([[1.0, nan], [0.5, 2.0]], dtype=torch.bfloat16), ArrayAxes(("x / y", "x / y"), "x", "y")
    )
    assert found["x"].columns == ["x / y", "x / y ", "x / y (1)"]
    assert str(found["x"].rows) == str([["x / y", 1.0, nan], ["x / y (1)", 0.5, 2.0]])
    assert found["x"].matrix is not None
    assert tables(torch.zeros(2, 3))["x"].matrix is None


def test_large_matrices_list_their_largest_entries() -> None:
    found = tables(torch.eye(1000, dtype=torch.long) * 5, ArrayAxes((), "target", "predicted"))["x"]
    assert found.columns == ["target", "predicted", "value"]
    assert len(found.rows) == 10_000
    assert found.rows[999:1001] == [["999", "999", 5], ["0", "1", 0]]
    assert found.matrix is not None
    assert found.matrix.shape == (1000, 1000)


@pytest.mark.parametrize(
    ("metric", "shape"),
    [
        (MultilabelConfusionMatrix(3), {"x": (3, 5)}),
        (MulticlassROC(3, thresholds=4), {"x/0": (3, 5), "x/1": (3, 5), "x/2": (4, 2)}),
        (MulticlassROC(3), {f"x/{i}/{j}": (None, 2) for i in range(3) for j in range(3)}),
    ],
    ids=["multilabel", "curve", "exact curve"],
)
def test_other_arrays(metric, shape) -> None:
    preds = torch.rand(8, 3, generator=torch.Generator().manual_seed(0))
    metric.update(preds.softmax(1), (preds > 0.5).int() if "label" in type(metric).__name__ else preds.argmin(1))
    found = tables(metric.compute(), ArrayAxes(("a", "b", "c")))
    assert found.keys() == shape.keys()
    for name, (rows, columns) in shape.items():
        assert len(found[name].columns) == columns
        assert all(len(row) == columns for row in found[name].rows)
        assert rows in (None, len(found[name].rows))
