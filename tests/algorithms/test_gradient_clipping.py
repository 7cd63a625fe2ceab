from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

from composer.algorithms import GradientClipping, apply_gradient_clipping
from tests import loop
from tests.algorithms.cases import Case, make_batches, make_model, weights

INF = float("inf")


def _by_hand(batches):
    model = make_model()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        apply_gradient_clipping(model, "norm", 0.1)
        optimizer.step()
    return weights(model)


CASE = Case(make=lambda: GradientClipping("norm", 0.1), by_hand=_by_hand, neutral=lambda: GradientClipping("norm", INF))


def filled(seed=0, scale=1.0):
    """A model with gradients."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Linear(4, 5), nn.BatchNorm1d(5))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * scale
    return model


def grads(model):
    return [parameter.grad for parameter in model.parameters()]


@given(seed=st.integers(0, 20), scale=st.sampled_from([1e-4, 0.1, 10.0]), threshold=st.sampled_from([0.01, 1.0, 50.0]))
def test_norm_and_value_equal_torch(seed, scale, threshold):
    ours, theirs = filled(seed, scale), filled(seed, scale)
    apply_gradient_clipping(ours, "norm", threshold)
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), threshold)
    torch.testing.assert_close(grads(ours), grads(theirs))
    assert torch.nn.utils.get_total_norm(grads(ours)) <= threshold * 1.001
    ours, theirs = filled(seed, scale), filled(seed, scale)
    apply_gradient_clipping(ours, "value", threshold)
    torch.nn.utils.clip_grad_value_(theirs.parameters(), threshold)
    torch.testing.assert_close(grads(ours), grads(theirs))


def test_adaptive_in_closed_form():
    layer = nn.Linear(2, 3)
    layer.weight.data = torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]])
    layer.weight.grad = torch.tensor([[0.6, 0.8], [0.0, 0.01], [3.0, 4.0]])
    layer.bias.data = torch.tensor([0.0, 6.0, 8.0])
    layer.bias.grad = torch.tensor([0.0, 0.0, 4.0])
    apply_gradient_clipping(layer, "adaptive", 0.1)
    # Norm 5, so at most 0.5; below that; weights of zero count as 0.001, so at most 0.0001.
    torch.testing.assert_close(layer.weight.grad, torch.tensor([[0.3, 0.4], [0.0, 0.01], [0.6e-4, 0.8e-4]]))
    torch.testing.assert_close(layer.bias.grad, torch.tensor([0.0, 0.0, 1.0]))  # a bias is one unit, of norm 10


@given(seed=st.integers(0, 20), threshold=st.sampled_from([0.01, 0.2, 3.0]))
def test_adaptive_bounds_every_unit_and_keeps_its_direction(seed, threshold):
    model = filled(seed)
    before = [gradient.clone() for gradient in grads(model)]
    apply_gradient_clipping(model, "adaptive", threshold)
    for parameter, old in zip(model.parameters(), before, strict=True):
        units = len(parameter) if parameter.ndim > 1 else 1
        weight, new, old = (t.reshape(units, -1) for t in (parameter, parameter.grad, old))
        bound = threshold * weight.norm(dim=1).clamp(min=1e-3)
        assert (new.norm(dim=1) <= bound * 1.001).all()
        torch.testing.assert_close(nn.functional.cosine_similarity(new, old), torch.ones(units))
        inside = old.norm(dim=1) <= bound * 0.999
        assert torch.equal(new[inside], old[inside])


@pytest.mark.parametrize("clipping_type", ["norm", "value", "adaptive"])
def test_zero_gradients_and_none_are_left_alone(clipping_type):
    model = filled(scale=0.0)
    model[0].weight.grad = None
    apply_gradient_clipping(model, clipping_type, 0.1)
    assert model[0].weight.grad is None
    assert all((gradient == 0).all() for gradient in grads(model)[1:])
    apply_gradient_clipping(nn.Linear(1, 1), clipping_type, 0.1)


def test_infinite_threshold_is_off_bit_for_bit():
    model = filled()
    before = copy.deepcopy(grads(model))
    for clipping_type in ("norm", "value", "adaptive"):
        apply_gradient_clipping(model, clipping_type, INF)
    assert all(torch.equal(new, old) for new, old in zip(grads(model), before, strict=True))


def two_optimizers():
    model = make_model()
    first, second = [SGD(layer.parameters(), lr=1.0) for layer in (model.net[0], model.net[8])]
    return model, [first, second]


def gradients_after(algorithm):
    model, optimizers = two_optimizers()
    engine = loop.start(model, [algorithm], optimizers[0])
    engine.state.optimizers = optimizers
    engine.run_event("fit_start")
    engine.state.batch = make_batches()[0]
    loop.gradients(engine)
    return [torch.cat([p.grad.flatten() for p in layer.parameters()]) for layer in (model.net[0], model.net[8])]


def test_each_optimizer_has_its_own_policy():
    first, second = gradients_after(GradientClipping("norm", INF))
    a, b = gradients_after(GradientClipping(["norm", None], [0.01, None]))
    assert a.norm() == pytest.approx(0.01, rel=1e-3)
    assert torch.equal(b, second)
    a, b = gradients_after(GradientClipping(["value", "norm"], 0.001))
    assert torch.equal(a, first.clamp(-0.001, 0.001))
    assert b.norm() == pytest.approx(0.001, rel=1e-2)
    a, b = gradients_after(GradientClipping("norm", 0.01))  # one policy: the common norm
    assert torch.cat([a, b]).norm() == pytest.approx(0.01, rel=1e-3)


def test_number_of_policies_must_fit():
    with pytest.raises(ValueError, match="are for 2 optimizers, but the run has 1"):
        loop.start(make_model(), [GradientClipping("norm", [0.1, 0.2])]).run_event("fit_start")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nrom", 1.0), "Did you mean 'norm'"),
        (("norm", -1.0), "clipping_threshold"),
        ((["norm", "value"], [1.0, 2.0, 3.0]), "2 and clipping_threshold 3 entries"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        GradientClipping(*arguments)


def test_function_checks_its_arguments():
    with pytest.raises(ValueError, match="clipping_type"):
        apply_gradient_clipping(nn.Linear(1, 1), "norms", 1.0)
    apply_gradient_clipping(filled(), "norm", 1.0, fsdp_enabled=False)


@pytest.mark.parametrize("clipping_type", ["value", "adaptive"])
def test_large_tensors_go_another_way_to_the_same_result(clipping_type, monkeypatch):
    from composer.algorithms import gradient_clipping

    few, many = filled(), filled()
    apply_gradient_clipping(few, clipping_type, 0.05)
    monkeypatch.setattr(gradient_clipping, "_LARGE", 0)
    apply_gradient_clipping(many, clipping_type, 0.05)
    torch.testing.assert_close(grads(few), grads(many))
