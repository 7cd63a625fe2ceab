"""A script as users write it, for the type checker only: it must find nothing wrong, and know every type."""

from __future__ import annotations

from typing import Any, assert_type

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

import composer.functional as cf
from composer import Algorithm, Callback, ComposerModel, DataSpec, Evaluator, Event, Logger, State, Time, Trainer
from composer.algorithms import EMA, BlurPool, ChannelsLast, LabelSmoothing, MixUp
from composer.callbacks import CheckpointSaver, EarlyStopper, LRMonitor, SpeedMonitor
from composer.core import TimeUnit
from composer.hparams import trainer_from_args
from composer.loggers import InMemoryLogger, LoggerDestination
from composer.models import ComposerClassifier
from composer.optim import CosineAnnealingWithWarmupScheduler, DecoupledAdamW
from composer.utils import dist, get_device, reproducibility


class Net(ComposerModel):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.net = nn.Linear(8, num_classes)
        self.accuracy = MulticlassAccuracy(num_classes=num_classes)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.net(batch[0])

    def loss(self, outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(outputs, batch[1])

    def get_metrics(self, is_train: bool) -> dict[str, Metric]:
        return {} if is_train else {"Accuracy": self.accuracy}

    def update_metric(self, batch: tuple[Tensor, Tensor], outputs: Tensor, metric: Metric) -> None:
        metric.update(outputs, batch[1])


class Noise(Algorithm):
    def after_dataloader(self, state: State, logger: Logger) -> None:
        inputs, targets = state.batch
        state.batch = inputs + torch.randn_like(inputs), targets
        logger.log_metrics({"noise": 1.0})


class OldNoise(Algorithm):
    def match(self, event: Event, state: State) -> bool:
        return event == Event.AFTER_DATALOADER and state.timestamp.batch < 10

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        return None


class Tell(Callback):
    def batch_end(self, state: State, logger: Logger) -> None:
        assert_type(state.timestamp.batch, Time)
        assert_type(state.timestamp.batch.unit, TimeUnit)
        print(state.loss)


class Printed(LoggerDestination):
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        print(step, metrics)


def main() -> None:
    reproducibility.seed_all(1)
    data = TensorDataset(torch.randn(32, 8), torch.arange(32) % 3)
    loader = DataLoader(data, batch_size=4, sampler=dist.get_sampler(data, shuffle=True))
    model = Net(3)
    log = InMemoryLogger()
    trainer = Trainer(
        model=model,
        train_dataloader=DataSpec(loader, num_samples=32),
        eval_dataloader=[Evaluator(label="test", dataloader=loader, metric_names=["Accuracy"])],
        max_duration="2ep",
        optimizers=DecoupledAdamW(model.parameters(), lr=1e-3),
        schedulers=CosineAnnealingWithWarmupScheduler("1ba"),
        algorithms=[ChannelsLast(), MixUp(alpha=0.2), LabelSmoothing(0.1), EMA(), BlurPool(), Noise(), OldNoise()],
        callbacks=[LRMonitor(), SpeedMonitor(window_size=5), EarlyStopper("Accuracy", "test"), Tell()],
        loggers=[log, Printed()],
        device=get_device("cpu"),
        save_interval=Time(1, TimeUnit.EPOCH),
        save_on_signals=["SIGTERM"],
    )
    trainer.fit(duration="1ep")
    trainer.eval()
    assert_type(trainer.predict(loader), list[Any])
    assert_type(trainer.state, State)
    assert_type(trainer.saved_checkpoints, list[str])
    trainer.export_for_inference("onnx", "net.onnx")
    trainer.close()

    # The facades load names when they are used; the checker has to know them all the same.
    assert_type(MixUp(alpha=0.2).alpha, float)
    assert_type(ComposerClassifier(nn.Identity(), num_classes=2), ComposerClassifier)
    assert_type(CheckpointSaver("here"), CheckpointSaver)
    assert_type(cf.smooth_labels(torch.zeros(1, 4), torch.tensor([2]), 0.1), Tensor)
    with trainer_from_args(["run.yaml"], model=model) as other:
        assert_type(other, Trainer)


if __name__ == "__main__":
    main()
