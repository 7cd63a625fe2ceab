"""The split of a step: it adds up to the wall time, and each part is that of its stage or owner."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Algorithm, Callback, Event, Trainer
from composer.core.logger import LoggerDestination
from composer.diagnosis.step_clock import StepClock
from composer.diagnosis.step_timer import StepTimer
from composer.models import ComposerClassifier
from composer.optim import CosineAnnealingScheduler
from composer.trials.probe import Finished

SECONDS = 0.01


class Sleeps(Callback):
    def __init__(self, event: str) -> None:
        setattr(self, event, lambda state, logger: time.sleep(SECONDS))


class Method(Algorithm):
    def match(self, event: Event, state: Any) -> bool:
        return event is Event.AFTER_DATALOADER

    def apply(self, event: Event, state: Any, logger: Any) -> None:
        time.sleep(SECONDS)


class Log(LoggerDestination):
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        time.sleep(SECONDS / 4)


class Album(LoggerDestination):
    def log_images(self, images: Any, *args: Any, **kwargs: Any) -> None:
        time.sleep(SECONDS)

    def log_table(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(SECONDS)


class Shows(Callback):
    def batch_end(self, state: Any, logger: Any) -> None:
        logger.log_images(torch.zeros(2, 2))
        logger.log_table(["loss"], [[1.0]])


class SleepingModel(ComposerClassifier):
    def forward(self, batch: Any) -> Any:
        time.sleep(SECONDS)
        return super().forward(batch)

    def loss(self, outputs: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        time.sleep(SECONDS)
        return super().loss(outputs, batch)


class SleepingRows(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        time.sleep(SECONDS / 4)
        return super().__getitem__(index)


def slow_schedule(*_: Any) -> float:
    time.sleep(SECONDS)
    return 1.0


def split(steps: int = 3, **arguments: Any) -> tuple[dict[str, float], float]:
    """The seconds of each part in a step, and those of the wall clock."""
    clock, ends = StepClock(), list[float]()

    def ended() -> None:
        ends.append(time.perf_counter())
        if len(ends) == 1:
            clock.steps.clear()
        if len(ends) == steps + 1:
            raise Finished

    timer = StepTimer(clock, ended)
    model = arguments.pop("model", None) or ComposerClassifier(nn.Linear(4, 2), num_classes=2)
    rows = arguments.pop("rows", TensorDataset)(torch.randn(8, 4), torch.randint(2, (8,)))
    callbacks = [timer, *arguments.pop("callbacks", [])]
    with Trainer(
        model=model,
        train_dataloader=DataLoader(rows, 4),
        optimizers=torch.optim.SGD(model.parameters(), 0.1),
        max_duration="9ep",
        callbacks=callbacks,
        progress_bar=False,
        **arguments,
    ) as trainer:
        timer.watch(trainer)
        with contextlib.suppress(Finished):
            trainer.fit()
    sums = {part: sum(step.get(part, 0.0) for step in clock.steps) / steps for step in clock.steps for part in step}
    return sums, (ends[-1] - ends[0]) / steps


def test_parts_add_up_to_the_wall_time() -> None:
    parts, wall = split(callbacks=[Sleeps("batch_end")], loggers=[Log()], eval_dataloader=_evaluation())
    assert sum(parts.values()) == pytest.approx(wall, rel=0.02)


@pytest.mark.parametrize(
    ("part", "arguments"),
    [
        ("callback Sleeps", {"callbacks": [Sleeps("batch_end")]}),
        ("callback Sleeps", {"callbacks": [Sleeps("before_forward")]}),
        ("method Method", {"algorithms": [Method()]}),
        ("logger Log", {"loggers": [Log()]}),
        ("data", {"rows": SleepingRows}),
        ("loss", {"model": SleepingModel(nn.Linear(4, 2), num_classes=2)}),
        ("forward", {"model": SleepingModel(nn.Linear(4, 2), num_classes=2)}),
        ("schedules", {"schedulers": slow_schedule}),
        ("schedules", {"schedulers": slow_schedule, "step_schedulers_every_batch": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_part_has_its_time(part: str, arguments: Any) -> None:
    parts, _ = split(**arguments)
    assert parts[part] > SECONDS / 4


def test_images_and_tables_are_the_time_of_the_logger_rather_than_of_the_callback() -> None:
    parts, _ = split(loggers=[Album()], callbacks=[Shows()])
    assert parts["logger Album"] >= 2 * SECONDS > parts["callback Shows"]


def test_the_evaluation_is_a_part_of_its_own() -> None:
    model = SleepingModel(nn.Linear(4, 2), num_classes=2)
    parts, _ = split(model=model, eval_dataloader=_evaluation(), eval_interval="1ba")
    assert parts["evaluation"] > SECONDS
    assert parts["forward"] < 2 * parts["evaluation"]


def test_saving_and_the_optimizer_are_parts(tmp_path: Any) -> None:
    parts, _ = split(save_folder=str(tmp_path), save_interval="1ba")
    assert parts["saving"] > 0
    assert parts["optimizer"] > 0
    assert parts["backward"] > 0


def test_schedules_of_torch_are_a_part_and_are_saved_as_ever(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ComposerClassifier(nn.Linear(4, 2), num_classes=2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monkeypatch.setattr(torch.optim, "SGD", lambda *_: optimizer)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, slow_schedule)
    before = dict(vars(type(schedule)))
    parts, _ = split(model=model, schedulers=schedule, save_folder=str(tmp_path), save_interval="1ep")
    assert parts["schedules"] > SECONDS / 4
    assert parts["rest"] < SECONDS / 4
    assert dict(vars(type(schedule))) == before
    assert "step" not in schedule.state_dict()


class SlowZero(torch.optim.SGD):
    def zero_grad(self, set_to_none: bool = True) -> None:
        time.sleep(SECONDS)
        super().zero_grad(set_to_none)


def test_zeroing_gradients_belongs_to_the_optimizer_also_with_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim, "SGD", SlowZero)
    parts, _ = split(schedulers=CosineAnnealingScheduler())
    assert parts["optimizer"] > SECONDS
    assert parts["rest"] < SECONDS


def test_closures_compute_within_the_step_of_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim, "SGD", torch.optim.LBFGS)
    parts, wall = split(model=SleepingModel(nn.Linear(4, 2), num_classes=2))
    assert parts["forward"] > SECONDS
    assert sum(parts.values()) == pytest.approx(wall, rel=0.02)


def _evaluation() -> Any:
    return DataLoader(TensorDataset(torch.randn(4, 4), torch.randint(2, (4,))), 4)
