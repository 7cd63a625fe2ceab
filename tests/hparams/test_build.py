"""A trainer from a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Trainer
from composer.hparams import ConfigError, trainer_from_config
from composer.hparams._yaml import dump
from composer.hparams.build import check
from composer.hparams.config_tree import expanded
from composer.models import ComposerClassifier
from tests.common import classifier, weights
from tests.hparams.configured import HERE, config, make_loader, make_model


def test_a_file_equals_the_call_that_it_describes(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(dump(config(seed=5, algorithms=["EMA", {"MixUp": {"alpha": 0.4}}])))
    described = trainer_from_config(tmp_path / "run.yaml")
    described.fit()

    from composer import rng
    from composer.algorithms import EMA, MixUp

    rng.seed_all(5)
    model = make_model()
    called = Trainer(
        model=model,
        train_dataloader=make_loader(),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration="2ba",
        seed=5,
        algorithms=[EMA(), MixUp(alpha=0.4)],
        progress_bar=False,
    )
    called.fit()
    assert torch.equal(weights(described), weights(called))


def test_initial_weights_follow_from_the_seed() -> None:
    one, other, third = (trainer_from_config(config(seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(weights(one), weights(other))
    assert not torch.equal(weights(one), weights(third))


def test_what_the_program_makes_itself() -> None:
    model, data = ComposerClassifier(torch.nn.Linear(4, 3), num_classes=3), make_loader()
    rest = {name: value for name, value in config().items() if name not in ("model", "train_dataloader")}
    trainer = trainer_from_config(rest, model=model, train_dataloader=data)
    trainer.fit()
    assert trainer.state.model is model
    with pytest.raises(ConfigError, match=r"^model: the program passes this argument itself"):
        trainer_from_config(config(), model=model)
    with pytest.raises(ConfigError, match=r"no argument 'modle'\. Did you mean 'model'"):
        trainer_from_config({}, modle=model)


LOADER = {"class_path": "DataLoader", "init_args": {"batch_size": 4, "dataset": {"class_path": f"{HERE}.Points"}}}


@pytest.mark.parametrize(
    ("loader", "batches"),
    [
        (LOADER, 3),
        ({"class_path": f"{HERE}.Stream", "init_args": {"count": 5}}, 5),
        ({"class_path": "DataSpec", "init_args": {"dataloader": LOADER, "num_samples": 12}}, 3),
    ],
    ids=["DataLoader", "a class of one's own", "DataSpec"],
)
def test_types_of_data(loader: dict[str, Any], batches: int) -> None:
    evaluator = {"class_path": "Evaluator", "init_args": {"label": "test", "dataloader": loader}}
    trainer = trainer_from_config(config(train_dataloader=loader, eval_dataloader=[evaluator], max_duration="1ep"))
    trainer.fit()
    assert int(trainer.state.timestamp.batch) == batches
    assert trainer.state.evaluators[0].label == "test"


def test_groups_of_parameters() -> None:
    groups = {"class_path": "parameter_groups", "init_args": {"weight_decay": 0.01}}
    trainer = trainer_from_config(config(optimizers={"AdamW": {"params": groups}}))
    decay = [group["weight_decay"] for group in trainer.state.optimizers[0].param_groups]
    assert sorted(decay) == [0.0, 0.01]


def test_a_function_of_the_model_that_returns_several_optimizers() -> None:
    trainer = trainer_from_config(config(optimizers={"muon_and_adamw": {"lr": 0.002}}))
    assert [type(optimizer).__name__ for optimizer in trainer.state.optimizers] == ["Muon", "AdamW"]


def test_schedules_of_ours_and_of_torch() -> None:
    ours = trainer_from_config(config(schedulers="CosineAnnealingScheduler"))
    ours.fit()
    assert ours.state.optimizers[0].param_groups[0]["lr"] < 0.1
    torchs = {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 1, "gamma": 0.5}}
    trainer = trainer_from_config(config(schedulers=torchs, step_schedulers_every_batch=True))
    trainer.fit()
    assert trainer.state.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.025)


def test_one_schedule_of_torch_is_for_every_optimizer() -> None:
    step = {"StepLR": {"step_size": 1, "gamma": 0.5}}
    both = config(optimizers={"muon_and_adamw": None}, schedulers=step, step_schedulers_every_batch=True)
    trainer = trainer_from_config(both)
    trainer.fit()
    rates = [group["lr"] for optimizer in trainer.state.optimizers for group in optimizer.param_groups]
    assert rates == pytest.approx([2.5e-4] * len(rates))
    with pytest.raises(ConfigError, match="schedulers: got 3 torch schedulers for 2 optimizers"):
        trainer_from_config({**both, "schedulers": [step] * 3})
    without = {name: value for name, value in both.items() if name != "optimizers"}
    with pytest.raises(ConfigError, match="schedulers: a torch scheduler requires optimizers"):
        trainer_from_config(without)


def test_schedules_that_wait_in_others() -> None:
    inner = {"class_path": "LinearLR", "init_args": {"start_factor": 0.5, "total_iters": 1}}
    rest = {"class_path": "ConstantLR", "init_args": {"factor": 0.25, "total_iters": 9}}
    sequence = {"SequentialLR": {"schedulers": [inner, rest], "milestones": [1]}}
    trainer = trainer_from_config(config(schedulers=sequence, step_schedulers_every_batch=True, max_duration="1ba"))
    trainer.fit()
    assert trainer.state.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"max_duratoin": "1ep"}, "Trainer has no argument 'max_duratoin'. Did you mean 'max_duration'"),
        ({"epochs": 3}, "Use max_duration='10ep'"),
        ({"seed": "x"}, r"seed: 'x' \(str\) is not of the type int \| None"),
        ({"algorithms": {"MixUp": {"alpah": 1}}}, r"algorithms.alpah: MixUp has no such argument. .*'alpha'"),
        ({"algorithms": ["LRMonitor"]}, "is not a subclass of Algorithm, required by algorithms"),
        ({"max_duration": "2epp"}, "2epp"),
        ({"save_folder": 3.5}, "save_folder: 3.5"),
    ],
)
def test_configurations_that_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer_from_config(config(**more))


def test_faults_of_the_users_code_keep_their_traceback() -> None:
    with pytest.raises(ValueError, match="a fault of the user's") as error:
        trainer_from_config(config(model={"class_path": f"{HERE}.Faulty"}))
    assert not isinstance(error.value, ConfigError)


def test_a_configuration_with_its_defaults_describes_the_same(tmp_path: Path) -> None:
    written = expanded(config(algorithms=["EMA"], schedulers={"CosineAnnealingScheduler": {"alpha_f": 0.1}}))
    whole = check(written, {}).tree()
    assert check(expanded(whole), {}).tree() == whole
    assert whole["algorithms"][0]["init_args"]["half_life"] == "1000ba"
    assert whole["save_interval"] == "1ep"
    trainer = trainer_from_config(whole)
    assert trainer.state.algorithms[0].half_life == trainer_from_config(written).state.algorithms[0].half_life


CALLED: list[str] = []


def effect(name: str, *, more: int = 0) -> str:
    """Has a side effect, which a test looks for."""
    CALLED.append(name)
    return name


EFFECT = {"class_path": f"{__name__}.effect", "init_args": {"name": "called"}}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"seed": "x"}, "seed: 'x'"),
        ({"eval_dataloader": {"class_path": "no_such_package.X"}}, "no module named 'no_such_package'"),
        ({"eval_dataloader": {"class_path": "os.no_such_name"}}, "'os.no_such_name' does not exist"),
        ({"eval_dataloader": {"class_path": "os.sep"}}, "neither a class nor a function"),
        ({"eval_dataloader": {"class_path": f"{HERE}.make_loader", "init_args": {"count": "many"}}},
            "'many' .* type int"),
        ({"eval_dataloader": {"class_path": f"{HERE}.make_loader", "args": ["many"]}}, r"args\.0: 'many' .* type int"),
        ({"eval_dataloader": {"class_path": f"{HERE}.make_loader", "args": [1, 2, 3]}}, "takes 2 positional arguments"),
        ({"eval_dataloader": {"class_path": f"{HERE}.make_loader", "args": [1], "init_args": {"count": 1}}},
            "given by position"),
        ({"eval_dataloader": {"class_path": f"{HERE}.make_loader", "init_args": {"cuont": 1}}}, "Did you mean 'count'"),
        ({"eval_dataloader": {"class_path": "builtins.dict", "init_args": {"a": 1}}}, "cannot be checked"),
        ({"callbacks": {"class_path": "torch.nn.Linear", "init_args": {"in_features": 1, "out_features": 1}}},
            "is not a subclass of Callback"),
        ({"algorithms": {"class_path": "LRMonitor"}}, "is not a subclass of Algorithm, required by algorithms"),
        ({"model": {"class_path": "torch.nn.Identity"}}, "is not a subclass of ComposerModel"),
        ({"schedulers": {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 1}},
            "optimizers": None}, "requires optimizers"),
        ({"nonsense": 1}, "no argument 'nonsense'"),
    ],
    ids=range(15),
)  # fmt: skip
def test_nothing_is_called_before_all_is_checked(more, told) -> None:
    """Whatever comes first, a mistake further on is found before it has an effect."""
    CALLED.clear()
    tree = {**config(), "train_dataloader": EFFECT, **more}
    if tree.get("optimizers", 0) is None:
        del tree["optimizers"]
    for order in (tree, dict(reversed(tree.items()))):
        with pytest.raises(ConfigError, match=told):
            trainer_from_config(order)
    assert not CALLED


def test_the_effect_is_one() -> None:
    CALLED.clear()
    with pytest.raises(ConfigError, match="no Callback has the name 'called'"):
        trainer_from_config({**config(), "callbacks": EFFECT})
    assert CALLED


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("run_name: 0123", "^run_name: 0123 is the number 83 in YAML; quote it"),
        ("run_name: 1:30", "^run_name: 1:30 is the number 90 in YAML; quote it"),
        ("run_name: 2024_01_02", "^run_name: 2024_01_02 is the number 20240102"),
        ("seed: -1", "^seed: seed must be from 0"),
    ],
)
def test_numbers_that_are_due_otherwise(text: str, told: str, tmp_path) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=told):
        trainer_from_config(tmp_path / "run.yaml", model=classifier())
