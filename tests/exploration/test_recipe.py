from __future__ import annotations

import ast
import shlex

import pytest
import torch
import yaml

from composer.exploration.recipe import as_python, as_train_arguments, as_yaml
from composer.hparams import trainer_from_config
from composer.hparams.config_tree import parse_value as read_value
from composer.models import ComposerClassifier
from composer.trials.assignments import Assignment

CHANGES = [
    "algorithms+=EMA(half_life='10ba')",
    "algorithms+=BlurPool()",
    "algorithms-=MixUp",
    "optimizers.lr=0.02",
    "train_dataloader.batch_size=64",
    "precision=amp_bf16",
    "compile_config={'mode': 'default'}",
    "device_train_microbatch_size=none",
]


def test_python_is_a_call_of_the_trainer() -> None:
    text = as_python(CHANGES)
    tree = ast.parse(text)
    call = tree.body[-1].value  # type: ignore[attr-defined]
    arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    assert arguments == {
        "algorithms": "[..., EMA(half_life='10ba'), BlurPool()]",
        "optimizers": "...",
        "train_dataloader": "...",
        "precision": "'amp_bf16'",
        "compile_config": "{'mode': 'default'}",
        "device_train_microbatch_size": "None",
    }
    assert "from composer.algorithms import BlurPool, EMA" in text
    assert "optimizers=...,  # with lr=0.02" in text
    assert "# without MixUp" in text


def test_yaml_is_read_as_what_was_assigned() -> None:
    found = yaml.safe_load(as_yaml(CHANGES))
    assert found == {
        "algorithms": [{"EMA": {"half_life": "10ba"}}, "BlurPool"],
        "optimizers": {"lr": 0.02},
        "train_dataloader": {"batch_size": 64},
        "precision": "amp_bf16",
        "compile_config": {"mode": "default"},
        "device_train_microbatch_size": None,
    }


def test_the_trainer_takes_the_methods_of_the_yaml() -> None:
    tree = yaml.safe_load(as_yaml([CHANGES[0], "algorithms+=LabelSmoothing()", "algorithms+=MixUp(0.3)"]))
    model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    trainer = trainer_from_config({**tree, "progress_bar": False}, model=model)
    assert [type(one).__name__ for one in trainer.state.algorithms] == ["EMA", "LabelSmoothing", "MixUp"]


@pytest.mark.parametrize(
    "text",
    [
        "algorithms+=SAM(0.1, interval=2)",
        "algorithms+=MixUp(0.2)",
        'run_name=say "hi" \\ # no: comment',
        "run_name=- x",
    ],
)
def test_arguments_by_position_and_odd_strings_survive(text: str) -> None:
    found = yaml.safe_load(as_yaml([text]))
    assignment = Assignment.parse(text)
    if assignment.path == "run_name":
        assert found == {"run_name": assignment.value}
        assert repr(assignment.value) in as_python([text])
    else:
        assert found["algorithms"][0]["args"]
        assert text.partition("=")[2] in as_python([text])


def test_hostile_text_is_a_string() -> None:
    text = "run_name=x\x1b[2J\n- rm"
    assert yaml.safe_load(as_yaml([text])) == {"run_name": "x\x1b[2J\n- rm"}
    assert "\x1b" not in as_yaml([text]) + as_python([text])
    ast.parse(as_python([text]))


def test_nothing_to_change_is_said() -> None:
    assert as_python([]) == as_yaml([]) == "# nothing to change"


def test_what_is_no_assignment_is_an_error() -> None:
    with pytest.raises(ValueError, match="NAME=VALUE"):
        as_python(["lr 0.1"])
    with pytest.raises(ValueError, match="NAME=VALUE"):
        as_yaml(["precision="])


@pytest.mark.parametrize("value", ["amp_bf16", "no", "10ba", "a b", "it's"])
def test_arguments_of_train_are_read_as_the_same_values(value: str) -> None:
    changes = ["algorithms+=EMA(half_life='3ba')", "algorithms+=MixUp(0.2)", f"optimizers.name='{value}'"]
    if "'" in value:
        changes[2] = f'optimizers.name="{value}"'
    words = shlex.split(as_train_arguments(changes))
    assert words[::2] == ["--algorithms+", "--algorithms+", "--optimizers.name"]
    assert [read_value(one) for one in words[1::2]] == [
        {"EMA": {"half_life": "3ba"}},
        {"class_path": "MixUp", "args": [0.2]},
        value,
    ]


def test_what_is_removed_is_a_comment_of_the_shell() -> None:
    text = as_train_arguments(["precision=amp_bf16", "algorithms-=MixUp"])
    assert text == "--precision amp_bf16  # and remove MixUp from algorithms"
    assert shlex.split(text, comments=True) == ["--precision", "amp_bf16"]
