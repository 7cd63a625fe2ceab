"""Runs resume on data that use the random generators of the process."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from composer import dist
from tests.common import Regression, trainer_of, weights
from tests.ranks import Ranks

NUM_SAMPLES, SIZE = 8, 2


def sample(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x, x.sum(-1, keepdim=True)


class EachTime(Dataset):
    """Each access draws again, as augmentations do."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int):
        return sample(torch.rand(4) + random.random() + float(np.random.rand()))


class AtFirst(EachTime):
    """The first access draws all values, which are kept."""

    def __init__(self) -> None:
        self.x: torch.Tensor | None = None
        self.times = 0

    def __getitem__(self, index: int):
        if self.x is None:
            self.x = torch.randn(NUM_SAMPLES, 4)
            self.times += 1
        return sample(self.x[index])


class WithState(AtFirst):
    """Keeps a state too, which is none of the data."""

    def state_dict(self) -> dict[str, Any]:
        return {"times": self.times}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.times = state["times"]


class StreamAtFirst(IterableDataset):
    def __init__(self) -> None:
        self.x: torch.Tensor | None = None

    def __iter__(self):
        if self.x is None:
            self.x = torch.randn(NUM_SAMPLES, 4)
        yield from map(sample, self.x)


class Batches:
    """No loader of torch's."""

    def __init__(self) -> None:
        self.x: torch.Tensor | None = None

    def __iter__(self):
        if self.x is None:
            self.x = torch.randn(NUM_SAMPLES // SIZE, SIZE, 4)
        yield from map(sample, self.x)


DATA = {
    "each time": lambda: DataLoader(EachTime(), SIZE, shuffle=True),
    "at first": lambda: DataLoader(AtFirst(), SIZE),
    "at first, shuffled": lambda: DataLoader(AtFirst(), SIZE, shuffle=True),
    "with a state": lambda: DataLoader(WithState(), SIZE, shuffle=True),
    "stream": lambda: DataLoader(StreamAtFirst(), SIZE),
    "batches": Batches,
}


class Drops(Regression):
    """Draws in each step, so that the generators have to be where they were."""

    def forward(self, batch):
        return self.linear(nn.functional.dropout(batch[0], 0.3, self.training))


def made(data: str, **more: Any):
    torch.manual_seed(0)
    model = Drops(metrics="eval_dataloader" in more)
    return trainer_of(model, DATA[data](), seed=3, max_duration="3ep", **more)


@pytest.mark.parametrize("data", DATA)
def test_resumed_bit_for_bit(data: str, tmp_path: Path) -> None:
    straight = made(data)
    straight.fit()
    for stop in ("1ba", "3ba", "4ba", "6ba", "8ba"):
        path = str(tmp_path / f"{stop}.pt")
        stopped = made(data)
        stopped.fit(duration=stop)
        stopped.save_checkpoint(path)
        resumed = made(data, load_path=path)
        resumed.fit()
        assert torch.equal(weights(straight), weights(resumed)), stop


def test_resumed_twice(tmp_path: Path) -> None:
    """What was noted before the first checkpoint is in the second, saved by a process that noted nothing itself."""
    straight = made("at first, shuffled")
    straight.fit()
    path = None
    for step in range(3):
        run = made("at first, shuffled", load_path=path)
        run.fit(duration="3ba")
        path = str(tmp_path / f"{step}.pt")
        run.save_checkpoint(path)
    last = made("at first, shuffled", load_path=path)
    last.fit()
    assert torch.equal(weights(straight), weights(last))


def test_saved_before_it_continues(tmp_path: Path) -> None:
    stopped = made("at first")
    stopped.fit(duration="3ba")
    stopped.save_checkpoint(str(tmp_path / "a.pt"))
    made("at first", load_path=str(tmp_path / "a.pt")).save_checkpoint(str(tmp_path / "b.pt"))
    found = [
        torch.load(tmp_path / name, weights_only=True)["state"]["dataset_state"]["first_draws"][0]["train"]["train"]
        for name in ("a.pt", "b.pt")
    ]
    assert torch.equal(found[0]["torch"], found[1]["torch"])


@pytest.mark.parametrize("data", ["each time", "at first, shuffled", "stream", "batches"])
def test_evaluation_data_are_unchanged(data: str, tmp_path: Path) -> None:
    def evaluated(**more: Any):
        return made("at first", eval_dataloader=DATA[data](), eval_interval="2ba", **more)

    straight = evaluated()
    straight.fit()
    stopped = evaluated()
    stopped.fit(duration="5ba")
    stopped.save_checkpoint(str(tmp_path / "a.pt"))
    resumed = evaluated(load_path=str(tmp_path / "a.pt"))
    resumed.fit()
    assert torch.equal(weights(straight), weights(resumed))
    found = [run.state.eval_metrics["eval"]["MeanSquaredError"].compute() for run in (straight, resumed)]
    assert found[0] == found[1]


def test_data_without_random_state_are_unchanged(tmp_path: Path) -> None:
    class Counts(EachTime):
        touched = 0

        def __getitem__(self, index: int):
            Counts.touched += 1
            return sample(torch.full((4,), float(index)))

    def fitted(**more: Any):
        trainer = trainer_of(data=DataLoader(Counts(), SIZE), max_duration="2ep", **more)
        trainer.fit(duration=more.get("duration", "1ep"))
        return trainer

    path = str(tmp_path / "a.pt")
    fitted().save_checkpoint(path)
    Counts.touched = 0
    fitted(load_path=path)
    assert Counts.touched == NUM_SAMPLES


def test_new_data_are_tracked_again() -> None:
    trainer = made("at first")
    trainer.fit(duration="1ba")
    first = trainer.state.train_phase.first_batch_rng["train"].state
    assert first is not None
    trainer.fit(train_dataloader=DATA["stream"](), duration="1ba")
    second = trainer.state.train_phase.first_batch_rng["train"].state
    assert second is not None
    assert not torch.equal(first["torch"], second["torch"])
    trainer.fit(train_dataloader=[sample(torch.ones(2, 4))], duration="1ba")
    assert trainer.state.train_phase.first_batch_rng["train"].state is None


def in_ranks(folder: str):
    arguments: dict[str, Any] = {"eval_dataloader": DATA["at first"](), "eval_interval": "2ba"}
    straight = made("at first, shuffled", **arguments)
    straight.fit()
    stopped = made("at first, shuffled", **arguments)
    stopped.fit(duration="3ba")
    path = str(Path(folder) / "ranks.pt")
    stopped.save_checkpoint(path)
    dist.barrier()
    resumed = made("at first, shuffled", load_path=path, **arguments)
    resumed.fit()
    return torch.equal(weights(straight), weights(resumed))


def test_two_ranks(two_ranks: Ranks, tmp_path: Path) -> None:
    assert two_ranks.run(in_ranks, str(tmp_path)) == [True, True]
