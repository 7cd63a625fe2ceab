"""The search for the largest microbatch: exact where memory grows, and never a size that does not fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from composer.estimation.measuring import largest_microbatch
from composer.estimation.memory import Memory

# Bytes by microbatch size, of a batch of 96 samples.
GROWTH: dict[str, Callable[[int], int]] = {
    "line": lambda size: 500 + 10 * size,
    "without activations": lambda size: 500,
    "gradients only with microbatches": lambda size: 500 + 10 * size + (200 if size < 96 else 0),
    "rounded to blocks": lambda size: 500 + 64 * -(-10 * size // 64),
    "attention of a batch": lambda size: 500 + size**2,
    "evaluation of full batches": lambda size: 480 if size == 1 else 450 + 15 * size,
    "floor of the optimizer": lambda size: max(900, 200 + 10 * size),
}


def memory_of(growth: Callable[[int], int], size: int) -> Memory:
    needed = growth(size)
    return Memory(needed, roles={"activations": needed - growth(1), "parameters": 100})


@pytest.mark.parametrize("first", [1, 12, 96])
@pytest.mark.parametrize("name", GROWTH)
def test_largest_microbatch(name: str, first: int) -> None:
    growth = GROWTH[name]
    for limit in (100, 505, 700, 901, 1000, 1300, 1459, 1700, 20_000):
        tried: list[int] = []

        def measure(size: int, tried: list[int] = tried) -> Memory:
            tried.append(size)
            return memory_of(growth, size)

        found = largest_microbatch(measure, 96, {first: memory_of(growth, first)}, limit)
        best = max((size for size in range(1, 97) if growth(size) <= limit), default=None)
        assert len(tried) == len(set(tried)) <= 8
        if found is None:
            assert best is None
        else:
            assert best is not None
            assert growth(found[0]) == found[1].needed <= limit
            assert found[0] == best or len(tried) == 8


def test_three_trials_suffice_on_a_line() -> None:
    tried: list[int] = []

    def measure(size: int) -> Memory:
        tried.append(size)
        return memory_of(GROWTH["line"], size)

    found = largest_microbatch(measure, 96, {96: memory_of(GROWTH["line"], 96)}, 1000)
    assert found is not None and found[0] == 50
    assert len(tried) <= 4


def test_failed_trials_do_not_fit() -> None:
    found = largest_microbatch(
        lambda size: None if size > 3 else memory_of(GROWTH["line"], size), 96, {96: None}, 10_000
    )
    assert found is not None and found[0] == 3
