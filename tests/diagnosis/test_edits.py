"""Changes of a trainer's arguments that are not assignments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import DataSpec
from composer.callbacks import CheckpointSaver, OptimizerMonitor
from composer.core.logger import LoggerDestination
from composer.datasets import TensorLoader
from composer.diagnosis.edits import edit
from composer.loggers import CSVLogger

ROWS = TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))


class Mine(LoggerDestination):
    def __init__(self) -> None:
        self.steps: list[int | None] = []

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.steps.append(step)


def test_a_loader_of_tensors_gives_the_same_batches() -> None:
    loader = DataLoader(ROWS, 4)
    made = edit("tensor_loader", {"train_dataloader": loader})["train_dataloader"]
    assert isinstance(made, TensorLoader)
    for one, two in zip(loader, made, strict=True):
        torch.testing.assert_close(tuple(one), tuple(two))
    spec = DataSpec(DataLoader(ROWS, 4, shuffle=True, drop_last=True))
    assert edit("tensor_loader", {"train_dataloader": spec})["train_dataloader"] is spec
    assert isinstance(spec.dataloader, TensorLoader)
    assert len(spec.dataloader) == 1


def test_loaders_of_other_data_are_left_alone() -> None:
    loader: DataLoader[Any] = DataLoader([1, 2, 3], 2)  # pyright: ignore[reportArgumentType]
    assert edit("tensor_loader", {"train_dataloader": loader})["train_dataloader"] is loader


def test_float64_becomes_float32() -> None:
    rows = TensorDataset(torch.zeros(4, 2, dtype=torch.float64), torch.arange(4))
    given = {"model": nn.Linear(2, 2).double(), "train_dataloader": DataLoader(rows, 2)}
    changed = edit("single", given)
    assert changed["model"].weight.dtype == torch.float32
    spec = changed["train_dataloader"]
    inputs, labels = spec.batch_transforms(next(iter(spec.dataloader)))
    assert (inputs.dtype, labels.dtype) == (torch.float32, torch.int64)


def test_savers_write_in_the_background(tmp_path: Path) -> None:
    saver = CheckpointSaver(tmp_path, save_interval="3ba")
    changed = edit("save_async", {"save_async": False, "callbacks": [saver, OptimizerMonitor()]})
    assert changed["save_async"] is True
    made = changed["callbacks"][0]
    assert (made.asynchronous, made.folder, made.save_interval) == (True, saver.folder, saver.save_interval)
    assert isinstance(changed["callbacks"][1], OptimizerMonitor)


def test_intervals_of_callbacks_and_loggers() -> None:
    monitor, table, mine = OptimizerMonitor(batch_log_interval=1), CSVLogger(flush_interval=1), Mine()
    given = {"callbacks": monitor, "loggers": [table, mine]}
    edit("log_interval:OptimizerMonitor", given)
    assert (monitor.batch_log_interval, table.flush_interval) == (100, 1)
    edit("log_interval:CSVLogger", given)
    assert table.flush_interval == 100
    edit("log_interval:Mine", given)
    for step in (0, 1, 10, None):
        mine.log_metrics({}, step)
    assert mine.steps == [0, 10, None]


def test_float32_matrix_products() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        edit("tf32", {})
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
