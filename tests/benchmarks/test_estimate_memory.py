"""The comparison of estimates with the profiler: some of its configurations, and what it reports."""

from __future__ import annotations

import pytest

from benchmarks import estimate_memory
from benchmarks.estimate_memory import CONFIGURATIONS, OPTIMIZERS, Configuration, compare, measure
from benchmarks.estimate_models import MODELS


def test_configurations() -> None:
    assert len(CONFIGURATIONS) == 67
    assert len({each.label for each in CONFIGURATIONS}) == 67
    assert {each.model for each in CONFIGURATIONS} == set(MODELS)
    assert {each.optimizer for each in CONFIGURATIONS} <= set(OPTIMIZERS)


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration("mlp", "adamw-foreach"),
        Configuration("mlp", "sgd", batch=8, evaluation=2048),  # the evaluation needs the most
        Configuration("convnet", "momentum", ("EMA(half_life='2ba')",), settings={"device_train_microbatch_size": 8}),
        Configuration("lstm", "sgd", batch=8),
        Configuration("packed-gru", "sgd", batch=8),
        Configuration("padded-encoder", "sgd", batch=8, evaluation=32),
        Configuration("autoencoder", "sgd", batch=8),
        Configuration("convnet-float64", "sgd", batch=8),
        Configuration("mlp", "lbfgs"),
        Configuration("gpt-tied", "lion", batch=4),
    ],
    ids=lambda each: each.label,
)
def test_estimates(configuration: Configuration) -> None:
    truth, estimate = compare(configuration)
    assert abs(estimate["peak"] / truth - 1) < 0.03


def test_errors_are_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"mlp": 110, "gpt": 60}
    monkeypatch.setattr(
        estimate_memory, "compare", lambda each: (100, {"peak": peaks[each.model], "stage": "", "module": ""})
    )
    report = measure([Configuration("mlp"), Configuration("gpt")])
    assert [row[-1] for row in report.rows] == ["+10.00", "-40.00"]
    assert [round(goal.value, 6) for goal in report.goals] == [25, 40, 40]
    assert not any(goal.met for goal in report.goals)
