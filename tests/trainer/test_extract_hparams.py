"""Arguments as hyperparameters: constructor arguments of objects, nested, without data."""

from __future__ import annotations

import enum
import functools
import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Algorithm, Time, algorithms
from composer.algorithms import MixUp
from composer.callbacks import CheckpointSaver, SpeedMonitor
from composer.loggers import FileLogger, InMemoryLogger
from composer.optim import CosineAnnealingScheduler
from composer.trainer.extract_hparams import describe
from composer.utils import extract_hparams
from tests.common import classifier, labeled_data, trainer_of


def one(value: Any) -> Any:
    return describe({"it": value})["it"]


class Color(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    where: Path


class Holder:
    def __init__(self, inner: Any, _hidden: int = 1, lost: int = 2, **more: Any) -> None:
        self._inner, self.more, self.counter = inner, more, 3

    @property
    def lost(self) -> int:
        raise AssertionError("a property may cost something")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Time(3, "ep"), "3ep"),
        (Path("a/b"), "a/b"),
        (Color.RED, "red"),
        (torch.float16, "torch.float16"),
        (torch.device("cpu"), "cpu"),
        (torch.zeros(1000, 1000), "Tensor (1000, 1000) torch.float32"),
        (nn.functional.cross_entropy, "cross_entropy"),
        (nn.Linear, "Linear"),
        (list(range(51)), "list of 51"),
        ((1, [2.5, None, "x"]), [1, [2.5, None, "x"]]),
        ({1: {"a": True}}, {"1": {"a": True}}),
        (functools.partial(max, 1, default=2), {"class": "max", "args": [1], "default": 2}),
        (Point(1, Path("p")), {"class": "Point", "x": 1, "where": "p"}),
        (Holder(Point(1, Path("p")), a=4),
         {"class": "Holder", "inner": {"class": "Point", "x": 1, "where": "p"}, "more": {"a": 4}}),
        (nn.Conv2d(3, 4, 5, bias=False), {"class": "Conv2d", "in_channels": 3, "out_channels": 4, "kernel_size": [5, 5],
         "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "padding_mode": "zeros"}),
        (object(), {"class": "object"}),
    ],
)  # fmt: skip
def test_values(value: Any, expected: Any) -> None:
    assert one(value) == expected


def test_nested_objects() -> None:
    holder = Holder(None)
    holder._inner = [holder]
    assert one(holder) == {"class": "Holder", "inner": ["Holder"], "more": {}}
    deep: Any = 1
    for _ in range(50):
        deep = [deep]
    assert json.dumps(one(deep)).count("[") < 50


def test_no_argument_is_omitted() -> None:
    assert describe({"a": None, "b": 0}) == {"b": 0}


def test_data_is_described_without_its_contents() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(3, 2)), batch_size=2, shuffle=True)
    found = one(loader)
    assert (found["batch_size"], found["sampler"]["class"]) == (2, "RandomSampler")
    assert found["dataset"] == {"class": "TensorDataset", "tensors": ["Tensor (3, 2) torch.float32"]}


def test_arguments_passed_to_components() -> None:
    assert one(FileLogger("logs/{rank}.txt", capture_stdout=False))["filename"] == "logs/{rank}.txt"
    saver = one(CheckpointSaver("here", save_interval="5ba", mode="max"))
    assert saver["save_interval"]["interval"] == "5ba"
    assert (saver["folder"], saver["mode"]) == ("here", "max")


def methods() -> list[type[Algorithm]]:
    """The public methods that can be made without arguments."""
    classes = [value for name in algorithms.__all__ if inspect.isclass(value := getattr(algorithms, name))]
    return [
        made
        for made in classes
        if issubclass(made, Algorithm)
        and all(parameter.default is not parameter.empty for parameter in inspect.signature(made).parameters.values())
    ]


# What cannot be made with all of its defaults.
REQUIRED: dict[str, dict[str, Any]] = {"BatchSizeWarmup": {"milestones": {"1ba": 2}}}


@pytest.mark.parametrize("made", methods(), ids=lambda made: made.__name__)
def test_every_method_reports_its_arguments(made: type[Algorithm]) -> None:
    found = one(made(**REQUIRED.get(made.__name__, {})))
    given = {name for name, p in inspect.signature(made).parameters.items() if p.default is not None}
    assert found["class"] == made.__name__
    assert given <= set(found)
    json.dumps(found)


def test_every_argument_of_a_run_is_logged_as_plain_values() -> None:
    log = InMemoryLogger()
    trainer_of(
        classifier(),
        DataLoader(TensorDataset(torch.randn(8, 4), torch.arange(8) % 3), batch_size=4),
        loggers=log,
        algorithms=[algorithms.EMA(half_life="5ba"), algorithms.MixUp(0.3)],
        callbacks=SpeedMonitor(window_size=7),
        schedulers=CosineAnnealingScheduler(alpha_f=0.1),
        eval_dataloader=labeled_data(60),
        auto_log_hparams=True,
        max_duration="3ep",
    )
    found = log.hyperparameters
    json.dumps(found)
    assert found["algorithms"][0]["half_life"] == "5ba"
    assert found["callbacks"] == {"class": "SpeedMonitor", "window_size": 7, "time_unit": "hours"}
    assert found["schedulers"]["alpha_f"] == 0.1
    assert found["train_dataloader"]["batch_size"] == 4
    assert found["eval_dataloader"] == "list of 60"
    assert found["model"]["module"] == {"class": "Linear", "in_features": 4, "out_features": 3}
    assert (found["max_duration"], found["save_interval"], found["loggers"]) == (
        "3ep",
        "1ep",
        {"class": "InMemoryLogger"},
    )


def test_local_variables_become_hyperparameters() -> None:
    class Script:
        def run(self, lr: float, duration: Time, nothing: object = None) -> dict[str, object]:
            _private, kind = 1, torch.nn.Linear
            methods = [MixUp(alpha=0.3)]
            return extract_hparams(locals())

    found = Script().run(0.1, Time(3, "ep"))
    assert {"lr": 0.1, "duration": "3ep"}.items() <= found.items()
    assert set(found) == {"lr", "duration", "methods"}
    assert found["methods"][0]["alpha"] == 0.3
