"""Algorithms, callbacks and loggers by short names, and in the wrong argument."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from composer import Algorithm, Callback, Evaluator
from composer.algorithms import BlurPool, LabelSmoothing, MixUp
from composer.callbacks import EarlyStopper, LRMonitor, SpeedMonitor
from composer.core import LoggerDestination
from composer.loggers import CSVLogger, InMemoryLogger
from composer.trainer.short_names import _PACKAGES, _find, _names, _snake, instances
from tests.common import regression_data, trainer_of

KINDS = {"algorithms": Algorithm, "callbacks": Callback, "loggers": LoggerDestination}


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("algorithms", "mixup", [MixUp]),
        ("algorithms", ["blur_pool", LabelSmoothing(), "MixUp"], [BlurPool, LabelSmoothing, MixUp]),
        ("callbacks", "lr_monitor", [LRMonitor]),
        ("callbacks", ("SpeedMonitor", "LRMonitor"), [SpeedMonitor, LRMonitor]),
        ("callbacks", "speed", [SpeedMonitor]),
        ("callbacks", "csv", [CSVLogger]),
        ("loggers", "csv", [CSVLogger]),
        ("loggers", ["in_memory", "CSV-Logger"], [InMemoryLogger, CSVLogger]),
        ("loggers", None, []),
    ],
)
def test_short_names(argument, value, expected) -> None:
    assert [type(entry) for entry in instances(argument, value, KINDS[argument])] == expected


@pytest.mark.parametrize("argument", list(KINDS))
def test_every_class_has_its_short_name(argument) -> None:
    names = _names(_PACKAGES[argument][0])
    assert len(names) > 8
    for name in names:
        for written in (name, name.lower(), _snake(name), name.upper(), _snake(name).replace("_", "-")):
            assert _find(_PACKAGES[argument], written).__name__ == name


def wrong(**arguments) -> str:
    with pytest.raises((TypeError, ValueError)) as raised:
        trainer_of(**arguments)
    return str(raised.value)


class EarlyStopping:
    """As Lightning's."""


def test_names_of_another_argument() -> None:
    assert wrong(callbacks=[MixUp()]).startswith("callbacks: MixUp is an algorithm; give it as algorithms=. Got MixUp(")
    assert "EarlyStopper is a callback; give it as callbacks=" in wrong(algorithms=EarlyStopper("a"))
    assert "CSVLogger is a logger; give it as loggers=" in wrong(algorithms=[CSVLogger()])
    assert "SpeedMonitor is a callback; give it as callbacks=" in wrong(loggers=[SpeedMonitor()])
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters())
    assert "SGD is an optimizer; give it as optimizers=" in wrong(callbacks=optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert "StepLR is a schedule; give it as schedulers=" in wrong(callbacks=schedule)
    evaluator = Evaluator(label="test", dataloader=regression_data(1))
    assert "Evaluator is an evaluator; give it as eval_dataloader=" in wrong(callbacks=[evaluator])
    assert wrong(callbacks="mixup") == "callbacks='mixup': MixUp belongs to another argument: algorithms='mixup'."
    assert (
        wrong(loggers="lr_monitor")
        == "loggers='lr_monitor': LRMonitor belongs to another argument: callbacks='lr_monitor'."
    )
    assert wrong(callbacks=[EarlyStopping()]).endswith(" Use composer.callbacks.EarlyStopper.")


def test_unknown_names() -> None:
    assert wrong(callbacks="lr_montor") == (
        "callbacks: no Callback has the name 'lr_montor'. Did you mean 'lr_monitor'?"
    )
    assert "Did you mean 'csv'?" in wrong(loggers=["cvs"])
    assert "Available: " in wrong(algorithms="qqqqq")
    assert wrong(callbacks="early_stopper") == (
        "callbacks='early_stopper': EarlyStopper requires arguments; pass an object: EarlyStopper(monitor=...)."
    )
    assert wrong(callbacks="early_stopping").startswith("callbacks='early_stopping': EarlyStopper requires arguments")


def test_a_run_with_names() -> None:
    trainer = trainer_of(callbacks=["lr_monitor"], loggers="in_memory")
    trainer.fit()
    (logger,) = trainer.logger.destinations
    assert any(name.startswith("lr-") for name in logger.data)


def test_a_logger_among_the_algorithms_goes_to_the_loggers() -> None:
    with pytest.raises(ValueError, match="CSVLogger belongs to another argument: loggers='csv'"):
        instances("algorithms", "csv", Algorithm)
