"""SGD and AdamW with decay relative to the first learning rate: formulas, kernels, devices, states."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from composer.optim import DecoupledAdamW, DecoupledSGDW, _decoupled
from composer.warnings import NotIntendedUseWarning

SHAPES = ((3, 4), (5,), (2, 3, 2, 2), ())


def parameters(dtype=torch.float64, seed=0, shapes=SHAPES):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]


def set_gradients(params, seed):
    generator = torch.Generator().manual_seed(seed)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator, dtype=param.dtype)


def same(ours, theirs, **tolerance):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), **tolerance)


@pytest.fixture(params=["fused", "single calls"])
def kernels(request, monkeypatch):
    """Both kinds of kernels."""
    if request.param == "single calls":
        monkeypatch.setattr(_decoupled, "_FUSED", frozenset())
    return request.param


RATES = [0.1, 0.05, 0.2, 0.0, 0.1]


@pytest.mark.parametrize(
    "settings_",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5},
        {"momentum": 0.9, "nesterov": True},
    ],
)
@pytest.mark.parametrize("weight_decay", [0.0, 5e-4])
def test_sgdw_is_sgd_with_the_decay_taken_off_before(kernels, settings_, weight_decay):
    ours, theirs = parameters(), parameters()
    one = DecoupledSGDW(ours, lr=0.1, weight_decay=weight_decay, **settings_)
    other = torch.optim.SGD(theirs, lr=0.1, **settings_)
    for step, rate in enumerate(RATES):
        for optimizer, params in ((one, ours), (other, theirs)):
            optimizer.param_groups[0]["lr"] = rate
            set_gradients(params, step)
        with torch.no_grad():
            for param in theirs:
                param *= 1 - rate / 0.1 * weight_decay
        one.step()
        other.step()
    same(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 5e-4])
def test_adamw_is_adam_with_the_decay_taken_off_before(kernels, amsgrad, weight_decay):
    ours, theirs = parameters(), parameters()
    one = DecoupledAdamW(ours, lr=0.1, betas=(0.8, 0.9), weight_decay=weight_decay, amsgrad=amsgrad)
    other = torch.optim.Adam(theirs, lr=0.1, betas=(0.8, 0.9), amsgrad=amsgrad)
    for step, rate in enumerate(RATES):
        for optimizer, params in ((one, ours), (other, theirs)):
            optimizer.param_groups[0]["lr"] = rate
            set_gradients(params, step)
        with torch.no_grad():
            for param in theirs:
                param *= 1 - rate / 0.1 * weight_decay
        one.step()
        other.step()
    # The steps are counted in float32, as torch counts them; so are the corrections of the single calls.
    same(ours, theirs, rtol=1e-6, atol=1e-6)


def test_adamw_equals_torchs_at_the_product_of_decay_and_rate(kernels):
    """At a constant rate the two decays are the same thing in other units."""
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    one = DecoupledAdamW(ours, lr=0.01, betas=(0.9, 0.999), weight_decay=1e-4)
    other = torch.optim.AdamW(theirs, lr=0.01, betas=(0.9, 0.999), weight_decay=1e-2)
    for step in range(20):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        one.step()
        other.step()
    same(ours, theirs, rtol=1e-4, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(lr=st.floats(1e-6, 1.0), factor=st.floats(1e-3, 10), weight_decay=st.floats(0, 9e-4))
def test_decay_depends_on_the_schedule_and_not_on_the_rate(lr, factor, weight_decay):
    """Law: without gradients a step multiplies with 1 - factor * weight_decay, whatever the first rate was."""
    for make in (DecoupledSGDW, DecoupledAdamW):
        weight = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
        weight.grad = torch.zeros_like(weight)
        optimizer = make([weight], lr=lr, weight_decay=weight_decay)
        optimizer.param_groups[0]["lr"] = lr * factor
        optimizer.step()
        assert weight.item() == pytest.approx(2 * (1 - factor * weight_decay), rel=1e-9)


@pytest.mark.parametrize("make", [DecoupledSGDW, DecoupledAdamW])
def test_decay_at_a_first_rate_of_zero(make):
    """A warm-up that starts at nothing gives no ratio; the whole decay is used."""
    weight = nn.Parameter(torch.tensor([2.0]))
    weight.grad = torch.zeros_like(weight)
    optimizer = make([weight], lr=0.0, weight_decay=5e-4)
    optimizer.step()
    assert weight.item() == pytest.approx(2 * (1 - 5e-4))


@pytest.mark.parametrize("make", [DecoupledSGDW, DecoupledAdamW])
def test_rate_as_a_tensor(kernels, make):
    ours, theirs = parameters(), parameters()
    rate = torch.tensor(0.1, dtype=torch.float64)
    one, other = make(ours, lr=rate, weight_decay=5e-4), make(theirs, lr=0.1, weight_decay=5e-4)
    for step in range(3):
        rate.fill_(0.1 / (step + 1))
        other.param_groups[0]["lr"] = 0.1 / (step + 1)
        set_gradients(ours, step)
        set_gradients(theirs, step)
        one.step()
        other.step()
    same(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "make", [lambda p: DecoupledSGDW(p, lr=0.1, momentum=0.9), lambda p: DecoupledAdamW(p, lr=0.1)]
)
def test_memory_formats_that_differ(make):
    """The fused kernels of the CPU read memory in order, whatever the strides are."""
    ours, theirs = parameters(shapes=[(2, 3, 4, 4)] * 2), parameters(shapes=[(2, 3, 4, 4)] * 2)
    one, other = make(ours), make(theirs)
    for step in range(3):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        for param in ours:
            param.grad = param.grad.to(memory_format=torch.channels_last)
        one.step()
        other.step()
    same(ours, theirs)


@pytest.mark.parametrize(
    "make", [lambda p: DecoupledSGDW(p, lr=0.1, momentum=0.9), lambda p: DecoupledAdamW(p, lr=0.1)]
)
def test_several_dtypes_and_missing_gradients(kernels, make):
    """Parameters that get a gradient later, or now and then, are each as if they were alone."""
    dtypes = [torch.float32, torch.float64, torch.bfloat16]
    together = [nn.Parameter(torch.ones(4, dtype=dtype)) for dtype in dtypes for _ in range(2)]
    alone = copy.deepcopy(together)
    one, others = make(together), [make([param]) for param in alone]
    for step in range(4):
        for place, param in enumerate(together):
            missing = (step + place) % 3 == 0
            gradient = torch.full((4,), 0.5 + place + step)
            param.grad = None if missing else gradient.to(param.dtype)
            alone[place].grad = None if missing else gradient.to(param.dtype)
        one.step()
        for other in others:
            other.step()
    same(together, alone, rtol=0, atol=0)


def test_complex_parameters(kernels):
    def params():
        return [nn.Parameter(torch.tensor([1 + 2j, -3j], dtype=torch.complex128))]

    for make, twin in (
        (lambda p: DecoupledSGDW(p, lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        (
            lambda p: DecoupledAdamW(p, lr=0.1, weight_decay=0, betas=(0.9, 0.99)),
            lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.9, 0.99)),
        ),
    ):
        ours, theirs = params(), params()
        one, other = make(ours), twin(theirs)
        for step in range(3):
            set_gradients(ours, step)
            set_gradients(theirs, step)
            one.step()
            other.step()
        same(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "make", [lambda p: DecoupledSGDW(p, lr=0.1, momentum=0.9), lambda p: DecoupledAdamW(p, lr=0.1)]
)
def test_the_host_never_waits_for_the_device(kernels, make):
    reads = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default):
                reads.append(func)
            return func(*args, **(kwargs or {}))

    params = parameters()
    optimizer = make(params)
    with Watch():
        for step in range(2):
            set_gradients(params, step)
            optimizer.step()
            if isinstance(optimizer, DecoupledAdamW):
                optimizer.dist_reduce_metrics(optimizer.report_per_parameter_metrics(params[0], "w", {}))
        assert reads == []
        params[3].item()
        assert reads  # which it would have seen


def test_sparse_gradients():
    table = nn.Embedding(5, 2, sparse=True)
    dense = copy.deepcopy(table)
    dense.sparse = False
    for layer in (table, dense):
        optimizer = DecoupledSGDW(layer.parameters(), lr=0.1)
        layer(torch.tensor([1, 3, 1])).sum().backward()
        optimizer.step()
    torch.testing.assert_close(table.weight, dense.weight)
    with pytest.raises(RuntimeError, match=r"shape \(5, 2\) is sparse"):
        DecoupledAdamW(table.parameters()).step()


def test_functional_forms_are_the_steps():
    params = parameters()
    set_gradients(params, 1)
    expected = copy.deepcopy(params)
    for param, other in zip(params, expected, strict=True):
        other.grad = param.grad
    optimizer = DecoupledSGDW(expected, lr=0.1, momentum=0.9, weight_decay=1e-4)
    buffers = [None] * len(params)
    with torch.no_grad():
        for _ in range(2):
            optimizer.step()
            DecoupledSGDW.sgdw(
                params,
                [p.grad for p in params],
                buffers,
                weight_decay=1e-4,
                momentum=0.9,
                lr=0.1,
                initial_lr=0.1,
                dampening=0,
                nesterov=False,
            )
    same(params, expected, rtol=0, atol=0)
    same(buffers, [optimizer.state[p]["momentum_buffer"] for p in expected], rtol=0, atol=0)

    # The third step of one weight, by hand.
    weight, slope = torch.tensor([1.0]), torch.tensor([2.0])
    mean, square = torch.tensor([0.5]), torch.tensor([3.0])
    DecoupledAdamW.adamw(
        [weight],
        [slope],
        [mean],
        [square],
        [],
        [torch.tensor(3.0)],
        amsgrad=False,
        beta1=0.9,
        beta2=0.5,
        lr=0.01,
        initial_lr=0.02,
        weight_decay=1e-3,
        eps=1e-8,
    )
    assert (mean.item(), square.item()) == (pytest.approx(0.65), pytest.approx(3.5))
    corrected = 0.65 / (1 - 0.9**3) / (math.sqrt(3.5 / (1 - 0.5**3)) + 1e-8)
    assert weight.item() == pytest.approx(1 - 0.5e-3 - 0.01 * corrected, rel=1e-6)


@pytest.mark.parametrize(
    "make", [lambda p: DecoupledSGDW(p, lr=0.1, momentum=0.9), lambda p: DecoupledAdamW(p, lr=0.1)]
)
@pytest.mark.parametrize("how", ["state_dict", "pickle", "deepcopy"])
def test_saved_and_loaded(make, how):
    params = parameters()
    optimizer = make(params)
    set_gradients(params, 1)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.02
    if how == "state_dict":
        twins = copy.deepcopy(params)
        other = make(twins)
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    else:
        copied = pickle.loads(pickle.dumps(optimizer)) if how == "pickle" else copy.deepcopy(optimizer)
        other, twins = copied, copied.param_groups[0]["params"]
    assert other.param_groups[0]["initial_lr"] == 0.1
    for each, some in ((optimizer, params), (other, twins)):
        set_gradients(some, 2)
        each.step()
    same(params, twins, rtol=0, atol=0)


def test_loads_the_state_of_an_optimizer_without_the_first_rate():
    params = parameters()
    other = torch.optim.SGD(params, lr=0.3, momentum=0.9)
    optimizer = DecoupledSGDW(params, lr=0.1, momentum=0.9)
    optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups[0]["initial_lr"] == 0.3


@pytest.mark.parametrize("make", [DecoupledSGDW, DecoupledAdamW])
def test_groups(make):
    one, two, three = (nn.Parameter(torch.ones(1)) for _ in range(3))
    optimizer = make([{"params": [one]}, {"params": [two], "lr": 0.5, "weight_decay": 0}], lr=0.1, weight_decay=1e-4)
    optimizer.add_param_group({"params": [three], "lr": 0.25})
    assert [group["initial_lr"] for group in optimizer.param_groups] == [0.1, 0.5, 0.25]
    for param in (one, two, three):
        param.grad = torch.zeros(1)
    optimizer.step()
    assert [one.item(), two.item(), three.item()] == pytest.approx([1 - 1e-4, 1.0, 1 - 1e-4])


@pytest.mark.parametrize("make", [DecoupledSGDW, DecoupledAdamW])
def test_closure(make):
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = make([weight], lr=0.1)

    def closure():
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 1.0
    assert weight.item() < 1.0
    assert make([nn.Parameter(torch.ones(1))], lr=0.1).step() is None


@pytest.mark.parametrize("make", [DecoupledSGDW, DecoupledAdamW])
def test_warns_of_decay_in_other_units(make):
    params = [nn.Parameter(torch.ones(1))]
    with pytest.warns(NotIntendedUseWarning, match=r"corresponds to weight_decay=0\.0005 here"):
        make(params, lr=0.05, weight_decay=1e-2)
    with pytest.warns(NotIntendedUseWarning):
        make([{"params": params, "weight_decay": 1e-3}], lr=0.1)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (DecoupledSGDW, {"lr": -0.1}, "lr must be 0 or greater"),
        (DecoupledSGDW, {"lr": 0.1, "momentum": -1}, "momentum must be"),
        (DecoupledSGDW, {"lr": 0.1, "weight_decay": -1}, "weight_decay must be"),
        (DecoupledSGDW, {"lr": 0.1, "nesterov": True}, "nesterov=True requires momentum"),
        (DecoupledSGDW, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "nesterov": True}, "dampening=0.1"),
        (DecoupledAdamW, {"lr": -0.1}, "lr must be"),
        (DecoupledAdamW, {"eps": -1e-8}, "eps must be"),
        (DecoupledAdamW, {"weight_decay": -1e-8}, "weight_decay must be"),
        (DecoupledAdamW, {"betas": (0.9, 1.0)}, "betas must be"),
        (DecoupledAdamW, {"betas": (0.9,)}, "betas must be"),
    ],
)
def test_wrong_arguments(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make([nn.Parameter(torch.ones(1))], **arguments)


def test_rate_is_required():
    with pytest.raises(TypeError, match="lr"):
        DecoupledSGDW([nn.Parameter(torch.ones(1))])


def test_old_home():
    from composer.optim import decoupled_weight_decay as old_home

    assert old_home.DecoupledAdamW is DecoupledAdamW
    assert old_home.DecoupledSGDW is DecoupledSGDW
