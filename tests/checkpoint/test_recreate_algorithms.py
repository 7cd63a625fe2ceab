"""Recreate algorithms from their descriptions without running code."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer import Algorithm, Time, TimeUnit, algorithms
from composer.checkpoint.recreate_algorithms import algorithm_from
from tests.algorithms.cases import all_cases


class Anything(Algorithm):
    """Keeps what it gets."""

    def __init__(self, first: Any = None, second: Any = None) -> None:
        self.first, self.second = first, second


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(plain, plain)
def test_plain_values_survive(first, second) -> None:
    for description in (f"Anything({first!r}, {second!r})", f"Anything(first={first!r}, second={second!r})"):
        made = algorithm_from(description, Anything)
        assert (made.first, made.second) == (first, second)


def test_times_survive() -> None:
    made = algorithm_from(f"Anything({Time(3, TimeUnit.BATCH)!r}, [{Time(0.5, TimeUnit.DURATION)!r}])", Anything)
    assert (made.first, made.second) == (Time.from_batch(3), [Time(0.5, TimeUnit.DURATION)])


def test_removed_arguments_are_dropped() -> None:
    assert algorithm_from("Anything(first=1, dropped=2)", Anything).first == 1


@pytest.mark.parametrize(
    "description",
    [
        "Anything(__import__('os').system('touch x'))",
        "Anything(first=open('x', 'w'))",
        "Anything(first=[].append)",
        "Anything(*[1])",
        "Anything(first=TimeUnit.NOTHING)",
        "Anything(first=Time(1))",
        "Anything(first=Time('1ba', 'nothing'))",
    ],
)
def test_descriptions_that_would_run_code_are_rejected(description, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be recreated.*Pass the algorithm to the Trainer"):
        algorithm_from(description, Anything)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "description",
    [
        "",
        "Anything",
        "Other()",
        "Anything(",
        "Anything() + Anything()",
        "x.Anything()",
        "Any\0thing()",
        "<Anything at 0>",
    ],
)
def test_invalid_descriptions(description) -> None:
    with pytest.raises(ValueError, match="is not a description from which Anything"):
        algorithm_from(description, Anything)


def test_every_required_algorithm_can_be_recreated() -> None:
    made = {case.name: case.make() for case in all_cases()}
    needed = {name: one for name, one in made.items() if one.required_on_load()}
    assert {"BlurPool", "SqueezeExcite"} <= needed.keys()
    for name, one in needed.items():
        again = algorithm_from(repr(one), getattr(algorithms, name))
        assert repr(again) == repr(one)
