"""States of random generators, copied as bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from composer import _generator_memory as memory
from composer import rng
from composer._generator_memory import NumPyState, PythonState


@pytest.fixture(autouse=True)
def _restored():
    with rng.preserve_rng_state():
        yield
        np.random.set_bit_generator(np.random.MT19937())


def same(one, other) -> bool:
    return one[0] == other[0] and np.array_equal(one[1], other[1]) and one[2:] == other[2:]


def test_the_memory_is_found() -> None:
    """Otherwise the slow way is taken, which is correct, but not why this exists."""
    assert memory._python_address(random.getstate.__self__) is not None
    assert memory._numpy_addresses(np.random.get_bit_generator()) is not None


@pytest.mark.parametrize("draws", [0, 1, 2, 3, 7, 623, 624, 625, 5000])
def test_state_equals_what_the_generators_say(draws) -> None:
    """With and without the second normal number of a pair, and at the ends of a block of words."""
    random.seed(draws)
    np.random.seed(draws)
    for number in range(draws):
        random.gauss(0, 1) if number % 3 else random.random()
        np.random.standard_normal() if number % 3 else np.random.rand()
    assert PythonState().get() == random.getstate()
    assert same(NumPyState(np).get(), np.random.get_state())


def test_state_is_a_copy() -> None:
    for draw, set_state, take in (
        (lambda: random.gauss(0, 1), random.setstate, PythonState),
        (lambda: float(np.random.randn()), np.random.set_state, lambda: NumPyState(np)),
    ):
        draw()
        state = take()
        first = [draw() for _ in range(1000)]
        for _ in range(2):  # more than once
            set_state(state.get())
            assert [draw() for _ in range(1000)] == first


@pytest.mark.filterwarnings("ignore:get_state and legacy")
def test_another_generator_is_copied_in_the_slow_way() -> None:
    np.random.set_bit_generator(np.random.PCG64(3))
    state = NumPyState(np)
    first = np.random.rand(5)
    np.random.set_state(state.get())
    assert np.array_equal(np.random.rand(5), first)


def test_a_replaced_generator_of_the_same_kind() -> None:
    NumPyState(np)
    np.random.set_bit_generator(np.random.MT19937(5))
    np.random.randn()
    assert same(NumPyState(np).get(), np.random.get_state())


def test_memory_that_does_not_agree_is_not_used(monkeypatch) -> None:
    monkeypatch.setattr(memory, "_pair_offset", lambda: 16)
    memory._numpy_addresses.cache_clear()
    assert memory._numpy_addresses(np.random.get_bit_generator()) is None
    assert NumPyState(np).get()["state"]["pos"] == np.random.get_state()[2]
    memory._numpy_addresses.cache_clear()

    class Seeded(random.Random):
        pass

    assert memory._python_address(Seeded(1)) is None
    generator = random.Random(3)
    monkeypatch.setattr(memory, "_PYTHON", memory.struct.Struct("=i600I"))
    assert memory._python_address(generator) is None
    memory._python_address.cache_clear()
