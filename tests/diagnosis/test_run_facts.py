"""Facts about a run, from a trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from composer import DataSpec, Trainer
from composer.algorithms import LabelSmoothing
from composer.callbacks import OptimizerMonitor
from composer.core.logger import LoggerDestination
from composer.diagnosis.run_facts import facts_of
from composer.loggers import CSVLogger
from composer.models import ComposerClassifier

ROWS = TensorDataset(torch.randn(16, 4), torch.randint(2, (16,)))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, inputs: Any) -> Any:
        return self.act(self.inner(inputs))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from zip(*ROWS.tensors, strict=True)


class Mine(LoggerDestination):
    pass


def facts(net: nn.Module | None = None, optimizer: Any = torch.optim.AdamW, **arguments: Any) -> dict[str, Any]:
    model = ComposerClassifier(net or nn.Linear(4, 2), num_classes=2)
    given = {"train_dataloader": DataLoader(ROWS, 4), "optimizers": optimizer(model.parameters()), **arguments}
    with Trainer(model=model, max_duration="1ba", progress_bar=False, **given) as trainer:
        trainer.fit()
        found = facts_of(trainer)
    assert json.loads(json.dumps(found)).keys() == found.keys()
    return found


def test_data() -> None:
    data = facts()["data"]
    assert (data["batches"], data["batch_size"], data["tensors"], data["shuffled"]) == (4, 4, True, False)
    assert data["worker_arguments"] == {}
    of_workers = facts(train_dataloader=DataLoader(ROWS, 4, num_workers=1, timeout=90))["data"]["worker_arguments"]
    assert of_workers == {"prefetch_factor": None, "timeout": 0}
    data = facts(train_dataloader=DataLoader(Stream(), 4))["data"]
    assert (data["batches"], data["iterable"], data["tensors"]) == (None, True, False)
    batches = [(torch.randn(2, 4), torch.zeros(2, dtype=torch.long))]
    assert facts(train_dataloader=batches)["data"] == {"loader": "list", "is_loader": False}


def test_model() -> None:
    found = facts(nn.Sequential(Layer(), Layer(), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    assert (found["blocks"], found["batch_norm"], found["convolutions"]) == ("Layer", True, False)
    assert facts(nn.Sequential(Layer(), nn.Linear(4, 2)))["blocks"] is None  # it is not repeated
    assert facts(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))["blocks"] is None  # too small
    assert facts(precision="amp_bf16")["precision"] == "amp_bf16"


def test_optimizers() -> None:
    found = facts()
    (adam,) = found["optimizers"]
    assert (adam["name"], adam["tensors"], adam["accepts"]) == ("AdamW", 2, ["foreach", "fused"])
    assert not found["steps_by_closure"]
    assert facts(optimizer=torch.optim.LBFGS)["steps_by_closure"]


def test_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = [CSVLogger(flush_interval=3), Mine()]
    found = facts(loggers=outputs, callbacks=[OptimizerMonitor()], save_folder="saved", seed=1)
    assert found["intervals"] == {
        "CSVLogger": ("flush_interval", 3),
        "Mine": ("", 1),
        "OptimizerMonitor": ("batch_log_interval", 10),
    }
    assert (found["savers"], found["saves_in_background"]) == (1, False)


def test_what_lines_to_write_must_keep() -> None:
    assert facts()["algorithms"] == []
    assert facts(algorithms=[LabelSmoothing()])["algorithms"] == ["LabelSmoothing"]

    def same(batch: Any) -> Any:
        return batch

    for transform, name in ((None, None), (same, "same"), (lambda batch: batch, "")):
        data = DataSpec(DataLoader(ROWS, 4), batch_transforms=transform)
        assert facts(train_dataloader=data)["batch_transforms"] == name
