"""Random numbers."""

from __future__ import annotations

import io
import os
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from composer import dist, rng
from composer.rng import (
    MAX_SEED,
    configure_deterministic_mode,
    get_random_seed,
    get_rng_state,
    load_rng_state,
    seed_all,
    seed_context,
)
from composer.warnings import ComposerWarning


def draw():
    """One number from each generator."""
    return random.random(), float(np.random.rand()), torch.rand(1).item()


@pytest.fixture(autouse=True)
def _leave_generators_as_found():
    with seed_context(0):
        yield


@pytest.mark.parametrize("seed", [0, 17, MAX_SEED, np.int64(5)])
def test_seed_all(seed):
    seed_all(seed)
    first = draw()
    assert draw() != first
    seed_all(seed)
    assert draw() == first


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1])
def test_seeds_out_of_range(seed):
    for function in (seed_all, lambda value: seed_context(value).__enter__()):
        with pytest.raises(ValueError, match=rf"seed must be from 0 to 4294967295 .* but got {seed}"):
            function(seed)


@pytest.mark.parametrize("seed", [1.0, "1", None])
def test_seeds_of_other_types(seed):
    with pytest.raises(TypeError, match="seed must be an integer"):
        seed_all(seed)


def test_seed_context_restores():
    seed_all(1)
    expected = draw()
    seed_all(1)
    with seed_context(2):
        inside = draw()
    assert draw() == expected
    with seed_context(2):
        assert draw() == inside != expected


def test_seed_context_restores_after_an_error():
    seed_all(1)
    expected = draw()
    seed_all(1)
    with pytest.raises(KeyError), seed_context(2):
        draw()
        raise KeyError
    assert draw() == expected


def test_state_round_trip_through_a_safe_file():
    random.gauss(0, 1), np.random.randn()  # both keep a second Gaussian number in store
    states = get_rng_state()
    expected = [*draw(), random.gauss(0, 1), np.random.randn()]
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    draw()
    load_rng_state(loaded)
    assert [*draw(), random.gauss(0, 1), np.random.randn()] == expected
    assert len(states) == 1
    assert {"python", "numpy", "torch"} <= set(states[0])


def test_states_of_composer_0_32_load():
    seed_all(3)
    old = {"python": list(random.getstate()), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    old["cuda"] = torch.zeros(816, dtype=torch.uint8)
    expected = draw()
    load_rng_state([old])
    assert draw() == expected


def test_states_of_another_number_of_ranks(monkeypatch):
    states = get_rng_state()
    expected = draw()
    with pytest.warns(ComposerWarning, match="saved with 2 ranks, but there are now 1 rank"):
        load_rng_state(states * 2)
    assert draw() == expected
    with pytest.warns(ComposerWarning, match="saved with 0 ranks"):
        load_rng_state([])
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_global_rank", lambda: 1)
    before = torch.get_rng_state()
    with pytest.warns(ComposerWarning, match="saved with 1 rank, but there are now 2 ranks"):
        load_rng_state(states)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_dict_without_torch_is_an_error():
    with pytest.raises(KeyError, match="python"):
        load_rng_state([{}])


@pytest.fixture
def fake_accelerator(monkeypatch):
    """Two devices whose generator states are tensors in a list."""
    states = [torch.tensor([1], dtype=torch.uint8), torch.tensor([2], dtype=torch.uint8)]

    def set_state(state, index=0):
        states[index] = state

    module = SimpleNamespace(
        get_rng_state=lambda: states[0], get_rng_state_all=lambda: list(states), set_rng_state=set_state
    )
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
    return states


def test_accelerator_states(fake_accelerator):
    saved = get_rng_state()
    assert saved[0]["cuda"].tolist() == [1]
    fake_accelerator[0] = torch.tensor([9])
    load_rng_state(saved)
    assert fake_accelerator[0].tolist() == [1]
    with seed_context(0):
        fake_accelerator[:] = [torch.tensor([7]), torch.tensor([8])]
    assert [state.item() for state in fake_accelerator] == [1, 2]
    saved[0]["cuda"] = torch.arange(816, dtype=torch.int32)
    load_rng_state(saved)
    assert fake_accelerator[0].tolist() == list(range(800, 816))


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps", "mtia"])
def test_forked_worker_does_not_touch_the_parents_accelerator(kind, fake_accelerator, monkeypatch):
    torch.get_device_module(kind)._is_in_bad_fork = lambda: True
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device(kind))
    assert kind not in rng.get_local_rng_state()
    with seed_context(0):
        fake_accelerator[:] = [torch.tensor([7]), torch.tensor([8])]
    assert [state.item() for state in fake_accelerator] == [7, 8]


def test_an_accelerator_that_was_not_used_is_not_started(fake_accelerator, monkeypatch):
    seeds = []
    module = torch.get_device_module("cuda")
    module.is_initialized = lambda: False
    module.manual_seed_all = seeds.append
    module.get_rng_state = module.get_rng_state_all = lambda: pytest.fail("starts the accelerator")
    seed_all(3)
    assert "cuda" not in get_rng_state()[0]
    with seed_context(5):
        pass
    assert seeds == [3]  # what it is to start with, whenever that is
    load_rng_state([{**get_rng_state()[0], "cuda": torch.tensor([9], dtype=torch.uint8)}])
    assert fake_accelerator[0].item() == 9  # which torch keeps until it starts


def test_without_numpy(monkeypatch):
    monkeypatch.setattr(rng, "_numpy", lambda: None)
    seed_all(4)
    states = get_rng_state()
    assert "numpy" not in states[0]
    first = random.random(), torch.rand(1).item()
    load_rng_state(states)
    with seed_context(0):
        pass
    assert (random.random(), torch.rand(1).item()) == first


def test_deterministic_mode(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    try:
        configure_deterministic_mode()
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
        assert torch.backends.cudnn.deterministic
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        configure_deterministic_mode()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    finally:
        torch.use_deterministic_algorithms(False)


def test_random_seeds_differ_and_leave_random_state():
    seed_all(5)
    expected = draw()
    seed_all(5)
    seeds = {get_random_seed() for _ in range(20)}
    assert draw() == expected
    assert len(seeds) > 1
    assert all(0 <= seed <= MAX_SEED for seed in seeds)


def test_a_snapshot_is_restored_more_than_once() -> None:
    with rng.preserve_rng_state():
        seed_all(3)
        np.random.randn()  # keeps the second number of a pair
        snapshot = rng.RNGSnapshot()
        first = [(*draw(), np.random.randn(), random.gauss(0, 1)) for _ in range(400)]
        for _ in range(2):
            snapshot.restore()
            assert [(*draw(), np.random.randn(), random.gauss(0, 1)) for _ in range(400)] == first
