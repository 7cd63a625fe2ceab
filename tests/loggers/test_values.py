from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer import dist
from composer.core.time import Time
from composer.loggers._ranks import logs_here, with_rank
from composer.loggers._values import as_number, to_json


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3),
        (0.5, 0.5),
        (True, 1),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2),
        (np.array([4]), 4),
        (torch.tensor(2), 2),
        (torch.tensor([[0.5]]), 0.5),
        (torch.tensor(True), 1),
        ("3", None),
        (None, None),
        (torch.zeros(2), None),
        (np.zeros(0), None),
        ([1], None),
        (1 + 2j, None),
    ],
)
def test_numbers(value, number) -> None:
    found = as_number(value)
    assert found == number
    assert type(found) is type(number)


def test_nan_is_a_number() -> None:
    found = as_number(torch.tensor(float("nan")))
    assert found is not None
    assert math.isnan(found)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.eye(2), [[1.0, 0.0], [0.0, 1.0]]),
        (np.array([1, 2]), [1, 2]),
        (np.float64("inf"), "Infinity"),
        (-math.inf, "-Infinity"),
        (torch.tensor([math.nan]), ["NaN"]),
        ((1, {"a": {2}}), [1, {"a": [2]}]),
        ({1: None, None: True}, {"1": None, "None": True}),
        (Path("a"), "a"),
        (Time(3, "ba"), "3ba"),
        (np.bool_(True), True),
        (frozenset("ab"), ["a", "b"]),
    ],
)
def test_json(value, expected) -> None:
    found = to_json(value)
    assert found == expected
    assert json.loads(json.dumps(found, allow_nan=False)) == expected


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(PLAIN)
def test_json_stays_as_it_is(value) -> None:
    assert to_json(value) == value


def test_logs_here_and_with_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logs_here(True)
    assert with_rank("run", False) == "run"
    monkeypatch.setattr(dist, "get_global_rank", lambda: 3)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    assert not logs_here(True)
    assert logs_here(False)
    assert with_rank("run", False) == "run-rank3"
    assert with_rank("run", True) == "run"
