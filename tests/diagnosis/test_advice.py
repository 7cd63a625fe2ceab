"""What to do about a bottleneck."""

from __future__ import annotations

from typing import get_args

import pytest

from composer.diagnosis.advice import advise
from composer.diagnosis.verdict import Cause


@pytest.mark.parametrize("cause", get_args(Cause))
def test_advice_names_the_place_or_does_without(cause: str) -> None:
    alone, placed = advise(cause), advise(cause, "train.py:3 (Rows{0})")
    assert bool(placed) == (cause not in ("none", "compute"))
    assert "{where}" not in alone + placed
    assert "program" not in alone
    assert not alone or alone.endswith(".")


def test_advice_that_a_remedy_has_refuted_is_left_out() -> None:
    assert "workers" in advise("data", "a.py:1 (f)")
    assert advise("data", "a.py:1 (f)", ["workers"]).endswith("outside of training; make a.py:1 (f) faster.")
