from __future__ import annotations

import math
from collections import Counter
from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.utils.data import DataLoader, TensorDataset

from composer import Trainer, dist
from composer.dist.simulation import simulated_ranks
from composer.estimation.kernel_memory import temporary_memory
from composer.estimation.skip_compute import skip_compute
from composer.estimation.stages import Stages
from composer.memory.allocations import AllocationLog
from composer.models import ComposerClassifier
from composer.trials.probe import Finished

WIDTH, BLOCKS, FLOAT = 256, 4, 4
# Of a block, of all blocks, and of the classifier after them.
BLOCK = 2 * (WIDTH * WIDTH + WIDTH)
HEAD = WIDTH * 8 + 8
ALL = BLOCKS * BLOCK + HEAD


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.down(torch.relu(self.up(inputs)))


def _model() -> ComposerClassifier:
    return ComposerClassifier(nn.Sequential(*[Block() for _ in range(BLOCKS)], nn.Linear(WIDTH, 8)), num_classes=8)


def _log(ranks: int, parallelism=None, *, meta: bool = False, **arguments) -> AllocationLog:
    """Return the log of three steps of a rank."""
    log = AllocationLog()
    with simulated_ranks(ranks), ExitStack() as stack:
        with torch.device("meta" if meta else "cpu"):
            model = _model()
        data = TensorDataset(torch.zeros(4 * ranks, WIDTH), torch.zeros(4 * ranks, dtype=torch.int64))
        loader = DataLoader(data, 4, sampler=dist.get_sampler(data))
        stack.enter_context(skip_compute(log, [*model.parameters()], temporary_memory))
        trainer = Trainer(
            model=model,
            train_dataloader=loader,
            optimizers=torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
            max_duration="3ba",
            parallelism_config=parallelism,
            callbacks=[Stages(log, 3)],
            progress_bar=False,
            device="cpu",
            **arguments,
        )
        del model
        with pytest.raises(Finished):
            trainer.fit()
        trainer.close()
    return log


def _roles(log: AllocationLog) -> Counter[str]:
    roles: Counter[str] = Counter()
    for each in log.live(log.peak()[1]):
        roles[each.role] += each.nbytes
    return roles


@pytest.mark.parametrize("ranks", [2, 64])
def test_ddp_has_gradients_in_its_buckets(ranks):
    roles = _roles(_log(ranks))
    assert roles["parameters"] == roles["gradients"] == roles["optimizer state"] == FLOAT * ALL
    assert roles["communication"] < 200  # the 112 bytes that each step sums, and losses


@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("ranks", [2, 64])
def test_fsdp_shards_everything_but_one_block(ranks, meta):
    log = _log(ranks, {"fsdp": {}}, meta=meta)
    final = Counter()
    for each in log.live(len(log.events)):
        final[each.role] += each.nbytes
    # Rank 0 has a whole row of the classifier, whose 8 rows are fewer than the ranks.
    elements = BLOCKS * BLOCK // ranks + math.ceil(8 / ranks) * (WIDTH + 1)
    assert final["parameters"] == final["optimizer state"] == FLOAT * elements
    # In the forward and backward pass: the buffers of at most two blocks, and two unsharded blocks.
    most = 0
    now = 0
    for index, begins in log.events:
        if log.allocations[index].role == "communication":
            now += log.allocations[index].nbytes if begins else -log.allocations[index].nbytes
            most = max(most, now)
    assert 2 * FLOAT * BLOCK < most < 5 * FLOAT * BLOCK


def test_resharding_needs_less_than_none():
    assert (
        _roles(_log(8, {"fsdp": {}}))["communication"]
        < _roles(_log(8, {"fsdp": {"sharding_strategy": "SHARD_GRAD_OP"}}))["communication"]
    )


def test_hybrid_sharding_depends_on_the_size_of_a_shard_group():
    config = {"data_parallel_replicate_degree": 4, "data_parallel_shard_degree": 8}
    assert _roles(_log(32, {"fsdp": config}))["parameters"] == FLOAT * ALL // 8


def test_tensor_parallelism_shards_the_layers_of_its_plan():
    plan = {f"module.{index}.up": ColwiseParallel() for index in range(BLOCKS)}
    plan |= {f"module.{index}.down": RowwiseParallel() for index in range(BLOCKS)}
    roles = _roles(_log(4, {"tp": {"layer_plan": plan, "tensor_parallel_degree": 4}}))
    # The bias after a sum is replicated.
    block = 2 * WIDTH * WIDTH // 4 + WIDTH // 4 + WIDTH
    assert roles["parameters"] == FLOAT * (BLOCKS * block + HEAD)


def test_shapes_that_dtensor_asks_for_are_not_memory():
    with simulated_ranks(2):
        log = AllocationLog()
        mesh = torch.distributed.init_device_mesh("cpu", (2,))
        tensor = distribute_tensor(torch.zeros(64, 64), mesh, [Shard(0)])
        with skip_compute(log, [tensor]):
            other = tensor * 3
        assert other.shape == (64, 64)
        assert {each.nbytes for each in log.allocations} == {FLOAT * 32 * 64}


def test_an_all_gather_into_its_own_row_allocates_nothing():
    log, gathered = AllocationLog(), torch.zeros(8)
    with simulated_ranks(4, rank=1), skip_compute(log, [gathered]):
        torch.distributed.group.WORLD._allgather_base(gathered, gathered[2:4]).wait()
    assert [each.nbytes for each in log.allocations] == [FLOAT * 8]


def test_gloo_copies_what_a_tensor_is_sharded_from():
    log, full = AllocationLog(), torch.zeros(64, 64)
    with simulated_ranks(2), skip_compute(log, [full], temporary_memory):
        mesh = torch.distributed.init_device_mesh("cpu", (2,))
        distribute_tensor(full, mesh, [Shard(1)])
    # The tensor, its contiguous halves, the shard, and the copy of all halves.
    assert 0 <= log.peak()[0] - 3.5 * full.nbytes < 100  # numbers of the mesh
