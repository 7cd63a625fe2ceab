"""Leaving parts of a checkpoint out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.checkpoint.filters import drop, reaching
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
    with pytest.raises(TypeError, match=r"Give \['rng'\]"):
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
def test_a_path_and_all_below_it_go_and_nothing_else(tree, data) -> None:
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
def test_patterns_that_reach_into_a_part(pattern, reaches) -> None:
    assert reaching(["rng", pattern], "state/model") == ([pattern] if reaches else [])
    assert reaching(None, "state/model") == reaching(lambda content: content, "state/model") == []
