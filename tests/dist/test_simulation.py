from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as torch_dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from composer import dist
from composer.dist.simulation import is_simulated, observed_collectives, simulated_ranks
from composer.trainer.step_sync import StepSync


@pytest.fixture
def four():
    with simulated_ranks(4, rank=1):
        yield


def test_ranks_and_environment_end_with_the_context(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.delenv("RANK", raising=False)
    with simulated_ranks(1024, rank=9):
        assert is_simulated()
        assert (dist.get_world_size(), dist.get_global_rank()) == (1024, 9)
        assert (dist.get_local_world_size(), dist.get_local_rank(), dist.get_node_rank()) == (8, 1, 1)
    assert not dist.is_initialized()
    assert os.environ["WORLD_SIZE"] == "1"
    assert "RANK" not in os.environ


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "world_size"), ((4, 4), "rank must be from 0 to 3"), ((6, 0, 4), "must be a multiple of local_world_size")],
)
def test_wrong_numbers(arguments, message):
    with pytest.raises(ValueError, match=message), simulated_ranks(*arguments):
        pass
    assert not dist.is_initialized()


def test_existing_group(four):
    with pytest.raises(RuntimeError, match="initialized already"), simulated_ranks(2):
        pass
    assert dist.get_world_size() == 4


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("SUM", 12), ("AVG", 3), ("PRODUCT", 81), ("MIN", 3), ("MAX", 3), ("BAND", 3), ("BOR", 3), ("BXOR", 0)],
)
def test_all_reduce(four, operation, expected):
    tensor = torch.tensor([3])
    dist.all_reduce(tensor, operation)
    assert tensor.tolist() == [expected]


def test_collectives_of_composer(four):
    assert dist.all_gather_object({"a": 1}) == [{"a": 1}] * 4
    assert [tensor.tolist() for tensor in dist.all_gather(torch.tensor([1, 2]))] == [[1, 2]] * 4
    names = ["name"]
    dist.broadcast_object_list(names)
    dist.barrier()
    dist.check_same("value", object)
    assert (names, dist.largest(7)) == (["name"], 7)


def test_collectives_of_torch(four):
    gathered = torch.zeros(8)
    mine = gathered[2:4].fill_(5)  # in place, as fully_shard does it
    group = torch_dist.group.WORLD
    group._allgather_base(gathered, mine).wait()
    assert gathered.tolist() == [5] * 8
    shard = torch.zeros(2)
    group._reduce_scatter_base(shard, torch.arange(8.0)).wait()
    assert shard.tolist() == [8, 12]
    found = [None] * 4
    torch_dist.all_gather_object(found, "a")
    assert found == ["a"] * 4
    output = torch.zeros(4)
    torch_dist.all_to_all_single(output, torch.arange(4.0))
    assert output.tolist() == [1] * 4
    with pytest.raises(RuntimeError, match="from rank 2, which is simulated"):
        torch_dist.recv(output, 2)


def test_counts_of_a_step(four):
    sync = StepSync()
    sync.send_counts(samples=8, tokens=0, seconds=1.0, signum=None)
    counts = sync.counts()
    assert (counts.samples, counts.seconds, counts.num_with_batch) == (32, 1.0, 4)


def test_observed_collectives(four):
    seen = []
    tensor = torch.ones(1)
    with observed_collectives(lambda name, inputs, outputs: seen.append((name, inputs[0] is tensor, len(outputs)))):
        torch_dist.all_reduce(tensor)
    torch_dist.all_reduce(tensor)
    assert seen == [("all_reduce", True, 1)]


def test_a_program_that_initializes_the_group_itself(four):
    torch_dist.init_process_group("nccl")
    group = torch_dist.new_group([0, 1], backend="gloo")
    assert torch_dist.get_backend(group) == "simulated"
    assert torch_dist.get_world_size(group) == 2
    dist.initialize_dist("cpu")  # starts no thread
    assert dist.all_gather_object(1, group) == [1, 1]


def test_ddp_averages_equal_gradients(four):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    wrapped(torch.ones(3, 4)).sum().backward()
    assert torch.equal(model.weight.grad, torch.full((2, 4), 3.0))


def test_fsdp_shards_and_meshes(four):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(nn.Linear(4, 4, bias=False), mesh=mesh)
    model(torch.ones(3, 4)).sum().backward()
    assert model.weight.to_local().shape == (2, 4)
    assert model.weight.grad.to_local().eq(3).all()


def test_sharded_tensors():
    with simulated_ranks(4):
        whole = distribute_tensor(torch.arange(8.0), init_device_mesh("cpu", (4,)), [Shard(0)])
        assert whole.full_tensor().tolist() == [0, 1] * 4  # each rank has the shard of this one
        assert whole.sum().full_tensor() == 4
