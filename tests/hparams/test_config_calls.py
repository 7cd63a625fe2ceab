"""One call: its arguments checked, its objects made, its defaults filled in."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from composer import Trainer, algorithms, callbacks, loggers
from composer.hparams.config_calls import Call, parser_of
from composer.hparams.config_tree import ConfigError
from tests.hparams.configured import HERE, Takes

LINEAR = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 3}}


def call(path: str, args: list[Any] | None = None, **arguments: Any) -> Call:
    return Call.of({"class_path": path, "init_args": arguments, "args": args or []}, "here")


def test_calls_inside_are_made_first() -> None:
    made = call(f"{HERE}.Takes", first=[LINEAR, {"deep": LINEAR}, 3], other={"a": LINEAR}, plain="2").make({})
    assert isinstance(made, Takes)
    assert [type(part) for part in made.first] == [nn.Linear, dict, int]
    assert made.first[1]["deep"].out_features == 3
    assert made.more["other"]["a"].in_features == 2
    assert made.more["plain"] == "2"


def test_arguments_by_place() -> None:
    net = call("torch.nn.Sequential", [LINEAR, {"class_path": "torch.nn.ReLU", "init_args": {}}]).make({})
    assert [type(layer) for layer in net] == [nn.Linear, nn.ReLU]
    assert call("torch.nn.Linear", [2], out_features="3").make({}).weight.shape == (3, 2)


def test_values_get_the_types_of_the_signature() -> None:
    def typed(a: float, b: tuple[int, int] = (1, 2), c: str = "", d: bool = False, e: int | str | None = None): ...

    made = Call.to(typed, {"a": "1e-3", "b": [3, 4], "c": 42, "d": "true", "e": "2ep"}, "")
    assert made.values({}) == {"a": 0.001, "b": (3, 4), "c": "42", "d": True, "e": "2ep"}


def test_only_given_arguments_are_passed_and_defaults_are_recorded() -> None:
    made = call(f"{HERE}.make_model", width=4)
    assert made.values({}) == {"width": 4}
    assert made.tree() == {"width": 4, "bias": True}
    assert list(call(f"{HERE}.make_model", bias=False).tree()) == ["width", "bias"]  # in the order of the signature


def test_a_tree_makes_the_same_call_again() -> None:
    first = call("torch.nn.Sequential", [LINEAR])
    again = Call.of({"class_path": first.path, "args": [{**LINEAR}], "init_args": first.tree()}, "here")
    assert again.tree() == first.tree()


def test_what_is_waited_for() -> None:
    parameters = [nn.Parameter(torch.ones(1))]
    node = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5}}
    made = Call.of(node, "optimizers", frozenset({"params"}))
    assert made.make({"params": parameters}).param_groups[0]["params"] == parameters
    assert "params" not in made.tree()
    # What is given, or has a default, is not filled in.
    assert Call.of(node | {"args": [parameters]}, "optimizers", frozenset({"params"})).waiting == frozenset()
    assert call("composer.optim.AssignedSchedule", schedule="math.sqrt").waiting == frozenset()


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("torch.nn.Linear", {"in_features": 2}, "here: Linear requires the argument 'out_features'"),
        ("torch.nn.Linear", {**LINEAR["init_args"], "bais": 1}, "here.bais: Linear has no such argument. .*'bias'"),
        ("torch.nn.Linear", {"in_features": "x", "out_features": 1}, r"here.in_features: 'x' \(str\) is not of .* int"),
        (f"{HERE}.make_model", {"width": 1.5}, r"here.width: 1.5 \(float\) is not of the type int\."),
        (f"{HERE}.make_model", {"bias": 1}, r"here.bias: 1 \(int\) is not of the type bool"),
        ("composer.algorithms.MixUp", {"alpha": "much"}, "here.alpha: 'much' .* float"),
        ("torch.nosuch", {}, "here: 'torch.nosuch' does not exist"),
    ],
)
def test_arguments_that_are_refused(path: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call(path, **arguments)


def test_the_place_of_an_inner_mistake() -> None:
    with pytest.raises(ConfigError, match=r"^here\.first\.1\.a\.out_features: "):
        bad = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 1, "out_features": "x"}}
        call(f"{HERE}.Takes", first=[1, {"a": bad}])


def test_values_that_ours_and_torchs_refuse_are_mistakes_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"^here: alpha must be 0 or greater, but got -1"):
        call("composer.algorithms.MixUp", alpha=-1).make({})
    with pytest.raises(ConfigError, match=r"^here: Invalid learning rate"):
        call("torch.optim.SGD", [[torch.ones(1)]], lr=-1).make({})
    with pytest.raises(ValueError, match="a fault of the user's") as error:
        call(f"{HERE}.Faulty").make({})
    assert not isinstance(error.value, ConfigError)
    assert error.value.__notes__ == [f"Raised while creating here ({HERE}.Faulty) from the configuration."]


PUBLIC = [
    value
    for package in (algorithms, callbacks, loggers)
    for name in package.__all__
    if inspect.isclass(value := getattr(package, name)) and value.__module__.startswith(package.__name__)
]


@pytest.mark.parametrize("target", PUBLIC, ids=lambda target: target.__name__)
def test_public_classes_can_be_configured(target: type) -> None:
    """Every argument is known with its type and its text, and the defaults can be written down."""
    parser = parser_of(target)
    texts = {action.dest: action.help for action in parser._actions}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            assert texts.get(name), f"{name} has no text"
    needed = {
        name
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    }
    Call.to(target, {}, "", given=frozenset(needed)).tree()


def test_every_argument_of_the_trainer_is_in_the_help() -> None:
    actions = {action.dest: action for action in parser_of(Trainer)._actions}
    for name in Trainer.__init__.__kwdefaults__:
        assert actions[name].help, name
    shown = parser_of(Trainer).format_help()
    for kind in ("Optimizer", "Profiler", "DDPSyncStrategy", "Time"):  # some are imported for type checkers only
        assert kind in shown, kind
