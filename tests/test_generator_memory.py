"""States of random generators, copied as bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from composer import _generator_memory as memory
from composer import rng
from composer._generator_memory import GeneratorStates


@pytest.fixture(autouse=True)
def _restored():
    with rng.preserve_rng_state():
        yield
        np.random.set_bit_generator(np.random.MT19937())


def same(one, other) -> bool:
    return one[0] == other[0] and np.array_equal(one[1], other[1]) and one[2:] == other[2:]


def check(states: GeneratorStates) -> None:
    """Compare the states with what the generators say of themselves."""
    assert states.python() == random.getstate()
    assert same(states.numpy(), np.random.get_state())
    assert torch.equal(states.torch(), torch.get_rng_state())


def test_the_memory_is_found() -> None:
    """Otherwise the slow way is taken, which is correct, but not why this exists."""
    assert memory._python_address(random.getstate.__self__) is not None
    assert memory._numpy_addresses(np.random.get_bit_generator()) is not None
    assert memory._torch_address(torch.default_generator) is not None


@pytest.mark.parametrize("draws", [0, 1, 2, 3, 7, 623, 624, 625, 5000])
def test_state_equals_what_the_generators_say(draws) -> None:
    """With and without the second normal number of a pair, and at the ends of a block of words."""
    random.seed(draws)
    np.random.seed(draws)
    torch.default_generator.manual_seed(draws)
    for number in range(draws):
        random.gauss(0, 1) if number % 3 else random.random()
        np.random.standard_normal() if number % 3 else np.random.rand()
        torch.randn(1) if number % 3 else torch.rand(1)
    check(GeneratorStates(np))


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_kept_numbers_of_both_precisions(single, double) -> None:
    """Of a pair of normal numbers PyTorch may keep one in either precision; here such a state is set."""
    engine = memory._TORCH_STATE.unpack(bytes(torch.get_rng_state().tolist()))[: 4 + memory._WORDS]
    state = memory._TORCH_STATE.pack(*engine, 0.25 if double else 0.0, double, 0.5 if single else 0.0, single)
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    check(GeneratorStates(np))


def test_state_is_a_copy() -> None:
    for draw, set_state, get in (
        (lambda: random.gauss(0, 1), random.setstate, GeneratorStates.python),
        (lambda: float(np.random.randn()), np.random.set_state, GeneratorStates.numpy),
        (lambda: torch.randn(1).item(), torch.set_rng_state, GeneratorStates.torch),
    ):
        draw()
        states = GeneratorStates(np)
        first = [draw() for _ in range(1000)]
        for _ in range(2):  # more than once
            set_state(get(states))
            assert [draw() for _ in range(1000)] == first


@pytest.mark.filterwarnings("ignore:get_state and legacy")
def test_another_generator_is_copied_in_the_slow_way() -> None:
    np.random.set_bit_generator(np.random.PCG64(3))
    states = GeneratorStates(np)
    for _ in range(2):  # the second time it is known that its memory is not
        first = np.random.rand(5)
        np.random.set_state(states.numpy())
        assert np.array_equal(np.random.rand(5), first)
        states.save()


def test_states_are_saved_again() -> None:
    states = GeneratorStates(np)
    random.gauss(0, 1), np.random.randn(), torch.randn(1)
    states.save()
    check(states)


def test_numpy_need_not_be_installed() -> None:
    states = GeneratorStates(None)
    random.random(), torch.randn(1)
    states.save()
    assert states.python() == random.getstate()
    assert torch.equal(states.torch(), torch.get_rng_state())


def test_generators_that_are_replaced_between_saves(monkeypatch) -> None:
    states = GeneratorStates(np)
    monkeypatch.setattr(random, "getstate", random.Random(5).getstate)
    np.random.set_bit_generator(np.random.MT19937(5))
    np.random.randn()
    states.save()
    check(states)
    assert states.python() == random.Random(5).getstate()


def test_a_function_instead_of_a_generator(monkeypatch) -> None:
    """Which has no memory to read, and later has one again."""
    states, state = GeneratorStates(np), random.Random(5).getstate()
    with monkeypatch.context() as patch:
        patch.setattr(random, "getstate", lambda: state)
        states.save()
        check(states)
    states.save()
    check(states)
    assert states.python() != state


def test_memory_that_does_not_agree_is_not_used(monkeypatch) -> None:
    monkeypatch.setattr(memory, "_pair_offset", lambda: 16)
    memory._numpy_addresses.cache_clear()
    assert memory._numpy_addresses(np.random.get_bit_generator()) is None
    assert GeneratorStates(np).numpy()["state"]["pos"] == np.random.get_state()[2]
    memory._numpy_addresses.cache_clear()

    find_offset = memory._torch_offset.__wrapped__
    monkeypatch.setattr(memory, "_torch_offset", lambda: 88)
    memory._torch_address.cache_clear()
    assert memory._torch_address(torch.default_generator) is None
    assert torch.equal(GeneratorStates(None).torch(), torch.get_rng_state())
    memory._torch_address.cache_clear()
    monkeypatch.setattr(memory, "_TORCH", memory.struct.Struct("=Qi?3xI624I8xf?3xd?3x"))
    assert find_offset() is None

    class Seeded(random.Random):
        pass

    assert memory._python_address(Seeded(1)) is None
    generator = random.Random(3)
    monkeypatch.setattr(memory, "_PYTHON", memory.struct.Struct("=i600I"))
    assert memory._python_address(generator) is None
    memory._python_address.cache_clear()
