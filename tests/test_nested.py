"""Nested dictionaries under flat names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.nested import convert_flat_dict_to_nested_dict, convert_nested_dict_to_flat_dict

NAMES = st.text(st.characters(exclude_characters="/", codec="utf-8"), min_size=1, max_size=5)
TREES = st.dictionaries(
    NAMES,
    st.recursive(st.integers(), lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=10),
    max_size=4,
)


@given(TREES)
def test_round_trip(tree: dict[str, object]) -> None:
    flat = convert_nested_dict_to_flat_dict(tree)
    assert not any(isinstance(value, dict) for value in flat.values())
    assert convert_flat_dict_to_nested_dict(flat) == tree


def test_names() -> None:
    nested = {"a": {"b": {"c": 1}, 2: [3]}, "d": {}}
    assert convert_nested_dict_to_flat_dict(nested) == {"a/b/c": 1, "a/2": [3], "d": {}}
    assert convert_nested_dict_to_flat_dict(nested, "run/") == {"run/a/b/c": 1, "run/a/2": [3], "run/d": {}}


def test_input_dictionaries_are_unchanged() -> None:
    flat = {"a/b": 1, "a/c": {"kept": 2}}
    nested = convert_flat_dict_to_nested_dict(flat)
    nested["a"]["b"] = 3
    assert flat == {"a/b": 1, "a/c": {"kept": 2}}


@pytest.mark.parametrize("flat", [{"a": 1, "a/b": 2}, {"a/b": 1, "a": 2}, {"a/b": 1, "a/b/c/d": 2}])
def test_a_name_is_a_value_or_a_dictionary(flat: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="both as a value and as the beginning of other names"):
        convert_flat_dict_to_nested_dict(flat)
