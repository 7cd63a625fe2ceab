"""A second held-out set: slow code in unusual places, and healthy programs that look as if something was wrong.

By the author of ``fresh``, and like it without knowledge of the doctor's code.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from composer import Callback, DataSpec, Trainer
from composer.algorithms import EMA
from composer.callbacks import OptimizerMonitor
from composer.models import ComposerClassifier
from tests.diagnosis.held_out import Tagger, dense, memory, mixer, residual, train

EXPECTED: dict[str, tuple[str, str]] = {
    "transform_of_the_data_spec": ("data", "normalized"),
    "subset_of_a_slow_data_set": ("data", "Rendered"),
    "two_workers_are_not_enough": ("data", "Rendered"),
    "every_tenth_batch": ("callback", "Reports"),
    "third_of_the_step": ("callback", "Naps"),
    "schedule_that_reads_a_file": ("host", "from_file"),
    "tokens_in_the_forward_pass": ("host", "Embedded.forward"),
    "numpy_in_the_loss": ("host", "Matched.loss"),
    "layers_of_one_unit": ("host", ""),
    "metrics_in_the_forward_pass": ("metrics", ""),
}
HEALTHY = ["reads_the_gradients_norm", "long_first_batch", "average_of_weights", "evaluating_seldom"]


def normalized(batch: Any) -> Any:
    inputs, targets = batch
    rows = [(row - row.median()) / (row.quantile(0.9) + 1) for row in inputs.flatten(1).repeat(1, 20)]
    return torch.stack([row[: inputs[0].numel()] for row in rows]).reshape(inputs.shape), targets


def transform_of_the_data_spec() -> Trainer:
    return train(residual(8), DataSpec(memory(3, 16, 16), batch_transforms=normalized))


class Rendered(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 2048

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        canvas = np.zeros((3, 16, 16), np.float32)
        for step in range(300):
            canvas[step % 3, step % 16, (step * index) % 16] += 0.1
        return torch.from_numpy(canvas), index % 5


def subset_of_a_slow_data_set() -> Trainer:
    return train(residual(8), DataLoader(Subset(Rendered(), range(0, 2048, 2)), 64))


def two_workers_are_not_enough() -> Trainer:
    return train(dense_of_images(), DataLoader(Rendered(), 64, num_workers=2, persistent_workers=True))


def dense_of_images() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 5))


class Reports(Callback):
    """Has a slow report every now and then."""

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch.value % 10 == 0:
            time.sleep(0.6)


def every_tenth_batch() -> Trainer:
    return train(Tagger(96), memory(24, 32), callbacks=[Reports()])


class Naps(Callback):
    def after_backward(self, state: Any, logger: Any) -> None:
        time.sleep(0.025)


def third_of_the_step() -> Trainer:
    return train(mixer(), memory(3, 32, 32, batch=32), callbacks=[Naps()])


def from_file(step: int) -> float:
    time.sleep(0.02)  # asks a server for the rate
    return 1.0


def schedule_that_reads_a_file() -> Trainer:
    net = dense(256)
    optimizer = SGD(net.parameters(), 0.1)
    schedulers = LambdaLR(optimizer, from_file)
    return train(net, memory(64), optimizers=optimizer, schedulers=schedulers, step_schedulers_every_batch=True)


class Embedded(nn.Module):
    """Turns numbers into text and looks each character up."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(128, 16), nn.Linear(16, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = []
        for row in inputs.tolist():
            text = " ".join(f"{value:.3f}" for value in row)
            rows.append([ord(character) for character in text.upper().replace(".", ",")[:300]])
        return self.head(self.table(torch.tensor(rows)).mean(1))


def tokens_in_the_forward_pass() -> Trainer:
    return train(Embedded(), memory(64))


class Matched(ComposerClassifier):
    """Weights each sample by its neighbors, found in NumPy."""

    def loss(self, outputs: Any, batch: Any, *args: Any, **kwargs: Any) -> Tensor:
        points = outputs.detach().cpu().numpy()
        distances = np.array([[np.sqrt(((one - other) ** 2).sum()) for other in points] for one in points])
        weights = torch.from_numpy(np.sort(distances, 1)[:, 1].astype(np.float32))
        return (F.cross_entropy(outputs, batch[1], reduction="none") * weights).mean()


def numpy_in_the_loss() -> Trainer:
    return train(Matched(residual(8), num_classes=5), memory(3, 16, 16))


def layers_of_one_unit() -> Trainer:
    layers = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(60)]
    return train(nn.Sequential(*layers, nn.Linear(8, 5)), memory(8, batch=16))


def metrics_in_the_forward_pass() -> Trainer:
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAUROC, MulticlassAveragePrecision, MulticlassCalibrationError

    metrics = MetricCollection(MulticlassAUROC(5), MulticlassAveragePrecision(5), MulticlassCalibrationError(5))
    return train(ComposerClassifier(dense(), num_classes=5, train_metrics=metrics), memory(64, batch=32))


class _Norms(Callback):
    def after_train_batch(self, state: Any, logger: Any) -> None:
        norms = [parameter.grad.norm() for parameter in state.model.parameters() if parameter.grad is not None]
        self.last = float(torch.stack(norms).norm())


def reads_the_gradients_norm() -> Trainer:
    return train(Tagger(192), memory(24, 32), callbacks=[_Norms(), OptimizerMonitor(batch_log_interval=10)])


class _Opens(Callback):
    def batch_start(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch.value == 0:
            time.sleep(1.0)  # once


def long_first_batch() -> Trainer:
    return train(residual(48), memory(3, 32, 32, batch=32), callbacks=[_Opens()])


def average_of_weights() -> Trainer:
    return train(residual(48), memory(3, 32, 32, batch=32), algorithms=[EMA("10ba")])


def evaluating_seldom() -> Trainer:
    data = TensorDataset(torch.randn(8192, 24, 32), torch.randint(5, (8192,)))
    loader = DataLoader(data, 64, shuffle=True)
    return train(Tagger(128), loader, eval_dataloader=memory(24, 32), eval_interval="100ba", save_folder="kept")
