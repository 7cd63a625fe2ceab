"""Public classes and functions refuse a count that is not whole, and public classes a function that is not callable."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch import nn

from composer import algorithms, callbacks, datasets, functional, loggers, metrics, optim, profiler
from composer._numbers import positive, whole_number
from composer._text import callable_or_none
from composer.core import DataSpec, Engine, State
from composer.dist import get_sampler
from composer.estimation.estimate import as_configuration
from composer.models import ComposerClassifier
from composer.nn import GhostBatchNorm2d
from composer.optim import LinearScheduler
from composer.parallel.config import FSDPConfig, TPConfig
from composer.rng import seed_all
from composer.trainer.argument_types import check_arguments

PACKAGES = (algorithms, callbacks, loggers, optim, datasets, functional, metrics, profiler)

# Values of required arguments, by name.
REQUIRED: dict[str, Any] = {
    "batch": {"input_ids": torch.zeros(1, 4, dtype=torch.long)},
    "batch_idx": 0,
    "batch_size": 2,
    "bucket_uri": "memory://integers",
    "curr_seq_len": 2,
    "current_duration": 0.6,
    "data_shape": (4, 4),
    "datadir": "nowhere",
    "documents": [[1, 2]],
    "global_batch_size": 2,
    "img": torch.zeros(1, 3, 8, 8, dtype=torch.uint8),
    "input": torch.zeros(1, 3, 8, 8),
    "interval": "1ep",
    "iters_per_epoch": 10,
    "length": 0.1,
    "loader": [torch.zeros(2, 1)],
    "max_epoch": 2,
    "max_seq_length": 8,
    "max_sequence_length": 8,
    "model": nn.Linear(2, 2),
    "module": nn.Linear(2, 2),
    "monitor": "eval/Accuracy",
    "num_classes": 4,
    "num_features": 8,
    "optimizers": None,
    "prompts": ["a"],
    "remote": "memory://nowhere",
    "sequence_length": 8,
    "schedule": profiler.cyclic_schedule(),
    "snapshots": [],
    "sources": [([torch.zeros(2, 1)], 1.0)],
    "statistics": torch.zeros(3),
    "tasks": "lambada_openai",
    "tensors": (torch.zeros(4, 1),),
    "tokens": torch.zeros(1, 4, 2),
    "trace_handlers": [],
    "total_dataset_size": 8,
    "updates": 1,
    "vocab_size": 8,
    "weights": {},
}

# Other arguments that a class or function needs, in addition to its required ones.
MORE: dict[str, dict[str, Any]] = {
    "BatchSizeWarmup": {"duration": "0.5dur", "end": 8},
    "SlackLogger": {"slack_logging_api_key": "xoxb-1", "channel_id": "C1"},
    "SyntheticBatchPairDataset": {"num_classes": 4},
    "SyntheticPILDataset": {"num_classes": 4},
}

# Classes that users receive, and do not create.
_NOT_MADE = ("Marker",)

# Packages that a class imports when it is created: slow to import, or not installed. A stub does not check arguments.
PACKAGES_OF = {
    "MLFlowLogger": ("mlflow", "psutil"),
    "SlackLogger": ("slack_sdk",),
    "TensorboardLogger": ("tensorboard", "torch.utils.tensorboard"),
}


def _subjects() -> Iterator[tuple[str, Callable[..., Any]]]:
    seen: set[int] = set()
    for package in PACKAGES:
        for name in dir(package):
            found = getattr(package, name)
            if name in _NOT_MADE or name.startswith("_") or id(found) in seen:
                continue
            if not (inspect.isclass(found) or inspect.isfunction(found)):
                continue
            if (found.__module__ or "").startswith("composer."):
                seen.add(id(found))
                yield name, found


def _annotated(is_wanted: Callable[[set[str]], bool]) -> list[Any]:
    """Each parameter whose annotation, as the set of the types in its union, is wanted."""
    cases: list[Any] = []
    for name, subject in _subjects():
        for parameter in inspect.signature(subject).parameters.values():
            written = inspect.formatannotation(parameter.annotation).strip("'\"")
            if is_wanted({part.strip() for part in written.split("|")}):
                cases.append(pytest.param(name, subject, parameter.name, id=f"{name}-{parameter.name}"))
    return cases


COUNTS = _annotated(lambda types: "int" in types and types <= {"int", "None"})
CALLABLES = [
    case
    for case in _annotated(lambda types: any(one.startswith("Callable[") for one in types))
    if inspect.isclass(case.values[1])
]


def _call(name: str, subject: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch, **given: Any) -> Any:
    for package in PACKAGES_OF.get(name, ()):
        monkeypatch.setitem(sys.modules, package, MagicMock())
    own = {"root_folder": folder, "index": 0, "tracking_uri": str(folder), "log_dir": str(folder)}
    arguments: dict[str, Any] = {}
    for parameter in inspect.signature(subject).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name in given:
            continue
        if parameter.name in own:
            arguments[parameter.name] = own[parameter.name]
        elif parameter.default is parameter.empty:
            assert parameter.name in REQUIRED, f"add a value of {name}({parameter.name}=) to REQUIRED"
            arguments[parameter.name] = REQUIRED[parameter.name]
    return subject(**{**arguments, **MORE.get(name, {}), **given})


def test_finds_the_arguments() -> None:
    assert len(COUNTS) > 100
    assert len(CALLABLES) > 5


@pytest.mark.parametrize(("name", "subject", "argument"), COUNTS)
def test_a_count_must_be_whole(
    name: str, subject: Callable[..., Any], argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (2.5, True, np.True_, "3", float("inf")):
        with pytest.raises((TypeError, ValueError), match=rf"\b{argument}\b.*{re.escape(repr(value))}"):
            _call(name, subject, tmp_path, monkeypatch, **{argument: value})


@pytest.mark.parametrize(("name", "subject", "argument"), [case for case in COUNTS if inspect.isclass(case.values[1])])
def test_a_whole_float_becomes_an_integer_or_is_refused_by_name(
    name: str, subject: Callable[..., Any], argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        made = _call(name, subject, tmp_path, monkeypatch, **{argument: 4.0})
    except (TypeError, ValueError) as error:
        assert re.search(rf"\b{argument}\b", str(error)), error
    else:
        assert isinstance(getattr(made, argument, 4), int)


@pytest.mark.parametrize(("name", "subject", "argument"), COUNTS)
def test_an_integer_of_numpy_is_one_of_python(
    name: str, subject: Callable[..., Any], argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        _call(name, subject, tmp_path, monkeypatch, **{argument: 4})
    except Exception:
        return  # out of range, or too much for the other arguments
    made = _call(name, subject, tmp_path, monkeypatch, **{argument: np.int64(4)})
    assert type(getattr(made, argument, 4)) is int


@pytest.mark.parametrize(("name", "subject", "argument"), CALLABLES)
def test_a_function_must_be_callable(
    name: str, subject: Callable[..., Any], argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"\b{argument}\b.*2\.5"):
        _call(name, subject, tmp_path, monkeypatch, **{argument: 2.5})


@pytest.mark.parametrize("value", [3, 3.0, np.int64(3), np.float32(3), torch.tensor(3)], ids=repr)
def test_whole_numbers(value: Any) -> None:
    found = whole_number("depth", value)
    assert type(found) is int
    assert found == 3


@pytest.mark.parametrize(
    "value",
    [None, True, np.True_, torch.tensor(True), "3", 2.5, float("nan"), float("-inf"), 3j, [3], torch.tensor(2.5)],
    ids=repr,
)
def test_no_whole_numbers(value: Any) -> None:
    with pytest.raises(TypeError, match=r"depth must be an integer, but got .*such as 2"):
        whole_number("depth", value, minimum=2)


def test_the_minimum() -> None:
    assert whole_number("depth", 0) == 0
    assert whole_number("depth", -1.0, minimum=None) == -1
    with pytest.raises(ValueError, match=r"depth must be 0 or greater, but got -1\."):
        whole_number("depth", -1)
    with pytest.raises(ValueError, match=r"depth must be greater than 0, but got 0\."):
        whole_number("depth", 0, minimum=1)


def test_none_is_no_function_but_allowed() -> None:
    assert callable_or_none("transform", None) is None
    assert callable_or_none("transform", len) is len


OTHERS: dict[str, Callable[[Any], Any]] = {
    "classifier": lambda value: ComposerClassifier(nn.Linear(2, 4), num_classes=value).num_classes,
    "data": lambda value: DataSpec([], num_samples=value).num_samples,
    "degree": lambda value: TPConfig(tensor_parallel_degree=value, layer_plan={"up": None}).tensor_parallel_degree,
    "ghosts": lambda value: GhostBatchNorm2d(2, ghost_batch_size=value).ghost_batch_size,
    "group": lambda value: LinearScheduler().assign(groups=value).groups[0],
    "groups": lambda value: LinearScheduler().assign(groups=[value, "body"]).groups[0],
    "limit": lambda value: FSDPConfig(forward_prefetch_limit=value).forward_prefetch_limit,
    "optimizer": lambda value: LinearScheduler().assign(optimizer=value).optimizer,
    "pass": lambda value: Engine(State(nn.Linear(1, 1))).register_pass(lambda given, event: given, value) or int(value),
    "processes": lambda value: as_configuration(value, None, None, None, []).processes,
    "replicas": lambda value: get_sampler([0] * 8, num_replicas=value, rank=0).num_replicas,
    "seed": lambda value: seed_all(value) or int(value),
}


@pytest.mark.parametrize("name", OTHERS)
def test_integers_of_other_modules(name: str) -> None:
    found = OTHERS[name](np.int64(4))
    assert type(found) is int
    assert found == 4
    for value in (np.True_, True, 2.5):
        with pytest.raises((TypeError, ValueError), match=re.escape(repr(value))):
            OTHERS[name](value)


def test_booleans_of_numpy_are_no_numbers() -> None:
    for value in (True, np.True_, torch.tensor(True)):
        with pytest.raises(TypeError, match="alpha must be a number, but got "):
            positive("alpha", value)  # type: ignore[type-var]
        with pytest.raises(TypeError, match="min_lr must be a number, but got "):
            check_arguments({"min_lr": value})
