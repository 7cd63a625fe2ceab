"""Optimizers that wrap another one."""

from __future__ import annotations

from composer.algorithms.sam import SAMOptimizer
from composer.optim.wrapped_optimizer import is_or_wraps, unwrapped
from tests.optim.schedules import sgd


def test_a_wrapper_of_a_wrapper() -> None:
    inner, other = sgd(), sgd()
    middle = SAMOptimizer(inner)
    outer = SAMOptimizer(middle)
    assert unwrapped(outer) is middle and unwrapped(inner) is inner
    assert all(is_or_wraps(outer, one) for one in (outer, middle, inner))
    assert not any(is_or_wraps(one, other) for one in (outer, middle, inner))
    assert not is_or_wraps(inner, middle)
    assert not is_or_wraps(inner, 0)
