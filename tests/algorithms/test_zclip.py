from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD

from composer.algorithms import ZClip, apply_zclip
from tests import loop
from tests.algorithms.cases import Case, make_model, weights
from tests.on_device import place

ARGUMENTS = {"alpha": 0.5, "z_threshold": 0.01, "warmup_steps": 2}


def _by_hand(batches):
    model, statistics = make_model(), place(torch.zeros(3))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        apply_zclip(model, statistics, **ARGUMENTS)
        optimizer.step()
    return {**weights(model), "statistics": statistics}


def _with_statistics(model, algorithm):
    return {**weights(model), "statistics": algorithm._statistics.clone()}


CASE = Case(
    make=lambda: ZClip(**{**ARGUMENTS, "max_norm": None}),
    by_hand=_by_hand,
    neutral=lambda: ZClip(z_threshold=float("inf")),
    outcome=_with_statistics,
)


def reference(norms, alpha, z_threshold, warmup_steps, max_norm=None):
    """The algorithm of the paper on plain numbers: norms after clipping, and the last mean and variance."""
    clipped, first, mean, variance = [], [], 0.0, 0.0
    for norm in norms:
        typical = norm
        if len(first) < warmup_steps:
            first.append(norm)
            mean = sum(first) / len(first)
            variance = sum((value - mean) ** 2 for value in first) / len(first)
        else:
            z = (norm - mean) / (math.sqrt(variance) + 1e-6)
            if z > z_threshold:
                typical = mean + z_threshold * math.sqrt(variance) / (z / z_threshold)
            mean = alpha * mean + (1 - alpha) * typical
            variance = alpha * variance + (1 - alpha) * (typical - mean) ** 2
        clipped.append(typical if max_norm is None else min(typical, max_norm))
    return clipped, mean, variance


def run(norms, **arguments):
    layer, statistics, clipped = nn.Linear(2, 1, bias=False), torch.zeros(3), []
    for norm in norms:
        layer.weight.grad = torch.tensor([[0.6, 0.8]]) * norm
        before, factor = apply_zclip(layer, statistics, **arguments)
        assert before.item() == pytest.approx(norm, nan_ok=True)
        clipped.append(layer.weight.grad.norm().item())
        if math.isfinite(norm):
            assert factor.item() == pytest.approx(clipped[-1] / norm, rel=1e-5)
    return clipped, statistics


@pytest.mark.parametrize("max_norm", [None, 1.05])
def test_follows_the_paper(max_norm):
    torch.manual_seed(0)
    norms = (1 + 0.1 * torch.randn(60)).tolist()
    norms[30], norms[31], norms[50] = 20.0, 3.0, 0.1
    arguments = {"alpha": 0.97, "z_threshold": 2.5, "warmup_steps": 25, "max_norm": max_norm}
    clipped, statistics = run(norms, **arguments)
    expected, mean, variance = reference(norms, **arguments)
    assert clipped == pytest.approx(expected, rel=1e-4)
    assert statistics.tolist() == pytest.approx([60, mean, variance], rel=1e-3)
    assert clipped[30] < clipped[31] < 1.3  # the further out, the smaller
    assert clipped[50] == pytest.approx(0.1)  # small norms are no outliers


def test_norms_that_are_not_finite_leave_no_trace():
    norms = [1.0, 1.2, 0.9, 1.1, 0.8]
    _, expected = run(norms, warmup_steps=3)
    _, statistics = run([1.0, float("inf"), 1.2, 0.9, float("nan"), 1.1, 0.8], warmup_steps=3)
    assert torch.equal(statistics, expected)


def test_without_gradients_nothing_happens():
    statistics = torch.zeros(3)
    norm, factor = apply_zclip(nn.Linear(1, 1), statistics)
    assert (norm.item(), factor.item(), statistics.tolist()) == (0.0, 1.0, [0.0, 0.0, 0.0])


def test_logs_without_reading():
    logged = []

    class Logger:
        def log_metrics(self, metrics):
            logged.append(metrics)

    engine = loop.start(make_model(), [])
    for parameter in engine.state.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    ZClip().after_train_batch(engine.state, Logger())
    count = sum(parameter.numel() for parameter in engine.state.model.parameters())
    assert logged[0]["zclip/gradient_norm"].item() == pytest.approx(count**0.5)
    assert logged[0]["zclip/factor"].item() == 1


@pytest.mark.parametrize(
    "argument", [{"alpha": 1.5}, {"z_threshold": 0.0}, {"max_norm": 0.0}, {"warmup_steps": -1}], ids=str
)
def test_wrong_arguments(argument):
    with pytest.raises(ValueError, match=next(iter(argument))):
        ZClip(**argument)
