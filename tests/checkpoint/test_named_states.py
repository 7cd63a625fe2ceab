"""States by class name, with numbers for repeated names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer import Callback
from composer.checkpoint.named_states import as_named, by_name, class_of, load_each
from composer.warnings import ComposerWarning

names = st.sampled_from(["A", "B", "test.<locals>.C"])


@given(st.lists(st.tuples(names, st.integers())))
def test_all_states_are_kept_in_order(pairs) -> None:
    named = by_name(pairs)
    assert [(class_of(name), value) for name, value in named.items()] == pairs
    assert {name for name in named if "#" not in name} == {name for name, _ in pairs}
    assert as_named(named) is named
    assert as_named([list(pair) for pair in pairs]) == named  # as some files have it


class Named(Callback):
    def __init__(self, name: str = "") -> None:
        self.name = name

    def load_state_dict(self, state):
        self.name = state["name"]

    def __is_own_state__(self, state):
        return state.get("place") == self.name


def loaded(present: list[Named], saved: dict[str, Any]) -> list[str]:
    load_each("callbacks", present, saved)
    return [one.name for one in present]


def test_states_are_matched_by_number() -> None:
    states = by_name([("Named", {"name": name}) for name in "abc"])
    assert loaded([Named(), Named(), Named()], states) == ["a", "b", "c"]
    del states["Named"]  # as load_ignore_keys does
    assert loaded([Named("x"), Named(), Named()], states) == ["x", "b", "c"]


def test_object_that_accepts_a_state_receives_it() -> None:
    states = by_name([("Named", {"name": "first", "place": "p"}), ("Named", {"name": "second"})])
    assert loaded([Named(), Named("p")], states) == ["second", "first"]


def test_state_without_an_object_warns() -> None:
    with pytest.warns(ComposerWarning, match=r"the state of Named#2, which is not among the callbacks"):
        assert loaded([Named()], by_name([("Named", {"name": "a"}), ("Named", {"name": "b"})])) == ["a"]
