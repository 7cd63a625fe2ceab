"""Invalid values for every argument: a one-line error names the argument, and nothing changes."""

from __future__ import annotations

import collections
import inspect
import pathlib
import warnings

import numpy as np
import pytest
import torch

from composer import Evaluator, Trainer
from composer.trainer.argument_types import _CHECKS, check_arguments
from tests.common import Regression, regression_data, trainer_of


class Thing:
    def __repr__(self) -> str:
        return "<Thing>"


HOSTILE = [Thing(), "1epoc", "", -7, 1.5, float("nan"), [3], {"a": 1}, Thing, b"x"]
# What an argument takes of these; what else it does not refuse is checked where it is used.
TAKEN = {
    "train_dataloader_label": ["1epoc"], "run_name": ["1epoc", ""], "load_path": ["1epoc"], "save_folder": ["1epoc"],
    "save_filename": ["1epoc"], "save_latest_filename": ["1epoc"], "name": ["1epoc"], "python_log_level": ["1epoc", ""],
    "eval_interval": [-7], "save_interval": [-7], "dist_timeout": [1.5], "precision_config": [{"a": 1}],
    "deepspeed_config": [{"a": 1}], "fsdp_config": [{"a": 1}], "min_lr": [1.5], "max_lr": [1.5], "stop_factor": [1.5],
    "num_batches": [-7],
}  # fmt: skip
ELSEWHERE = {
    "algorithms", "algorithm_passes", "callbacks", "ddp_sync_strategy", "device", "device_train_microbatch_size",
    "eval_batches_before_fit", "eval_dataloader", "grad_accum", "load_object_store", "loggers", "model",
    "on_logger_error", "optimizers", "overfit_batches", "parallelism_config", "precision", "profiler",
    "scale_schedule_ratio", "schedulers", "train_dataloader",
}  # fmt: skip


def made(**arguments: object) -> Trainer:
    """A trainer; unlike those of other tests, every argument can be replaced."""
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    defaults = {"model": model, "train_dataloader": regression_data(), "max_duration": 1, "progress_bar": False}
    return Trainer(**{**defaults, "optimizers": optimizer, **arguments})


def refused(call, name: str, value: object) -> None:
    with warnings.catch_warnings(), pytest.raises((TypeError, ValueError)) as raised:
        warnings.simplefilter("ignore")
        call(**{name: value})
    message = str(raised.value)
    assert name in message or (name == "fsdp_config" and "fsdp" in message), message
    assert "\n" not in message


def test_every_argument_is_known_to_the_test() -> None:
    known = set(inspect.signature(Trainer).parameters) - {"unknown"}
    assert known == (known & set(_CHECKS)) | ELSEWHERE
    assert not ELSEWHERE & set(_CHECKS)


@pytest.mark.parametrize("name", [name for name in _CHECKS if name in inspect.signature(Trainer).parameters])
def test_the_trainer(name) -> None:
    for value in HOSTILE:
        if value not in TAKEN.get(name, []):
            refused(made, name, value)


@pytest.mark.parametrize("name", sorted(ELSEWHERE - {"train_dataloader", "model", "load_object_store"}))
def test_arguments_that_are_checked_where_they_are_used(name) -> None:
    for value in HOSTILE:
        taken = {"algorithm_passes": [Thing], "eval_dataloader": [[3]]}.get(name, [])
        if not any(value is one or value == one for one in taken):
            refused(made, name, value)


@pytest.mark.parametrize("name", [name for name in _CHECKS if name in inspect.signature(Trainer.fit).parameters])
def test_fit(name) -> None:
    trainer = trainer_of(eval_dataloader=regression_data(1))
    for value in HOSTILE:
        if value not in TAKEN.get(name, []):
            refused(trainer.fit, name, value)
    assert trainer.state.timestamp.batch == 0


def test_eval_predict_save_and_find_lr() -> None:
    trainer = trainer_of(eval_dataloader=regression_data(1))
    for value in HOSTILE:
        refused(trainer.eval, "subset_num_batches", value)
        refused(lambda **more: trainer.predict(regression_data(1), **more), "subset_num_batches", value)
        refused(lambda **more: trainer.predict(regression_data(1), **more), "return_outputs", value)
        refused(trainer.save_checkpoint, "weights_only", value)
        if value != "1epoc":
            refused(trainer.save_checkpoint, "name", value)
        for name in ("min_lr", "max_lr", "stop_factor", "num_batches"):
            if value not in TAKEN[name]:
                refused(trainer.find_lr, name, value)


def test_arguments_as_scripts_pass_them() -> None:
    trainer = trainer_of(
        seed=np.int64(3),
        train_subset_num_batches=np.int32(2),
        spin_dataloaders=np.True_,
        save_overwrite=None,
        log_traces=0,
        save_folder=None,
        load_path=None,
        load_exclude_algorithms=(),
        eval_interval=lambda state, event: False,
        dist_timeout=np.float32(3),
    )
    trainer.fit()
    assert trainer.state.timestamp.batch == 2


