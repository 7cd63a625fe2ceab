"""Training programs of two ranks, each with one planted bottleneck."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from composer import Trainer, dist
from tests.diagnosis.bottlenecks import Sleeping, planted
from tests.diagnosis.parts import BATCH, CLASSES, WIDTH, ready, trainer, wide


@planted("communication", "find_unused_parameters", ranks=2)
def needless_search_for_unused_parameters() -> Trainer:
    net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)], nn.Linear(64, CLASSES))
    return trainer(net, ready(8, 64, number=200), find_unused_parameters=True)


class SleepingOnRank1(Sleeping):
    def make(self, index: int) -> Tensor:
        if dist.get_global_rank() == 1:
            time.sleep(0.0005)
        return torch.randn(WIDTH)


@planted("data", "SleepingOnRank1", ranks=2)
def slow_data_on_one_rank() -> Trainer:
    return trainer(data=DataLoader(SleepingOnRank1(), BATCH))


class LongOnRank1(nn.Module):
    """A network that computes four times as much on one rank, as with longer texts."""

    def __init__(self) -> None:
        super().__init__()
        self.net = wide()

    def forward(self, inputs: Tensor) -> Tensor:
        times = 4 if dist.get_global_rank() == 1 else 1
        return self.net(torch.cat([inputs] * times)).view(times, len(inputs), -1).mean(0)


@planted("imbalance", ranks=2)
def longer_batches_on_one_rank() -> Trainer:
    return trainer(LongOnRank1())


@planted("communication", ranks=2)
def large_gradients_of_small_batches() -> Trainer:
    net = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)], nn.Linear(1024, CLASSES))
    return trainer(net, ready(4, 1024), optimizers=torch.optim.SGD(net.parameters(), 1e-4, fused=True))


@planted("communication", ranks=2)
def small_batches_of_a_sharded_model() -> Trainer:
    net = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)], nn.Linear(1024, CLASSES))
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    return trainer(net, ready(4, 1024), optimizers=optimizer, parallelism_config={"fsdp": {}})
