"""Scripts from the published guides of earlier versions run unchanged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import composer
from composer import Algorithm, Callback, Event, Logger, State, Time, Trainer
from composer.models import ComposerModel
from tests.common import CLASSES, Received, labeled_data


class BasicBlock(nn.Module):
    """Two convolutions around which the input goes, as in a ResNet-18."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


def small_resnet(num_classes: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        BasicBlock(8, 8, 1),
        BasicBlock(8, 16, 1),
        BasicBlock(16, 16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, num_classes),
    )


class ResNet18(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.model = small_resnet()

    def forward(self, batch):
        inputs, _ = batch
        return self.model(inputs)

    def loss(self, outputs, batch):
        _, targets = batch
        return F.cross_entropy(outputs, targets)


def pictures(batch_size: int = 8, num: int = 32) -> DataLoader:
    """Four classes of pictures: each is bright in one quarter."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(num) % 4
    images = 0.3 * torch.randn(num, 3, 8, 8, generator=generator)
    for image, target in zip(images, targets.tolist(), strict=True):
        row, column = 4 * (target // 2), 4 * (target % 2)
        image[:, row : row + 4, column : column + 4] += 1
    return DataLoader(TensorDataset(images, targets), batch_size=batch_size)


def trainer_of(model: ComposerModel, **more: Any) -> Trainer:
    more.setdefault("optimizers", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    more.setdefault("max_duration", "2ep")
    return Trainer(model=model, train_dataloader=pictures(), progress_bar=False, **more)


def test_a_classifier_as_composer_model_learns() -> None:
    log = Received()
    trainer = trainer_of(ResNet18(), eval_dataloader=pictures(), device="cpu", max_duration="6ep", loggers=log, seed=1)
    trainer.fit()
    losses = [value for _, value in log.series("loss/train/total")]
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])
    outputs = torch.cat(trainer.predict(pictures()))
    targets = torch.arange(32) % 4
    assert (outputs.argmax(1) == targets).float().mean() > 0.9


def test_algorithms_under_legacy_names() -> None:
    trainer = Trainer(
        model=ResNet18(),
        train_dataloader=pictures(),
        eval_dataloader=pictures(),
        max_duration="2ep",
        algorithms=[
            composer.algorithms.LabelSmoothing(smoothing=0.1),
            composer.algorithms.BlurPool(replace_convs=True, replace_maxpools=True, blur_first=True),
            composer.algorithms.ChannelsLast(),
            composer.algorithms.MixUp(alpha=0.2),
        ],
        optimizers=None,
        progress_bar=False,
    )
    with pytest.warns(composer.warnings.ComposerWarning, match="No optimizers were given"):
        trainer.fit()
    assert trainer.state.timestamp == Time(2, "ep")


# ---------------------------------------------------------------------------------------------------- own algorithms


class ColOutDataloader(Algorithm):
    """Drops columns of the images where the batch has just been fetched."""

    def match(self, event, state):
        return event == Event.AFTER_DATALOADER

    def apply(self, event, state, logger):
        inputs, targets = state.batch
        state.batch = (inputs[..., 1:], targets)


class ScaleLoss(Algorithm):
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def match(self, event: Event, state: State) -> bool:
        return event == Event.AFTER_LOSS

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        state.loss = state.loss * self.factor
        logger.log_metrics({"scaled": state.loss})


class ScaleLossOtherWayRound(ScaleLoss):
    def match(self, state, event):
        return event in (Event.AFTER_LOSS,)

    def apply(self, state, event, logger):
        super().apply(event, state, logger)


def test_a_custom_algorithm_after_the_dataloader() -> None:
    class Watching(ResNet18):
        def __init__(self):
            super().__init__()
            self.widths = []

        def forward(self, batch):
            self.widths.append(batch[0].shape[-1])
            return super().forward(batch)

    model = Watching()
    trainer_of(model, algorithms=ColOutDataloader(), eval_dataloader=pictures(), max_duration="1ep").fit()
    assert model.widths == [7] * 4 + [8] * 4  # in training only


@pytest.mark.parametrize("kind", [ScaleLoss, ScaleLossOtherWayRound])
def test_a_custom_algorithm_after_the_loss(kind) -> None:
    log = Received()
    torch.manual_seed(0)
    trainer_of(ResNet18(), algorithms=[kind(0.5)], loggers=log).fit()
    assert [v for _, v in log.series("scaled")] == [v for _, v in log.series("loss/train/total")]
    plain = Received()
    torch.manual_seed(0)
    trainer_of(ResNet18(), loggers=plain).fit()
    assert log.series("scaled")[0][1] == pytest.approx(0.5 * plain.series("loss/train/total")[0][1])


def test_the_algorithm_that_shortens_training() -> None:
    class ScaleSchedule(Algorithm):
        def __init__(self, scale: float) -> None:
            self.scale = scale

        def match(self, event, state):
            return event == Event.TRAINING_START

        def apply(self, event, state, logger):
            state.max_duration = state.max_duration * self.scale

    trainer = trainer_of(ResNet18(), algorithms=[ScaleSchedule(0.5)], max_duration="4ep")
    trainer.fit()
    assert trainer.state.timestamp.epoch == Time.from_epoch(2)


# ---------------------------------------------------------------------------------------------------- own callbacks


class EpochMonitor(Callback):
    def epoch_start(self, state: State, logger: Logger):
        print("Epoch", int(state.timestamp.epoch))


class EpochMonitorByEvent(Callback):
    def run_event(self, event: Event, state: State, logger: Logger):
        if event == Event.EPOCH_START:
            print("Epoch", int(state.timestamp.epoch))


@pytest.mark.parametrize("kind", [EpochMonitor, EpochMonitorByEvent])
def test_the_callback_that_prints_epochs(kind, capsys) -> None:
    trainer_of(ResNet18(), callbacks=kind(), max_duration="3ep").fit()
    assert capsys.readouterr().out == "Epoch 0\nEpoch 1\nEpoch 2\n"


# ---------------------------------------------------------------------------------------------------- early models


class EarlyModel(ComposerModel):
    """As models were written before ``eval_forward`` and ``get_metrics``."""

    def __init__(self, collection: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, CLASSES)
        self.collection = collection

    def forward(self, batch):
        return self.linear(batch[0])

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs, batch[1])

    def validate(self, batch):
        return self.forward(batch), batch[1]

    def metrics(self, train: bool = False):
        from torchmetrics import MetricCollection
        from torchmetrics.classification import MulticlassAccuracy

        accuracy = MulticlassAccuracy(CLASSES, average="micro")
        return MetricCollection([accuracy]) if self.collection else accuracy


@pytest.mark.parametrize("collection", [False, True])
def test_a_model_of_an_early_version(collection) -> None:
    data, log = labeled_data(3, 6), Received()
    model = EarlyModel(collection)
    trainer = Trainer(
        model=model,
        train_dataloader=data,
        eval_dataloader=data,
        max_duration=2,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.0),
        loggers=log,
        progress_bar=False,
    )
    trainer.fit()
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    accuracy = (model.linear(x).argmax(1) == y).float().mean().item()
    for name in ("metrics/train/MulticlassAccuracy", "metrics/eval/MulticlassAccuracy"):
        assert log.series(name)[-1][1] == pytest.approx(accuracy)
    assert model.training


def test_hooks_under_legacy_event_names() -> None:
    assert Event.TRAINING_START is Event.FIT_START
    assert Event.TRAINING_END is Event.FIT_END
