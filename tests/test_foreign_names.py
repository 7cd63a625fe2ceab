"""Names of other libraries lead to names that are here, in errors only."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys

import pytest
import torch
import torchmetrics

import composer
from composer import ComposerModel, State, Trainer
from composer._foreign_names import ARGUMENTS, CLASSES, MEMBERS, MODEL_MEMBERS, SHORT_NAMES
from composer._name_hints import argument_hint, class_hint, class_meant, member_hint

THERE = set(inspect.signature(Trainer).parameters)
PACKAGES = ("algorithms", "callbacks", "loggers", "models", "optim", "core", "metrics", "profiler")


def test_arguments_lead_to_arguments() -> None:
    assert THERE.isdisjoint(ARGUMENTS)
    # An answer begins with an argument of the trainer, or with code.
    begun = {re.match(r"\w+", today)[0] for today in ARGUMENTS.values()}
    assert begun - THERE == {
        "CheckpointSaver", "ComposerClassifier", "ComposerModel", "DataLoader", "Evaluator", "arguments", "the",
        "torch", "trainer",
    }  # fmt: skip


def test_members_lead_to_what_is_there() -> None:
    there = set(dir(Trainer)) - {"__getattr__"}
    assert there.isdisjoint(MEMBERS)
    state = State(model=torch.nn.Linear(1, 1))
    for answer in {*MEMBERS.values(), *MODEL_MEMBERS.values()}:
        for name in re.findall(r"\btrainer\.(\w+)", answer):
            assert name in there | {"state", "logger"}, answer
        for name in re.findall(r"\bstate\.(\w+)", answer):
            assert hasattr(state, name), answer
        for name in re.findall(r"Trainer\((\w+)=", answer):
            assert name in THERE, answer
    assert all(not hasattr(ComposerModel, name) for name in MODEL_MEMBERS)


def test_classes_lead_to_classes() -> None:
    ours = {name for package in PACKAGES for name in importlib.import_module(f"composer.{package}").__all__}
    ours |= set(composer.__all__)
    for answer in {*CLASSES.values(), *SHORT_NAMES.values()}:
        if " " in answer:
            continue
        module, _, name = answer.rpartition(".")
        assert hasattr(importlib.import_module(module), name) if module else answer in ours, answer
    assert hasattr(torchmetrics, "Accuracy")
    assert not set(CLASSES) & (ours - {"MulticlassAccuracy"})


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("max_epochs", 3, " Use max_duration='3ep'."),
        ("max_epochs", -1, " Use max_duration='10ep'."),
        ("max_steps", 500, " Use max_duration='500ba'."),
        ("max_grad_norm", 0.5, " Use algorithms=[GradientClipping('norm', 0.5)]."),
        ("learning_rate", 3e-4, " Use optimizers=torch.optim.AdamW(model.parameters(), lr=0.0003)."),
        ("learning_rate", "auto", " Use optimizers=torch.optim.AdamW(model.parameters(), lr=...)."),
        ("save_total_limit", 2, " Use save_num_checkpoints_to_keep=2."),
        ("per_device_train_batch_size", 8, " Use DataLoader(dataset, batch_size=8) as train_dataloader."),
        ("fast_dev_run", True, " Use dry_run=True."),
        ("max_duraton", "1ep", " Did you mean 'max_duration'?"),
        ("qqq", 1, ""),
    ],
)
def test_numbers_stand_in_the_answer(name, value, hint) -> None:
    assert argument_hint(name, THERE, value) == hint


def test_hints() -> None:
    assert member_hint("evaluate", []) == " Use trainer.eval(), and trainer.state.eval_metric_values."
    assert member_hint("predcit", ["predict"]) == " Did you mean 'predict'?"
    assert class_hint("MixUp", {"MixUp": "composer.algorithms"}) == " Use composer.algorithms.MixUp."
    assert class_hint("Nothing", {}) == ""
    assert class_meant("lr monitor", ["LRMonitor"]) == "LRMonitor"
    assert class_meant("LR-Monitor", ["LRMonitor"]) == "LRMonitor"
    assert class_meant("comet", ["CometMLLogger"]) == "CometMLLogger"
    assert class_meant("comet", ["CSVLogger"]) is None


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("from composer.callbacks import EarlyStopping", "composer.callbacks.EarlyStopper"),
        ("from composer.callbacks import ModelCheckpoint", "composer.callbacks.CheckpointSaver"),
        ("from composer.callbacks import MixUp", "composer.algorithms.MixUp"),
        ("from composer.callbacks import WandbLogger", "composer.loggers.WandBLogger"),
        ("from composer.algorithms import Mixup", "composer.algorithms.MixUp"),
        ("from composer.loggers import WandbLogger", "composer.loggers.WandBLogger"),
        ("from composer.loggers import CsvLogger", "composer.loggers.CSVLogger"),
        ("from composer import LightningModule", "composer.ComposerModel"),
        ("from composer import Model", "composer.ComposerModel"),
        ("from composer import EarlyStopper", "composer.callbacks.EarlyStopper"),
        ("from composer.optim import AdamW", "torch.optim.AdamW"),
        ("from composer.optim import ReduceLROnPlateau", "composer.optim.ReduceOnPlateauScheduler"),
        ("from composer.models import AutoModel", "composer.models.HuggingFaceModel"),
        ("from composer import Trainr", None),
    ],
)
def test_imports(line, answer) -> None:
    name = line.split()[-1]
    with pytest.raises(ImportError) as raised:
        exec(line, {})
    hint = "Did you mean 'Trainer'?" if answer is None else f"Use {answer}."
    assert str(raised.value) == f"cannot import name {name!r} from {line.split()[1]!r}. {hint}"
    assert raised.value.name == line.split()[1]
    assert not hasattr(importlib.import_module(line.split()[1]), name)


def test_an_attribute_is_no_import() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'EarlyStopping'\. Use composer\.callbacks\.EarlyStopper\."):
        _ = composer.callbacks.EarlyStopping
    # A submodule that is found only by the import system is imported as ever.
    exec("from composer.callbacks import _monitored", names := {})
    assert names["_monitored"].__name__ == "composer.callbacks._monitored"


def test_the_table_is_loaded_by_errors_only() -> None:
    code = (
        "import sys, composer; from composer import Trainer; import composer.callbacks, composer.algorithms\n"
        "assert 'composer._foreign_names' not in sys.modules\n"
        "hasattr(composer.callbacks, 'EarlyStopping'); assert 'composer._foreign_names' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