def test_examples_of_the_messages(tmp_path) -> None:
    def of(**arguments) -> str:
        with pytest.raises((TypeError, ValueError, OSError)) as raised:
            made(**arguments)
        return str(raised.value)

    assert of(seed="a") == "seed must be an integer; got 'a'."
    assert of(seed=-1) == f"seed must be from 0 to {2**32 - 1}; got -1."
    assert of(progress_bar="false") == "progress_bar must be True or False; got 'false'."
    assert of(save_interval="1epoc").startswith("save_interval='1epoc' is not valid. 'epoc' is not a unit of time.")
    assert of(load_ignore_keys="a") == (
        "load_ignore_keys, unless it is a function, must be a list of strings; got 'a'. Pass ['a']."
    )
    assert (
        of(compile_config={"mod": "x"}) == "compile_config: torch.compile has no argument 'mod'. Did you mean 'mode'?"
    )
    assert of(compile_config={"model": 1}) == (
        "compile_config: the trainer passes its model to torch.compile itself; leave 'model' out."
    )
    assert of(compile_config={"dynamic": "yes"}) == "compile_config: dynamic must be True, False or None; got 'yes'."
    assert of(compile_config={"backend": 3}).startswith("compile_config: backend must be the name of a backend")
    for wrong in ({"mode": "fast"}, {"backend": "unheard of"}, {"options": {"fast": 1}}):
        assert of(compile_config=wrong).startswith(f"compile_config={wrong!r}: ")
    assert of(load_path=pathlib.Path("no/such.pt")).startswith("load_path='no/such.pt': There is no checkpoint")
    (tmp_path / "file").touch()
    assert "save_folder (folder of CheckpointSaver) cannot be created: " in of(save_folder=str(tmp_path / "file" / "x"))


def test_a_rejected_argument_has_no_effect() -> None:
    model = Regression()
    with pytest.raises(TypeError, match="dry_run must be True or False"):
        made(model=model, optimizers=None, seed=3, deterministic_mode=True, dry_run="no", train_dataloader=[])
    assert model.logger is None
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("kind", [int, np.int64, np.uint32, np.int8, torch.tensor])
def test_integers_of_numpy_and_torch(kind) -> None:
    """Each integer argument also accepts the integers of other libraries, and the run works with them."""
    evaluator = Evaluator(
        label="mine", dataloader=regression_data(), device_eval_microbatch_size=kind(2), subset_num_batches=kind(1)
    )
    trainer = trainer_of(
        seed=kind(3),
        overfit_batches=kind(1),
        eval_batches_before_fit=kind(1),
        device_train_microbatch_size=kind(2),
        train_subset_num_batches=kind(2),
        eval_dataloader=evaluator,
        eval_subset_num_batches=kind(1),
        max_duration="1ba",
    )
    trainer.fit()
    trainer.eval(subset_num_batches=kind(1))
    assert len(trainer.predict(regression_data(), kind(1))) == 1
    trainer.find_lr(num_batches=kind(3))
    assert type(trainer.state.seed) is int
    assert trainer.state.seed == 3


def test_numbers_of_batches_as_whole_floats() -> None:
    """Configurations write 1e3, which YAML and arithmetic make a float."""
    evaluator = Evaluator(label="mine", dataloader=regression_data(), subset_num_batches=1.0)
    trainer = trainer_of(
        eval_batches_before_fit=1.0,
        train_subset_num_batches=2.0,
        eval_dataloader=evaluator,
        eval_subset_num_batches=1.0,
        max_duration="1ep",
    )
    trainer.fit(train_subset_num_batches=2.0)
    assert trainer.state.timestamp.batch == 2
    trainer.eval(subset_num_batches=1.0)
    assert len(trainer.predict(regression_data(), 1.0)) == 1
    assert len(trainer.find_lr(num_batches=3.0).learning_rates) == 3


@pytest.mark.parametrize("name", ["seed", "overfit_batches", "eval_batches_before_fit", "device_train_microbatch_size"])
@pytest.mark.parametrize("value", [np.float64(1.5), torch.tensor(1.5), torch.tensor(True), np.bool_(True), "1"])
def test_non_integer_error_names_its_argument(name, value) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{name} must be "):
        trainer_of(**{name: value})


def test_none_as_number_of_batches_means_all() -> None:
    trainer = trainer_of(eval_dataloader=regression_data(), eval_subset_num_batches=None, max_duration="1ba")
    trainer.fit(eval_subset_num_batches=None)
    trainer.eval(subset_num_batches=None)
    assert len(trainer.predict(regression_data(), None)) == len(list(regression_data()))


@pytest.mark.parametrize("kind", [list, tuple, set, collections.UserList, collections.deque])
def test_names_may_be_in_any_sequence(kind) -> None:
    check_arguments({"load_ignore_keys": kind(["state/rng"]), "load_exclude_algorithms": kind(["EMA"])})
