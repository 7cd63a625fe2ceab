from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from composer.dist.dtensor import (
    from_local_like,
    full_tensor,
    inner_products,
    is_dtensor,
    joint_norm,
    local_tensors,
    norms,
    row_norms,
)

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=5)
DTYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])


@given(SHAPES, st.lists(DTYPES, min_size=5, max_size=5))
def test_norms_of_tensors_of_any_shape_and_dtype(shapes, dtypes):
    tensors = [torch.randn(shape).to(dtype) for shape, dtype in zip(shapes, dtypes, strict=False)]
    found = norms(tensors)
    for tensor, norm in zip(tensors, found, strict=True):
        assert norm.shape == ()
        assert norm.dtype in (torch.float32, torch.float64)
        torch.testing.assert_close(norm.double(), tensor.double().square().sum().sqrt(), rtol=1e-6, atol=1e-7)
    flat = torch.cat([tensor.double().flatten() for tensor in tensors])
    torch.testing.assert_close(joint_norm(found).double(), flat.norm(), rtol=1e-6, atol=1e-7)


def test_reduced_precision_does_not_overflow():
    assert norms([torch.full((4,), 6e4, dtype=torch.float16)])[0].item() == 120000


def test_sparse_gradients():
    table = torch.nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    assert norms([table.weight.grad])[0].item() == pytest.approx((2 * 4 + 2 * 1) ** 0.5)


def test_records_no_graph():
    tensor = torch.ones(2, requires_grad=True)
    assert not norms([tensor])[0].requires_grad
    assert not inner_products([tensor], [tensor])[0].requires_grad


def test_full_tensors_are_returned_unchanged():
    tensor = torch.nn.Parameter(torch.ones(2))
    assert full_tensor(tensor) is tensor
    assert local_tensors([tensor])[0] is tensor
    part = torch.ones(2)
    assert from_local_like(tensor, part) is part
    assert not is_dtensor(tensor)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4)])
def test_row_norms(shape):
    tensor = torch.randn(shape)
    expected = tensor.norm() if tensor.ndim < 2 else tensor.flatten(1).norm(dim=1)
    found = row_norms(tensor)
    assert found.ndim == tensor.ndim
    torch.testing.assert_close(found.flatten(), expected.flatten())


# ------------------------------------------------------------------------------------------- multiple ranks

PLACEMENTS = [
    (Shard(0), Replicate()),
    (Replicate(), Shard(1)),
    (Shard(0), Shard(1)),
    (Shard(0), Shard(0)),
    (Replicate(), Replicate()),
]


def _check_shardings():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("one", "other"))
    line = mesh["one"]
    torch.manual_seed(0)
    full = [torch.randn(5, 3) for _ in PLACEMENTS] + [
        torch.randn(1),
        torch.randn(7, dtype=torch.float64),
        torch.randn(2),
    ]
    kinds = [(mesh, placements) for placements in PLACEMENTS] + [(line, (Shard(0),)), (line, (Shard(0),)), None]
    made = [value if kind is None else distribute_tensor(value, *kind) for value, kind in zip(full, kinds, strict=True)]
    for one, norm in zip(full, norms(made), strict=True):
        assert type(norm) is torch.Tensor
        torch.testing.assert_close(norm, one.norm())
    others = [2 * value + 1 for value in full]
    divided = [from_local_like(one, local_tensors([2 * one + 1])[0]) for one in made]
    for one, other, product in zip(full, others, inner_products(made, divided), strict=True):
        torch.testing.assert_close(product, (one * other).sum())
    for one, value in zip(made, full, strict=True):
        torch.testing.assert_close(full_tensor(one), value)
        rows = value.flatten(1).norm(dim=1, keepdim=True) if value.ndim > 1 else value.norm().reshape(1)
        local = row_norms(one)
        assert local.shape[0] == (local_tensors([one])[0].shape[0] if value.ndim > 1 else 1)
        assert all(((rows - norm).abs() < 1e-6).any() for norm in local.flatten())
    summed = DTensor.from_local(full[0], line, [Partial()])
    torch.testing.assert_close(norms([summed])[0], 2 * full[0].norm())
    with pytest.raises(ValueError, match="has a Partial placement"):
        local_tensors([summed])
    part = local_tensors([made[0]])[0]
    part.zero_()  # the very memory
    assert norms([made[0]])[0] == 0


def test_sharded_in_many_ways(four_ranks):
    four_ranks.run(_check_shardings)
