from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.callbacks._norms import l2_norms, total_norm, whole

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=5)
DTYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])


@given(SHAPES, st.lists(DTYPES, min_size=5, max_size=5))
def test_of_tensors_of_any_shape_and_dtype(shapes, dtypes):
    tensors = [torch.randn(shape).to(dtype) for shape, dtype in zip(shapes, dtypes, strict=False)]
    norms = l2_norms(tensors)
    for tensor, norm in zip(tensors, norms, strict=True):
        assert norm.shape == ()
        assert norm.dtype in (torch.float32, torch.float64)
        torch.testing.assert_close(norm.double(), tensor.double().square().sum().sqrt(), rtol=1e-6, atol=1e-7)
    flat = torch.cat([tensor.double().flatten() for tensor in tensors])
    torch.testing.assert_close(total_norm(norms).double(), flat.norm(), rtol=1e-6, atol=1e-7)


def test_short_formats_do_not_overflow():
    assert l2_norms([torch.full((4,), 6e4, dtype=torch.float16)])[0].item() == 120000


def test_sparse_gradients():
    table = torch.nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    assert l2_norms([table.weight.grad])[0].item() == pytest.approx((2 * 4 + 2 * 1) ** 0.5)


def test_records_no_graph():
    assert not l2_norms([torch.ones(2, requires_grad=True)])[0].requires_grad


def test_a_whole_tensor_stays_itself():
    tensor = torch.nn.Parameter(torch.ones(2))
    assert whole(tensor) is tensor


WORKER = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from composer import dist
from composer.callbacks._norms import l2_norms, whole
dist.initialize_dist("cpu", timeout=30)
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
full = [torch.randn(5, 3), torch.randn(4), torch.randn(1), torch.randn(3, 4, dtype=torch.float64), torch.randn(2, 2)]
kinds = [[Shard(0)], [Replicate()], [Shard(0)], [Shard(1)], None]
given = [x if kind is None else distribute_tensor(x, mesh, kind) for x, kind in zip(full, kinds)]
full.append(2 * full[0]); given.append(DTensor.from_local(full[0], mesh, [Partial()]))
norms = l2_norms(given)
for norm, x in zip(norms, full, strict=True):
    assert type(norm) is torch.Tensor
    torch.testing.assert_close(norm, x.norm())
torch.testing.assert_close(whole(given[0]), full[0])
torch.distributed.destroy_process_group()
"""


def test_divided_among_two_processes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": port, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
