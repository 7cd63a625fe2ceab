"""Simulate 2 to 16,384 ranks: what one rank sends and computes, and what that takes by a model of the network."""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks import environment
from benchmarks.report import Goal, Report, spread
from benchmarks.simulated_network import Call, Network, Store, recorded
from composer import ComposerModel, Trainer
from composer.core.data_sharding import DataShard
from composer.core.sample_order import SampleOrder
from composer.dist.grid_collectives import grid_of, num_messages
from composer.dist.rendezvous import rendezvous
from composer.dist.simulation import simulated_ranks

RANKS = (2, 64, 1024, 16_384)
# Enough to tell what a step costs from what a fit costs.
FEW, MANY = 5, 25
NUM_TENSORS = 20
DATASET = 10_000_000


class Model(ComposerModel):
    """A stack of small layers, with tensors enough for a plan."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(NUM_TENSORS // 2)))

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.layers(batch[0])

    def loss(self, outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (outputs - batch[1]).square().mean()


@dataclass
class OfRank:
    """What one rank does in a run on a number of ranks.

    Attributes:
        ranks: World size.
        join: Requests to the store when it joins.
        keys: Keys in these requests.
        start: Collectives of the start of the run.
        step: Collectives of one step.
        saved: Collectives of one checkpoint of what is not sharded.
        milliseconds: Of a step without waiting, for each round.
        start_seconds: Of the start without waiting.
    """

    ranks: int
    join: int = 0
    keys: int = 0
    start: list[Call] = field(default_factory=list)
    step: list[Call] = field(default_factory=list)
    saved: list[Call] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    start_seconds: float = 0.0


def joined(ranks: int) -> Store:
    """Return the store after the last rank has joined a rendezvous on two nodes or more."""
    store = Store()
    with ExitStack() as stack:
        for name, value in {
            "_master_address": lambda _: ("node-0", 29500),
            "_store": lambda *_: store,
            "choose_interface": lambda hosts: next(iter(hosts)),
            "is_one_node": lambda _: False,
        }.items():
            stack.enter_context(mock.patch.object(rendezvous, name, value))
        rendezvous.join_rendezvous(ranks - 1, ranks, 300.0)
    return store


def run_rank(ranks: int, rounds: int) -> OfRank:
    """Run the code of one rank: join, create a trainer, train, and collect a checkpoint.

    Args:
        ranks: World size; the others are simulated.
        rounds: Number of times that steps are timed.
    """
    from composer.checkpoint.save import collect

    found = OfRank(ranks)
    store = joined(ranks)
    found.join, found.keys = store.requests.total(), store.keys
    samples = torch.utils.data.TensorDataset(torch.zeros(DATASET, 1).expand(-1, 32), torch.zeros(DATASET, 1))
    data = torch.utils.data.DataLoader(samples, batch_size=4, shuffle=True)
    with simulated_ranks(ranks), recorded() as calls:
        begin = time.perf_counter()
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(
            model=model,
            train_dataloader=data,
            optimizers=optimizer,
            device="cpu",
            progress_bar=False,
            max_duration="1ba",
        )
        trainer.fit()
        found.start_seconds, found.start = time.perf_counter() - begin, calls.copy()
        counted: list[list[Call]] = []
        for _ in range(rounds):
            seconds: list[float] = []
            counted.clear()
            for steps in (FEW, MANY):
                calls.clear()
                begin = time.perf_counter()
                trainer.fit(duration=f"{steps}ba")
                seconds.append(time.perf_counter() - begin)
                counted.append(calls.copy())
            found.milliseconds.append((seconds[1] - seconds[0]) / (MANY - FEW) * 1e3)
        found.step = per_step(*counted)
        calls.clear()
        collect(trainer.state, metrics=True)
        found.saved = calls.copy()
        trainer.close()
    return found


def per_step(few: list[Call], many: list[Call]) -> list[Call]:
    """Return the collectives of a step, from those of two fits; the epochs that the longer one ends are left out.

    Args:
        few: Of the shorter fit.
        many: Of the longer fit.
    """
    more = Counter(many)
    more.subtract(Counter(few))
    return [call for call, count in more.items() for _ in range(round(count / (MANY - FEW)))]


def plan_seconds(shards: int, replicas: int, *, each_writes_all: bool = False) -> tuple[float, int]:
    """Return the time in which rank 0 makes the plan of a sharded checkpoint, and the number of its entries.

    Args:
        shards: Number of shards of each tensor.
        replicas: Number of ranks that have the same shard.
        each_writes_all: Whether each replica plans all of its shards, which the plan then drops again.
    """
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

    properties, size = TensorProperties(dtype=torch.float32), torch.Size((4 * shards, 32))

    def item(tensor: int, shard: int) -> WriteItem:
        chunk = ChunkStorageMetadata(torch.Size((4 * shard, 0)), torch.Size((4, 32)))
        index = MetadataIndex(f"state.model.{tensor}", chunk.offsets)
        return WriteItem(index, WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, properties, size))

    plans = [
        SavePlan(
            [item(tensor, shard) for tensor in range(NUM_TENSORS) if each_writes_all or tensor % replicas == replica]
        )
        for replica in range(replicas)
        for shard in range(shards)
    ]
    planner = DefaultSavePlanner(flatten_state_dict=False)
    planner.set_up_planner({}, is_coordinator=True)
    begin = time.perf_counter()
    planner.create_global_plan(plans)
    return time.perf_counter() - begin, sum(len(plan.items) for plan in plans)


def order_seconds(ranks: int, batches: int = 50) -> float:
    """Return the time in which the last rank computes the indices of a batch, in the middle of an epoch.

    Args:
        ranks: World size.
        batches: Number of batches that are timed.
    """
    loader: Any = torch.utils.data.DataLoader(range(DATASET), batch_size=4, shuffle=True)  # type: ignore[arg-type]
    order = SampleOrder(loader, DataShard(ranks - 1, ranks))
    order.start = order.step * (DATASET // order.step // 2)
    begin = time.perf_counter()
    taken = 0
    for _, _ in zip(range(batches), order, strict=False):
        taken += 1
    return (time.perf_counter() - begin) / max(taken, 1)


def measure(ranks: tuple[int, ...] = RANKS, rounds: int = 5, network: Network | None = None) -> Report:
    """Run the code of one rank of each number of ranks.

    Args:
        ranks: The world sizes, ascending.
        rounds: Number of times that steps are timed.
        network: The model of the network.
    """
    network = network or Network()
    rows: list[list[Any]] = []
    samples: dict[str, Any] = {"network": vars(network) if hasattr(network, "__dict__") else str(network)}
    found = [run_rank(size, rounds) for size in ranks]
    for of in found:
        reductions = [call for call in of.step if call.name == "all_reduce"]
        one_ring = network.seconds(Call("all_reduce", of.ranks, of.ranks * 7 * 8)) if of.ranks > 1 else 0.0
        plan, entries = plan_seconds(of.ranks, 1)
        rows.append(
            [
                f"{of.ranks:,} ranks",
                len(of.step),
                sum(call.nbytes for call in reductions[:1]),
                num_messages(of.ranks),
                sum(map(network.seconds, reductions)) * 1e3,
                one_ring * 1e3,
                statistics.median(of.milliseconds),
                spread(of.milliseconds),
                of.join,
                of.ranks * of.join * network.request,
                sum(map(network.seconds, of.start)),
                of.start_seconds,
                sum(map(network.seconds, of.saved)),
                plan,
                entries,
                order_seconds(of.ranks) * 1e6,
            ]
        )
        samples[str(of.ranks)] = {"ms a step": of.milliseconds, "collectives": _counted(of)}
    return Report(
        "many_ranks",
        "One rank of many",
        _COLUMNS,
        rows,
        _goals(rows, found),
        _notes(network, ranks),
        samples,
        environment.describe(),
    )


_COLUMNS = [
    "",
    "collectives a step",
    "bytes",
    "messages in turn",
    "ms, model",
    "ms, one ring of a row per rank, model",
    "ms a step, measured",
    "spread",
    "requests to join",
    "s to join all, model",
    "s of collectives at start, model",
    "s at start, measured",
    "s of values in a checkpoint, model",
    "s to plan a checkpoint, measured",
    "entries",
    "us to a batch of indices, measured",
]


def _counted(of: OfRank) -> dict[str, dict[str, int]]:
    """Return how often each collective is called, with its size, at the start, in a step and for a checkpoint."""
    return {
        when: {
            f"{call.name} of {call.ranks} ranks, {call.nbytes} bytes": count for call, count in Counter(calls).items()
        }
        for when, calls in (("start", of.start), ("step", of.step), ("checkpoint", of.saved))
    }


def _goals(rows: list[list[Any]], found: list[OfRank]) -> list[Goal]:
    least, most = rows[0], rows[-1]
    largest = found[-1].ranks
    replicated, _ = plan_seconds(max(largest // 256, 1), min(256, largest))
    everywhere, _ = plan_seconds(max(largest // 256, 1), min(256, largest), each_writes_all=True)
    return [
        Goal(f"bytes of the per-step all-reduce, {largest:,} ranks over {found[0].ranks}", most[2] / least[2], 1, "x"),
        Goal(f"per-step all-reduce of {largest:,} ranks, by the model", most[4], 5.0, "ms"),
        Goal(f"time of a step without waiting, {largest:,} ranks over {found[0].ranks}", most[6] / least[6], 1.25, "x"),
        Goal(f"requests of a rank to join, {largest:,} ranks over {found[0].ranks}", most[8] / least[8], 1.0, "x"),
        Goal(
            f"plan of {largest:,} ranks with 256 replicas, over a plan of all replicas",
            replicated / everywhere,
            0.1,
            "x",
        ),
    ]


def _notes(network: Network, ranks: tuple[int, ...]) -> list[str]:
    grids = ", ".join(f"{size:,} = {' x '.join(map(str, grid_of(size)))}" for size in ranks)
    return [
        f"The model: a message takes {network.latency * 1e6:g} us, a rank sends {network.bandwidth / 1e9:g} GB/s, the "
        f"store takes {network.request * 1e6:g} us for a request. These are assumptions. Collectives take the messages "
        "and bytes of gloo's algorithms: rings for all-reduce and all-gather, trees for broadcast and barrier; objects "
        "of more than 32 ranks go along the axes of the grid.",
        "What is measured is the code of one rank, in one process and one thread, with the other ranks simulated: it "
        f"waits for nobody. A DDP model of {NUM_TENSORS} tensors; steps are timed as fits of {MANY} less {FEW}. "
        "The collectives of gradients are torch's, and not counted.",
        f"The per-step all-reduce sums one vector along the axes of a grid: {grids}.",
        f"A plan is what rank 0 computes from the plans of all ranks for {NUM_TENSORS} tensors, each sharded over all.",
        f"Indices are those of a batch of 4 of {DATASET:,} shuffled samples, from the middle of the epoch.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    report = measure(rounds=parser.parse_args().rounds)
    print(report.text())
    report.write()


if __name__ == "__main__":
    main()
