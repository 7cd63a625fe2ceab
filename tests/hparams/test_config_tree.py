"""Reading configurations, spelling them out, changing and comparing them."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.hparams._yaml import dump, load
from composer.hparams.config_tree import (
    ConfigError,
    changes,
    check_not_masked,
    expanded,
    merged,
    parse_value,
    read,
    with_value,
)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=12,
)
MAPPINGS = st.dictionaries(st.sampled_from("abcd"), TREES, max_size=4)


# ------------------------------------------------------------------------------------------------------- YAML


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("5E3", 5000.0),
        ("-1.5e2", -150.0),
        ("2ep", "2ep"),
        ("1h30m", "1h30m"),
        ("1e", "1e"),
        ("null", None),
        ("{lr: 1e-3}", {"lr": 0.001}),
        ("{<<: {a: 1, b: 2}, b: 3}", {"a": 1, "b": 3}),
    ],
)
def test_values(text: str, value: object) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_a_key_that_stands_twice_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="duplicate key 'lr'"):
        parse_value("{lr: 1, lr: 2}")


@given(TREES)
def test_what_is_saved_reads_as_it_was(tree: Any) -> None:
    assert load(dump(tree)) == tree


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- 1", "a configuration must be a mapping of trainer arguments"),
        ("a: [1", "invalid YAML"),
        (None, "No such file"),
    ],
)
def test_files_that_are_refused(content: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=message) as error:
        read(file)
    assert str(error.value).startswith(str(file))
    assert "\n" not in str(error.value)


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("# nothing\n")
    assert read(tmp_path / "run.yaml") == {}


def test_errors_travel_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("a.b", "wrong")))
    assert (str(error), error.where) == ("a.b: wrong", "a.b")


# ---------------------------------------------------------------------------------------------------- spelling


@pytest.mark.parametrize(
    "written",
    [
        {"MixUp": {"alpha": 0.5}},
        {"class_path": "MixUp", "init_args": {"alpha": 0.5}},
        {"class_path": "composer.algorithms.MixUp", "init_args": {"alpha": 0.5}},
    ],
)
def test_forms_of_an_object(written: dict[str, Any]) -> None:
    call = {"class_path": "composer.algorithms.MixUp", "init_args": {"alpha": 0.5}}
    assert expanded({"algorithms": written}) == {"algorithms": call}
    assert expanded({"algorithms": [written]}) == {"algorithms": [call]}
    assert expanded(expanded({"algorithms": [written]})) == {"algorithms": [call]}


def test_a_name_alone_is_an_object_only_where_objects_stand() -> None:
    tree = expanded({"algorithms": "EMA", "callbacks": [{"LRMonitor": None}], "run_name": "EMA", "device": "cpu"})
    assert tree["algorithms"] == {"class_path": "composer.algorithms.EMA", "init_args": {}}
    assert tree["callbacks"] == [{"class_path": "composer.callbacks.LRMonitor", "init_args": {}}]
    assert (tree["run_name"], tree["device"]) == ("EMA", "cpu")


def test_calls_deep_inside_are_spelled_out() -> None:
    inner = {"class_path": "DataLoader", "init_args": {"dataset": {"class_path": "a.B"}}}
    tree = expanded(
        {"eval_dataloader": [{"class_path": "Evaluator", "init_args": {"label": "t", "dataloader": inner}}]}
    )
    (evaluator,) = tree["eval_dataloader"]
    assert evaluator["class_path"] == "composer.core.Evaluator"
    loader = evaluator["init_args"]["dataloader"]
    assert loader["class_path"] == "torch.utils.data.DataLoader"
    assert loader["init_args"] == {"dataset": {"class_path": "a.B", "init_args": {}}}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"algorithms": ["MixUpp"]}, r"algorithms\.0: unknown class 'MixUpp'\. Did you mean 'MixUp'\?"),
        ({"algorithms": [{"a": 1, "b": 2}]}, r"algorithms\.0: an object is 'Name', .* got a, b"),
        ({"model": {"class_path": "a.B", "init_arg": {}}}, "model: .* not 'init_arg'; .* Did you mean 'init_args'"),
        ({"model": {"class_path": "a.B", "init_args": 3}}, "model: class_path must be a string, init_args a mapping"),
        ({"model": {"class_path": 3}}, "model: class_path must be a string"),
        ({"model": {"class_path": "a.B", "args": 3}}, "args a list"),
    ],
)
def test_what_is_no_call(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expanded(tree)


# ---------------------------------------------------------------------------------------- merging and changing


@given(MAPPINGS, MAPPINGS)
def test_merging_laws(one: dict[str, Any], other: dict[str, Any]) -> None:
    kept = copy.deepcopy((one, other))
    both = merged(one, other)
    assert merged(one, {}) == one
    assert merged({}, other) == other
    assert merged(both, other) == both
    assert set(both) == {*one, *other}
    assert (one, other) == kept


def test_a_call_of_another_class_takes_the_place_of_the_first() -> None:
    sgd = {"class_path": "SGD", "init_args": {"lr": 0.1, "momentum": 0.9}}
    assert merged(sgd, {"class_path": "SGD", "init_args": {"lr": 1}})["init_args"] == {"lr": 1, "momentum": 0.9}
    adam = {"class_path": "Adam", "init_args": {"lr": 1}}
    assert merged(sgd, adam) == adam
    assert merged(None, adam) == adam


def tree() -> dict[str, Any]:
    return expanded({"algorithms": ["EMA", {"MixUp": {"alpha": 0.2}}, "EMA"], "seed": 1})


@pytest.mark.parametrize("key", ["algorithms.1.alpha", "algorithms.MixUp.alpha", "algorithms.1.init_args.alpha"])
def test_values_in_lists_are_set_by_number_or_class(key: str) -> None:
    before = tree()
    after = with_value(before, key, 0.7)
    assert list(changes(before, after)) == [("algorithms.1.init_args.alpha", 0.2, 0.7)]
    assert before == tree()


def test_values_that_were_not_there() -> None:
    assert with_value({}, "a.b", 1) == {"a": {"b": 1}}
    assert with_value({"a": None}, "a.b", 1) == {"a": {"b": 1}}
    assert with_value({}, "tags", ["x"], append=True) == {"tags": ["x"]}
    assert with_value({"tags": ["x"]}, "tags", ["y", "z"], append=True) == {"tags": ["x", "y", "z"]}
    call = with_value(tree(), "algorithms.1.class_path", "CutMix")["algorithms"][1]
    assert call == {"class_path": "CutMix", "init_args": {"alpha": 0.2}}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "algorithms.3.alpha",
            r"'3' is not a unique entry of the list; its entries: 0 \(EMA\), 1 \(MixUp\), 2 \(EMA\)",
        ),
        ("algorithms.EMA.half_life", "'EMA' is not a unique entry"),
        ("algorithms.Mixup.alpha", "Did you mean 'MixUp'"),
        ("seed.a", "the value 1 has no 'a'"),
    ],
)
def test_places_that_are_not_there(key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_value(tree(), key, 1)


@given(MAPPINGS, MAPPINGS)
def test_only_equal_trees_have_no_changes(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert not list(changes(one, one))
    swapped = [(place, old, new) for place, new, old in changes(other, one)]
    key = repr
    assert sorted(map(key, changes(one, other))) == sorted(map(key, swapped))
    if not list(changes(one, other)):
        assert _without_none(one) == _without_none(other)


def _without_none(value: Any) -> Any:
    """None, and what is not there, are the same to a comparison; so is a mapping or list of nothing else."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        return {key: inner for key, entry in value.items() if (inner := _without_none(entry)) is not None} or "nothing"
    return value


def _self_containing() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        ({1: 2}, "^argument names must be strings; got 1 "),
        ({None: 2}, "must be strings; got None"),
        ({"model": {"class_path": "torch.nn.Linear", "init_args": {1: 2}}}, "^model.init_args: .* must be strings"),
        ({"callbacks": _self_containing()}, "^callbacks.* contains itself"),
        ({"save_folder": _self_containing()}, "^save_folder.* contains itself"),
        ({"seed": 10**5000}, "^seed: the number has too many digits"),
        ({"model": ".mydata.Boom"}, "^model: '.mydata.Boom' is not an import path"),
        ({"model": "torch..nn"}, "^model: 'torch..nn' is not an import path"),
    ],
    ids=range(8),
)
def test_what_is_no_tree(tree: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        expanded(tree)


def test_only_what_may_be_a_secret_was_masked() -> None:
    check_not_masked({"algorithms": [{"class_path": "A", "init_args": {"glob": "***"}}]})
    for tree in ({"x": {"hf_token": "***"}}, {"x": {"args": ["--token", "***"]}}, {"folder": "sftp://me:***@host"}):
        with pytest.raises(ConfigError, match="the secret was masked"):
            check_not_masked(tree)
