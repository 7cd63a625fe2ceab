"""Names of other libraries lead to names that are here, in errors only."""

from __future__ import annotations

import ast
import datetime
import functools
import importlib
import inspect
import re

import numpy as np
import pytest
import torch
import torchmetrics

import composer
from composer import ComposerModel, State, Trainer
from composer._compat.name_hints import argument_hint, class_hint, class_meant, member_hint
from composer._compat.other_libraries import ARGUMENTS, CLASSES, MEMBERS, MODEL_MEMBERS, SHORT_NAMES
from tests import after_torch
from tests.common import Regression, regression_data, trainer_of

THERE = set(inspect.signature(Trainer).parameters)
PACKAGES = ("algorithms", "callbacks", "loggers", "models", "optim", "core", "metrics", "profiler", "functional")


def test_arguments_lead_to_arguments() -> None:
    assert THERE.isdisjoint(ARGUMENTS)
    # An answer begins with an argument of the trainer, or with code.
    begun = {re.match(r"\w+", today)[0] for today in ARGUMENTS.values()}
    assert begun - THERE == {
        "CheckpointSaver", "ComposerClassifier", "ComposerModel", "DataLoader", "Evaluator", "the",
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
        ("processing_class", None, " Use model=HuggingFaceModel(model, tokenizer=...)."),
        ("compile", True, " Use compile_config={}."),
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
        ("from composer import Accelerator", "composer.Trainer"),
        ("from composer import Learner", "composer.Trainer"),
        ("from composer import DataLoader", "the class of this name in torch.utils.data"),
        ("from composer.callbacks import Checkpoint", "composer.callbacks.CheckpointSaver"),
        ("from composer.models import ResNet", "composer.models.ComposerResNet"),
        ("from composer.optim import WSDScheduler", "composer.optim.WarmupStableDecayScheduler"),
        ("from composer.optim import OneCycleScheduler", "torch.optim.lr_scheduler.OneCycleLR"),
        ("from composer.loggers import ClearMLLogger", "a custom LoggerDestination, as there is no logger for ClearML"),
        ("from composer.functional import label_smoothing", "composer.functional.smooth_labels"),
        ("from composer.functional import blurpool", "composer.functional.apply_blurpool"),
        ("from composer.functional import cut_mix", "composer.functional.cutmix_batch"),
        ("from composer.functional import clip_gradients", "composer.functional.apply_gradient_clipping"),
        ("from composer.functional import Mixup", "composer.algorithms.MixUp"),
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
    exec("from composer.callbacks import _monitored_metric", names := {})
    assert names["_monitored_metric"].__name__ == "composer.callbacks._monitored_metric"


def test_the_table_is_loaded_by_errors_only() -> None:
    code = (
        "import sys, composer; from composer import Trainer; import composer.callbacks, composer.algorithms\n"
        "assert 'composer._compat.other_libraries' not in sys.modules\n"
        "hasattr(composer.callbacks, 'EarlyStopping'); assert 'composer._compat.other_libraries' in sys.modules"
    )
    done = after_torch.run(code)
    assert done.returncode == 0, done.stderr


VALUES = [1, 3, 100, 0.5, 1.0, True, False, None, "auto", "none", "epoch", "steps", "no", "linear", "cosine", "adamw",
          "00:12:00:00", "cpu", "bf16", "tensorboard", np.int64(7), {"hours": 2},
          datetime.timedelta(minutes=90)]  # fmt: skip
SCHEDULES = ["linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
             "inverse_sqrt", "step", "exponential", "warmup_stable_decay"]  # fmt: skip
METHODS = {"fit": Trainer.fit, "eval": Trainer.eval, "predict": Trainer.predict, "find_lr": Trainer.find_lr}


def _code(hint: str, begin: str, end: str) -> dict[str, ast.expr]:
    """The arguments that a hint says to give, where it gives their values."""
    if not hint.startswith(begin) or "..." in hint:
        return {}
    try:
        call = ast.parse(f"f({hint.removeprefix(begin).removesuffix(end)})".replace("<metric>", "loss"), mode="eval")
    except SyntaxError:
        return {}
    return {keyword.arg: keyword.value for keyword in call.body.keywords}


@functools.cache
def _is_taken(argument: str, source: str) -> bool:
    """Whether a trainer takes the value of an argument."""
    loader, model = regression_data(), Regression()
    scope = {"composer": composer, "torch": torch, "model": model, "train_dataloader": loader,
             "eval_dataloader": loader, **vars(importlib.import_module("composer.callbacks")),
             **{n: getattr(composer.algorithms, n) for n in composer.algorithms.__all__},
             **{n: getattr(composer.callbacks, n) for n in composer.callbacks.__all__}}  # fmt: skip
    value = eval(source, scope)
    outside = argument in ("loggers", "progress_bar", "compile_config") or value in (
        "gpu",
        "mps",
        "tpu",
        "amp_fp16",
        "amp_fp8",
    )
    if not outside:
        trainer_of(**{"model": model, "data": loader, argument: value})
    return True


@pytest.mark.filterwarnings("ignore::composer.warnings.ComposerWarning")  # a warm-up longer than this run
@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_a_hint_that_is_followed_works(name) -> None:
    """For the trainer and for each of its methods, with values of many kinds."""
    for value in [*VALUES, *(SCHEDULES if "sched" in name else ())]:
        if name == "label_smoothing_factor" and value not in (0.5, 1.0):
            continue  # no share, in no library
        for argument, node in _code(argument_hint(name, THERE, value), " Use ", ".").items():
            assert argument in THERE
            assert _is_taken(argument, ast.unparse(node))
        for method in METHODS.values():
            known = [one for one in inspect.signature(method).parameters if one not in ("self", "unknown")]
            hint = argument_hint(name, known, value, of_trainer=THERE)
            assert _code(hint, " Use ", ".").keys() <= set(known), (method, value)
            for argument in _code(hint, " Pass it to the Trainer: Trainer(", ")."):
                assert argument in THERE - set(known)
            first = re.match(r" Use (\w+)", hint)
            assert first is None or first[1] in known or first[1] not in THERE, hint


@pytest.mark.parametrize("name", sorted(THERE))
def test_a_slip_is_told_and_an_unrelated_name_is_not(name) -> None:
    cut, swapped = name[:2] + name[3:], name[:1] + name[2] + name[1] + name[3:]
    for written in (cut, swapped, name + "s", name[:3] + name[2:]):
        if len(written) > 4 and written not in THERE | set(ARGUMENTS) and written != name:
            assert argument_hint(written, [name]) == f" Did you mean {name!r}?"


@pytest.mark.parametrize(
    "name", ["save_every_hour", "modes_of_it", "prefix", "run", "metric_key_prefix", "profile_memory", "world",
             "log_dir", "load", "save", "interval", "train", "eval", "data_format",
             "load_in_8bit", "length_column_name", "callable"]
)  # fmt: skip
def test_unrelated_names_get_no_guess(name) -> None:
    assert "Did you mean" not in argument_hint(name, THERE)


@pytest.mark.parametrize(
    ("name", "value", "answer"),
    [
        ("val_check_interval", 0.25, "eval_interval='25ba'"),
        ("limit_train_batches", 0.1, "train_subset_num_batches=10"),
        ("report_to", "none", "the default: omit this argument"),
        ("report_to", ["wandb"], "loggers='wandb'"),
        ("lr_scheduler_type", "cosine", "schedulers=composer.optim.CosineAnnealingWithWarmupScheduler(t_warmup='0ba')"),
        ("max_time", "00:12:00:00", "max_duration='12h'"),
        ("max_time", "01:00:30:05", "max_duration='24h30m5s'"),
        ("accelerator", "cpu", "device='cpu'"),
        ("use_cpu", True, "device='cpu'"),
        ("devices", 1, "the default: omit this argument"),
        ("devices", 4, "the launcher: composer -n 4 train.py"),
        ("disable_tqdm", True, "progress_bar=False"),
        ("mixed_precision", "bf16", "precision='amp_bf16'"),
    ],
)
def test_the_answer_fits_the_value(name, value, answer) -> None:
    assert argument_hint(name, THERE, value, batches=100) == f" Use {answer}."


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_no_value_breaks_a_hint(name) -> None:
    odd = [torch.zeros(3), np.zeros(3), [torch.zeros(2)], object(), float("nan"), float("inf"), -1, 10**30, "", b"x",
           [], {}, {"a": 1}, regression_data(), Trainer, lambda: 1, (1, 2), datetime.timedelta()]  # fmt: skip
    for value in odd:
        assert argument_hint(name, THERE, value).startswith(" Use ")
