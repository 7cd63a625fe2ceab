"""Programs: files and options, help, and mistakes in one line."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from composer import Trainer
from composer.cli.launch_options import parse
from composer.hparams import trainer_from_args
from composer.hparams.__main__ import main
from composer.hparams._yaml import dump, load
from tests.hparams.configured import HERE, config, make_model
from tests.ranks import Ranks


@pytest.fixture
def run(tmp_path: Path) -> str:
    path = tmp_path / "run.yaml"
    path.write_text(dump(config(algorithms=["EMA", {"MixUp": {"alpha": 0.4}}])))
    return str(path)


def left_with(code: int, *arguments: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    assert left.value.code == code


@pytest.mark.parametrize("before", [[], ["--config"]])
def test_options_go_before_files_and_files_before_defaults(run: str, before: list[str], tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("max_duration: 3ba\nseed: 4\n")
    files = [*before, run, *before, str(tmp_path / "more.yaml")]
    options = "--seed 5 --optimizers.lr=2e-1 --algorithms.MixUp.alpha 0.7 --callbacks+ LRMonitor --model.width=5"
    trainer = trainer_from_args(
        [*files, *options.split()],
        defaults={"max_duration": "9ba", "run_name": "default"},
    )
    state = trainer.state
    assert (str(state.max_duration), state.seed, state.run_name) == ("3ba", 5, "default")
    assert state.optimizers[0].param_groups[0]["lr"] == 0.2
    assert state.algorithms[1].alpha == 0.7
    assert state.model.module[0].out_features == 5
    assert [type(callback).__name__ for callback in state.callbacks] == ["LRMonitor"]


def test_names_may_have_dashes_and_numbers_may_be_names(run: str) -> None:
    trainer = trainer_from_args([run, "--run-name", "42", "--train-subset-num-batches", "-1"])
    assert trainer.state.run_name == "42"


def test_the_program_may_give_the_model() -> None:
    model = make_model()
    assert trainer_from_args(["--progress_bar", "false"], model=model).state.model is model


def test_training(run: str, tmp_path: Path) -> None:
    main([run, "--save_folder", str(tmp_path / "saved")])
    assert (tmp_path / "saved" / "ep0-ba2-rank0.pt").exists()


def test_the_printed_configuration_reads_as_the_same(run: str, tmp_path: Path, capsys) -> None:
    left_with(0, run, "--seed", "7", "--print_config")
    printed = capsys.readouterr().out
    assert load(printed)["seed"] == 7
    (tmp_path / "printed.yaml").write_text(printed)
    left_with(0, str(tmp_path / "printed.yaml"), "--print_config")
    assert capsys.readouterr().out == printed


def test_help(run: str, capsys) -> None:
    left_with(0, "--help")
    text = capsys.readouterr().out
    assert text.startswith("usage: ")
    for name in Trainer.__init__.__kwdefaults__:
        assert re.search(rf"^  --{name}[ ,]", text, re.M)
    for name in ("MixUp", "LRMonitor", "CSVLogger", "AdamW", "LinearScheduler", "ComposerClassifier"):
        assert name in text
    assert ":class:" not in text
    assert "known subclasses" not in text


@pytest.mark.parametrize(
    ("arguments", "title", "argument"),
    [
        (["--help", "MixUp"], "composer.algorithms.MixUp", "--alpha ALPHA "),
        (["--help=torch.nn.Linear"], "torch.nn.Linear", "--in_features "),
        (["--algorithms.help", "EMA"], "composer.algorithms.EMA", "--half_life "),
        (["RUN", "--help", "model"], f"{HERE}.make_model", "Of the hidden layer."),
        (["RUN", "--optimizers.help"], "torch.optim.SGD", "--momentum "),
    ],
)
def test_help_of_classes(arguments: list[str], title: str, argument: str, run: str, capsys) -> None:
    left_with(0, *(run if word == "RUN" else word for word in arguments))
    text = capsys.readouterr().out
    assert text.startswith(f"{title}\n")
    assert argument in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max_duratoin", "2ep"], "Trainer has no argument 'max_duratoin'. Did you mean 'max_duration'?"),
        (["--seed"], "--seed requires a value."),
        (["--seed", "x"], "seed: 'x' (str) is not of the type int | None."),
        (["--callbacks", "[LRMonitr]"], "callbacks.0: unknown class 'LRMonitr'. Did you mean 'LRMonitor'?"),
        (["-x"], "unknown option '-x'"),
        (["nosuch.yaml"], "nosuch.yaml: No such file or directory"),
        (["--optimizers", "{SGD"], "--optimizers: invalid YAML"),
        (["--algorithms.Mixup.alpha", "3"], "its entries: 0 (EMA), 1 (MixUp). Did you mean 'MixUp'?"),
        (["--algorithms.MixUp.alpha", "-3"], "algorithms.1: alpha must be 0 or greater, but got -3"),
        (["--help", "MixUpp"], "--help: unknown class 'MixUpp'. Did you mean 'MixUp'?"),
        (["--max_duration", "null"], "max_duration must be given."),
    ],
)
def test_errors_are_printed_in_one_line(arguments: list[str], message: str, run: str, capsys) -> None:
    left_with(2, run, *arguments)
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert ": error: " in said


def test_the_word_of_the_command() -> None:
    given = parse(["-n", "2", "train", "run.yaml", "--seed", "3"])
    assert (given.script, given.module_mode) == ("composer.hparams", True)
    assert given.arguments == ["run.yaml", "--seed", "3"]
    assert parse(["-m", "train"]).script == "train"
    assert parse(["./train"]).script == "./train"


def trained_by_module(folder: str, *arguments: str) -> None:
    """Run ``python -m composer.hparams``, as ``composer train`` does on each rank, but in this process."""
    sys.modules.pop("composer.hparams.__main__", None)  # with the real one there is none either
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["composer.hparams", *arguments])
        runpy.run_module("composer.hparams", run_name="__main__", alter_sys=True)


@pytest.mark.slow
def test_on_two_ranks(run: str, tmp_path: Path, two_ranks: Ranks) -> None:
    """Both train what the file says, and one of them records it."""
    two_ranks.run(trained_by_module, str(tmp_path), run, "--save_folder", "saved", "--seed", "3")
    assert load((tmp_path / "saved" / "config.yaml").read_text())["seed"] == 3
    assert sorted(file.name for file in (tmp_path / "saved").iterdir()) == [
        "config.yaml", "ep0-ba2-rank0.pt", "latest-rank0.pt", "ledger.jsonl",
    ]  # fmt: skip
