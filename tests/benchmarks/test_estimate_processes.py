"""The comparison of the estimated memory of ranks with that of gloo processes."""

from __future__ import annotations

import pytest

from benchmarks.estimate_memory import OPTIMIZERS, Configuration
from benchmarks.estimate_models import MODELS
from benchmarks.estimate_processes import CONFIGURATIONS, Sharded, compare


def test_configurations() -> None:
    assert len({each.label for each in CONFIGURATIONS}) == len(CONFIGURATIONS) == 28
    assert {each.strategy for each in CONFIGURATIONS} == {"ddp", "fsdp", "hsdp", "tp"}
    assert {each.configuration.model for each in CONFIGURATIONS} <= set(MODELS)
    assert {each.configuration.optimizer for each in CONFIGURATIONS} <= set(OPTIMIZERS)


@pytest.mark.slow
def test_scratch_memory_of_gloo_ends_with_the_collective() -> None:
    # A reduce-scatter of gloo copies its input, and frees the copy where the profiler does not see it.
    truth, estimate = compare(Sharded("fsdp", Configuration("mlp", "sgd")))
    assert abs(estimate["peak"] / truth - 1) < 0.05
