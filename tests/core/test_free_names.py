"""User algorithms, callbacks, loggers and models may use every name that is not a hook or documented method."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
import torch

import composer
from composer import Algorithm, Callback, ComposerModel, DataSpec, Evaluator, Event, Trainer
from composer.core import LoggerDestination
from composer.core.engine import Engine
from composer.core.hooks import Hooks
from composer.core.logger import Logger
from composer.models import ComposerClassifier
from composer.optim import ComposerScheduler

EVENTS = {event.value for event in Event}
# What a subclass may override, and has to mean what it means: the same as in 0.32.
DOCUMENTED = EVENTS | {
    *("run_event", "close", "post_close", "state_dict", "load_state_dict"),
    *("match", "apply", "required_on_load", "find_unused_parameters", "backwards_create_graph"),
    *("log_hyperparameters", "log_table", "log_metrics", "log_traces", "log_images"),
    *("upload_file", "download_file", "can_upload_files"),
}
MODEL = {"forward", "loss", "eval_forward", "update_metric", "get_metrics", "logger", "flops_per_batch"}
WORDS = {
    *(
        "location",
        "logs_here",
        "claims",
        "may_claim",
        "parts",
        "overrides",
        "check",
        "due",
        "conflicts_with",
        "slot",
    ),
    *("receive", "suspend", "show_notice", "flush_interval", "sharding", "sharding_reason", "engine_conflict"),
    *(
        "is_own_state",
        "wrap_handlers",
        "changes_shapes",
        "dynamic_dims",
        "name",
        "names",
        "state",
        "engine",
        "event",
        "events",
        "owner",
    ),
    *("device", "rank", "path", "folder", "filename", "files", "file", "remote_file_name", "interval", "save_interval"),
    *("batch_size", "length", "count", "counts", "count_targets", "is_ours", "metrics", "validate", "traits", "config"),
    *("plan", "plans", "listens", "handlers", "hooks", "kind", "label", "order", "destinations", "queue", "timestamp"),
    *("step", "steps", "epoch", "batch", "monitor", "optimizer", "model", "data", "loader", "dataset", "tokenizer"),
    *("_state", "_logger", "_engine", "_open", "_due", "_targets", "_traits", "_plan", "_hooks", "_closed", "_passes"),
}


@functools.cache
def library_names() -> set[str]:
    """All names that a class of this package has which users subclass or which descends from such a one."""
    for package in ("callbacks", "loggers", "algorithms", "optim", "profiler", "core"):
        for module in pkgutil.iter_modules(importlib.import_module(f"composer.{package}").__path__):
            importlib.import_module(f"composer.{package}.{module.name}")
    bases = [Hooks, ComposerScheduler, DataSpec, Evaluator, Logger, Engine]
    for base in bases:
        bases += [kind for kind in base.__subclasses__() if kind.__module__.startswith("composer.")]
    held = {name for base in bases for name in re.findall(r"self\.(\w+)", Path(inspect.getfile(base)).read_text())}
    return {name for base in bases for name in (*dir(base), *held) if not name.startswith("__")}


def free(*documented: str) -> list[str]:
    return sorted((library_names() | WORDS) - {*documented})


class Odd:
    """A value that is of no use: it cannot be compared, counted, called with arguments or taken for true or false."""

    def __bool__(self):
        raise TypeError("odd")

    __len__ = __iter__ = __eq__ = __bool__
    __hash__ = None

    def __call__(self):
        raise TypeError("odd")


ODD = {"none": None, "text": "odd", "number": -1, "object": Odd(), "list": [Odd()], "tensor": torch.ones(2)}
CASES = [
    *(pytest.param("attribute", value, id=f"attribute {name}") for name, value in ODD.items()),
    *(pytest.param("class attribute", value, id=f"class attribute {name}") for name, value in ODD.items()),
    *(pytest.param(how, None, id=how) for how in ("method", "property")),
]


def made(base: type, how: str, value: object, names: list[str], **own: object) -> type:
    """A class with all of these names, in one of several ways."""

    def method(self):
        raise TypeError("odd")

    if how == "attribute":

        def __init__(self):  # noqa: N807
            super(kind, self).__init__()
            for name in names:
                setattr(self, name, value)

        own["__init__"] = __init__
        names = []
    values = {"method": method, "property": property(method)}
    kind = type("Users", (base,), {**{name: values.get(how, value) for name in names}, **own})
    return kind


def test_library_names_are_found():
    assert {"saved_checkpoints", "interpolate_loss", "bucket_uri", "preview", "files"} <= library_names()


@pytest.mark.filterwarnings("ignore:.*is never called")
@pytest.mark.filterwarnings("ignore:.*has no effect")
@pytest.mark.parametrize(("how", "value"), CASES)
def test_a_run_with_every_name_set(how, value, tmp_path):
    seen: list[str] = []

    def note(self, state, logger):
        seen.append(type(self).__mro__[1].__name__)

    names = free(*DOCUMENTED)
    algorithm, callback, destination = (
        made(base, how, value, names, batch_end=note) for base in (Algorithm, Callback, LoggerDestination)
    )
    names = free("state_dict", "load_state_dict")
    scheduler = made(ComposerScheduler, how, value, names, __call__=lambda self, state, ssr: 0.5)

    def run(duration: str, **more: object) -> None:
        model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
        data = [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))] * 2
        with Trainer(
            model=model,
            train_dataloader=data,
            eval_dataloader=Evaluator(label="eval", dataloader=data),
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            schedulers=scheduler(),
            algorithms=algorithm(),
            callbacks=callback(),
            loggers=destination(),
            max_duration=duration,
            save_folder=str(tmp_path),
            save_overwrite=True,
            on_logger_error="raise",
            **more,
        ) as trainer:
            trainer.fit()
            trainer.eval()
            trainer.predict(data)

    run("1ep")
    run("2ep", load_path=str(tmp_path / "latest-rank0.pt"))
    assert seen == ["Algorithm", "Callback", "LoggerDestination"] * 4


@pytest.mark.filterwarnings("ignore:.*is never called")
@pytest.mark.parametrize(("how", "value"), CASES)
def test_a_model_and_data_with_every_name_set(how, value, tmp_path):
    taken = {*dir(ComposerModel), *MODEL, "linear", "train", "device", "module"}
    # Names by which the predecessor's strategies ask a model how to shard it, and names of nn.Module.
    names = [name for name in free(*taken) if not name.startswith("_")]
    if isinstance(value, torch.Tensor) and how == "attribute":
        value = [value]

    def __init__(self):  # noqa: N807
        ComposerModel.__init__(self)
        self.linear = torch.nn.Linear(2, 1)
        for name in names if how == "attribute" else ():
            setattr(self, name, value)

    kind = made(
        ComposerModel,
        how if how != "attribute" else "class attribute",
        value,
        names if how != "attribute" else [],
        __init__=__init__,
        forward=lambda self, batch: self.linear(batch[0]),
        loss=lambda self, outputs, batch: (outputs - batch[1]).square().mean(),
    )
    spec_names = [n for n in names if n not in vars(DataSpec([])) and n not in dir(DataSpec)]
    of_evaluators = {*vars(Evaluator(label="eval", dataloader=[])), "eval_interval", "device_eval_microbatch_size"}
    evaluator_names = [name for name in names if name not in of_evaluators]
    model, data = kind(), [(torch.randn(4, 2), torch.randn(4, 1))] * 2

    class Data(DataSpec):
        pass

    class Evaluates(Evaluator):
        pass

    spec, evaluator = Data(data), Evaluates(label="eval", dataloader=data)
    if how == "attribute":
        for one, those in ((spec, spec_names), (evaluator, evaluator_names)):
            for name in those:
                setattr(one, name, value)
    else:
        for one, those in ((Data, spec_names), (Evaluates, evaluator_names)):
            for name in those:
                setattr(one, name, value)
    for duration, more in (("1ep", {}), ("2ep", {"load_path": str(tmp_path / "latest-rank0.pt")})):
        with Trainer(
            model=model,
            train_dataloader=spec,
            eval_dataloader=evaluator,
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            max_duration=duration,
            save_folder=str(tmp_path),
            save_overwrite=True,
            **more,
        ) as trainer:
            trainer.fit()
        assert trainer.state.timestamp.epoch == duration


@pytest.mark.parametrize("base", [Algorithm, Callback, LoggerDestination])
def test_arguments_of_the_constructor_are_ignored(base):
    class Users(base):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

    assert isinstance(Users(1, interval="3ba"), base)
    assert inspect.signature(base).bind(1, interval="3ba")


def test_library_class_without_arguments_rejects_arguments():
    from composer.callbacks import LRMonitor

    with pytest.raises(TypeError, match=r"LRMonitor takes no arguments; got interval=3\."):
        LRMonitor(interval=3)
    assert composer.Callback is Callback
