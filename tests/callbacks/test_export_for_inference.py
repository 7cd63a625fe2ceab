"""ExportForInferenceCallback: the file written at the end of training contains the evaluated model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from composer.algorithms import EMA
from composer.callbacks import ExportForInferenceCallback
from composer.callbacks.export_for_inference import export_for_inference
from composer.utils import inference
from tests.callbacks.cases import Case, run_with
from tests.common import labeled_data
from tests.export.reading import load_program, run_onnx

CASE = Case(make=lambda folder: ExportForInferenceCallback("torch_export", str(folder / "net.pt2")))


def test_exports_the_evaluated_model_at_the_end(tmp_path: Path) -> None:
    path, batch = tmp_path / "net-ba4.pt2", labeled_data(1, 5, seed=9)[0]
    callback = ExportForInferenceCallback("torch_export", str(tmp_path / "net-ba{batch}.pt2"))
    trainer = run_with(callback, algorithms=EMA(half_life="4ba")).trainer
    assert not path.exists()
    trainer.fit()
    torch.testing.assert_close(load_program(path)(batch), trainer.predict([batch])[0])
    trainer.close()


class Store:
    """An object store in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def upload_object(self, object_name, filename):
        self.kept[object_name] = Path(filename).read_bytes()


def test_passes_its_arguments_on() -> None:
    store, seen, x = Store(), [], torch.randn(5, 4)

    def transform(model):
        seen.append(model.training)
        return model.module

    callback = ExportForInferenceCallback("onnx", "run/net.onnx", store, x[:2], transform, ["features"], ["logits"])
    trainer = run_with(callback).trainer
    trainer.fit()
    found = run_onnx(store.kept["run/net.onnx"], {"features": x})
    torch.testing.assert_close(found, {"logits": trainer.state.model.module(x)})
    assert seen == [False]
    trainer.close()


def test_invalid_settings_are_refused_before_training() -> None:
    with pytest.raises(ValueError, match=r"save_format must be one of .* Did you mean 'onnx'"):
        ExportForInferenceCallback("onx", "net.onnx")
    with pytest.raises(ValueError, match=r"unknown placeholder \{bach\}"):
        ExportForInferenceCallback("onnx", "net-{bach}.onnx")
    with pytest.raises(ValueError, match=r"memori.*Did you mean 'memory'"):
        run_with(ExportForInferenceCallback("onnx", "memori://bucket/net.onnx"))


def test_the_function_can_be_imported() -> None:
    assert export_for_inference is inference.export_for_inference
