from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composer.nn import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
from composer.nn.ghost_batchnorm import ghost_batchnorm

SHAPES = [(10, 4, 5, 5), (8, 4), (7, 4, 3), (6, 3, 2, 2, 2)]


@pytest.fixture(autouse=True, params=[0, 10**9], ids=["large", "small"])
def _both_ways(request, monkeypatch):
    """Large inputs take another code path, with the same result."""
    monkeypatch.setattr("composer.nn.ghost_batchnorm._LARGE", request.param)


KINDS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def norm_for(shape, **arguments):
    norm = KINDS[len(shape)](shape[1], **arguments)
    for parameter in norm.parameters():
        nn.init.uniform_(parameter)
    return norm


def one_by_one(norm, x, size):
    """The definition: each ghost batch through the plain layer, with a fraction of the momentum."""
    number = -(-len(x) // size)
    if norm.momentum is not None:
        norm.momentum /= number
    return torch.cat([norm(chunk) for chunk in x.tensor_split(number)])


def test_by_hand():
    x = torch.tensor([[0.0], [2.0], [5.0], [9.0]])
    layer = GhostBatchNorm1d(1, ghost_batch_size=2, eps=1e-9)
    assert layer(x).flatten().tolist() == pytest.approx([-1, 1, -1, 1])
    # Means 1 and 7, variances (of samples) 2 and 8; each moves the running ones by 0.05.
    assert layer.running_mean.item() == pytest.approx((0 * 0.95 + 1 * 0.05) * 0.95 + 7 * 0.05)
    assert layer.running_var.item() == pytest.approx((1 * 0.95 + 2 * 0.05) * 0.95 + 8 * 0.05)
    assert layer.num_batches_tracked.item() == 1


@pytest.mark.parametrize(
    ("shape", "momentum", "compiled"),
    [
        *((shape, momentum, False) for shape in SHAPES for momentum in (0.1, None)),
        *((s, 0.1, True) for s in SHAPES[:2]),
    ],
)
def test_equals_plain_layer_on_each_ghost_batch(shape, momentum, compiled):
    """Compiled as well, with ghost batches of different sizes and of the same size."""
    norm = norm_for(shape, momentum=momentum)
    layer = ghost_batchnorm(copy.deepcopy(norm), 4)
    run = layer
    if compiled:
        torch.compiler.reset()
        run = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        x = torch.randn(shape)
        one, other, upstream = x.clone().requires_grad_(), x.clone().requires_grad_(), torch.randn(shape)
        expected, found = one_by_one(copy.copy(norm), one, 4), run(other)
        torch.testing.assert_close(found, expected)
        expected.backward(upstream)
        found.backward(upstream)
        torch.testing.assert_close(other.grad, one.grad)
    for name, value in layer.named_parameters():
        torch.testing.assert_close(value.grad, getattr(norm, name).grad)
    torch.testing.assert_close(layer.running_mean, norm.running_mean)
    torch.testing.assert_close(layer.running_var, norm.running_var)


@given(batch=st.integers(1, 40), size=st.integers(1, 40))
def test_ghost_batches_are_of_even_sizes_below_the_limit(batch, size):
    """A sample affects only its ghost batch."""
    layer = GhostBatchNorm2d(1, ghost_batch_size=size)
    x = torch.randn(batch, 1, 2, 2)
    changed = x.clone()
    changed[0] += torch.arange(4.0).view(1, 2, 2)
    touched = (layer(x) != layer(changed)).flatten(1).any(1)
    together = int(touched.sum())
    assert touched[:together].all()
    assert batch // -(-batch // size) <= together <= min(size, batch)


def test_evaluation_and_small_batches_are_plain():
    norm = norm_for((3, 4, 2, 2))
    layer = ghost_batchnorm(copy.deepcopy(norm), 32)
    x = torch.randn(3, 4, 2, 2)
    assert torch.equal(layer(x), norm(x))
    assert torch.equal(layer.eval()(torch.cat([x] * 20)), norm.eval()(torch.cat([x] * 20)))
    layer(x[:1])
    # Without running statistics evaluation takes those of the ghost batch, as training does.
    bare = GhostBatchNorm2d(4, 2, affine=False, track_running_stats=False)
    y = torch.randn(4, 4, 2, 2)
    torch.testing.assert_close(bare(y), bare.eval()(y))
    torch.testing.assert_close(bare(y).view(2, 2, 4, 4).mean((1, 3)), torch.zeros(2, 4), atol=1e-6, rtol=0)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("weights", "data"), [("float32", "bfloat16"), ("bfloat16", "bfloat16"), ("float64",) * 2])
def test_dtypes_and_memory_formats(weights, data, memory_format):
    layer = GhostBatchNorm2d(4, 2).to(getattr(torch, weights))
    x = torch.randn(6, 4, 3, 3).to(getattr(torch, data)).contiguous(memory_format=memory_format).requires_grad_()
    out = layer(x)
    out.float().square().sum().backward()
    assert out.dtype == x.dtype
    assert out.is_contiguous(memory_format=memory_format)
    assert x.grad.is_contiguous(memory_format=memory_format)
    expected = one_by_one(norm_for(x.shape).requires_grad_(False), x.detach().float(), 2)
    assert expected.shape == out.shape


def test_no_ghost_batch_is_a_single_value():
    x = torch.randn(3, 2)
    layer = GhostBatchNorm1d(2, 2)
    assert torch.equal(layer(x), nn.BatchNorm1d(2)(x))
    assert GhostBatchNorm2d(2, 1)(torch.randn(3, 2, 4, 4)).shape == (3, 2, 4, 4)


def test_gradients():
    layer = GhostBatchNorm1d(2, 3).double()
    assert torch.autograd.gradcheck(lambda x: layer(x), torch.randn(5, 2, dtype=torch.float64, requires_grad=True))
    layer.requires_grad_(False)
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    layer(x).sum().backward()
    assert layer.weight.grad is None


def test_other_layers():
    class Own(nn.BatchNorm2d):
        def forward(self, input):
            return super().forward(input).relu()

    with pytest.raises(TypeError, match="Own"):
        ghost_batchnorm(Own(3))
    with pytest.raises(TypeError, match="SyncBatchNorm"):
        ghost_batchnorm(nn.SyncBatchNorm(3))
    with pytest.raises(ValueError, match="ghost_batch_size"):
        GhostBatchNorm3d(3, 0)
    with pytest.raises(ValueError, match="expected 4D input"):
        GhostBatchNorm2d(3, 2)(torch.zeros(4, 3))
    assert "ghost_batch_size=2" in repr(GhostBatchNorm2d(3, 2))
