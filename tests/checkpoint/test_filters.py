"""Exclude entries of a checkpoint."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.checkpoint.filters import drop, glob_filter, patterns_reaching
from composer.warnings import ComposerWarning

CONTENT: dict[str, Any] = {
    "state": {"model": {"a.weight": 1, "a.bias": 2, "b.weight": 3}, "optimizers": {"SGD": {"state": {}}}},
    "rng": [1],
}


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        ([], CONTENT),
        (None, CONTENT),
        (["rng"], {"state": CONTENT["state"]}),
        (["state/model/a.*", "rng"], {"state": {**CONTENT["state"], "model": {"b.weight": 3}}}),
        (["*weight"], {"state": {**CONTENT["state"], "model": {"a.bias": 2}}, "rng": [1]}),
        (["state/optimizers*"], {"state": {"model": CONTENT["state"]["model"]}, "rng": [1]}),
        (
            ["state/model/[ab].bias"],
            {"state": {**CONTENT["state"], "model": {"a.weight": 1, "b.weight": 3}}, "rng": [1]},
        ),
        (["*"], {}),
    ],
)
def test_patterns(patterns, left) -> None:
    content = copy.deepcopy(CONTENT)
    drop(content, patterns)
    assert content == left


def test_case_counts() -> None:
    content = copy.deepcopy(CONTENT)
    with pytest.warns(ComposerWarning, match=r"nothing in the checkpoint matches 'RNG'. Did you mean 'rng'\?"):
        drop(content, ["RNG"])
    assert content == CONTENT


def test_a_function_edits() -> None:
    content = copy.deepcopy(CONTENT)
    drop(content, lambda edited: edited["state"].pop("model"))
    assert list(content["state"]) == ["optimizers"]


def test_a_single_pattern_is_a_mistake() -> None:
    with pytest.raises(TypeError, match=r"Pass \['rng'\]"):
        drop({}, "rng")


trees = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3),
    max_leaves=8,
)


def paths(node: Any, above: str = "") -> set[str]:
    if not isinstance(node, dict):
        return set()
    return {p for key, value in node.items() for p in ({f"{above}{key}"} | paths(value, f"{above}{key}/"))}


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), trees, max_size=4), st.data())
def test_only_the_path_and_its_children_are_removed(tree, data) -> None:
    before = paths(tree)
    if not before:
        return
    path = data.draw(st.sampled_from(sorted(before)))
    drop(tree, [path])
    assert paths(tree) == {other for other in before if other != path and not other.startswith(f"{path}/")}


@pytest.mark.parametrize(
    ("pattern", "reaches"),
    [
        ("state/model", True),
        ("state/mod*", True),
        ("*", True),
        ("state/model/a.weight", True),
        ("state/models", False),
        ("state/optimizers*", False),
        ("rng", False),
    ],
)
def test_patterns_match_nested_entries(pattern, reaches) -> None:
    assert patterns_reaching(["rng", pattern], "state/model") == ([pattern] if reaches else [])
    assert patterns_reaching(None, "state/model") == patterns_reaching(lambda content: content, "state/model") == []


LISTS: dict[str, Any] = {
    "state": {
        "callbacks": {"Saver": {"n": 1}, "Saver#2": {"n": 2}},
        "algorithms": [("EMA", {"repr": "EMA()", "averages": {"w": 1}}), ("Cut", {}), ("EMA", {"repr": "second"})],
        "names": [{"inner": "hello"}, "world", "end"],
        "numbers": {1: "one", 2: [3, 4]},
    },
    "rng": [{"python": 1}, {"python": 2}],
}


@pytest.mark.parametrize(
    ("patterns", "path", "left"),
    [
        (["state/names/0"], ("state", "names"), ["world", "end"]),
        (["state/names/0/inner"], ("state", "names"), [{}, "world", "end"]),
        (["state/names/0", "state/names/1"], ("state", "names"), ["end"]),
        (["state/names/1", "state/names/0*"], ("state", "names"), ["end"]),
        (["rng/*/python"], ("rng",), [{}, {}]),
        (["rng/*"], ("rng",), []),
        (["state/numbers/1", "state/numbers/2/0"], ("state", "numbers"), {2: [4]}),
        (["state/callbacks/*"], ("state", "callbacks"), {}),
        (["state/callbacks/Saver"], ("state", "callbacks"), {"Saver#2": {"n": 2}}),
        (["state/callbacks/Saver*"], ("state", "callbacks"), {}),
        (["state/algorithms/*"], ("state", "algorithms"), []),
        (["state/algorithms/EMA"], ("state", "algorithms"), LISTS["state"]["algorithms"][1:]),
        (["state/algorithms/EMA*"], ("state", "algorithms"), [("Cut", {})]),
        (["state/algorithms/0", "state/algorithms/2"], ("state", "algorithms"), [("Cut", {})]),
        (["state/algorithms/EMA/averages"], ("state", "algorithms", 0, 1), {"repr": "EMA()"}),
        (["state/algorithms/EMA#2/repr"], ("state", "algorithms", 2, 1), {}),
        (["state/algorithms/EMA/*", "state/algorithms/EMA"], ("state", "algorithms"), LISTS["state"]["algorithms"][1:]),
    ],
)
def test_elements_of_lists_by_index_and_by_name(patterns, path, left) -> None:
    content = copy.deepcopy(LISTS)
    glob_filter(patterns)(content)
    node = content
    for key in path:
        node = node[key]
    assert node == left
    others = [key for key in LISTS["state"] if key not in path]
    assert {key: content["state"][key] for key in others} == {key: LISTS["state"][key] for key in others}


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("state/callbacks/Savr*", r"Did you mean 'state/callbacks/Saver'\?"),
        ("state/callbacks/Zq*", r"state/callbacks has Saver, Saver#2\."),
        ("callbacks/*", r"Did you mean 'state/callbacks/\*'\?"),
        ("state/calbacks/*", r"Did you mean 'state/callbacks'\?"),
        ("stat/callbacks/*", r"Did you mean 'state'\?"),
        ("state/algorithms/Emma", r"Did you mean 'state/algorithms/EMA'\?"),
        ("qqqq", r"The checkpoint has state, rng\."),
    ],
)
def test_near_misses(pattern, hint) -> None:
    with pytest.warns(ComposerWarning, match=f"matches {re.escape(repr(pattern))}. {hint}"):
        drop(copy.deepcopy(LISTS), [pattern])


def test_empty_section_is_reported() -> None:
    with pytest.warns(ComposerWarning, match="state/algorithms is empty"):
        drop({"state": {"algorithms": []}}, ["state/algorithms/*"])
