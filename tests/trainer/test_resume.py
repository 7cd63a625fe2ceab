"""Resuming in another process gives the same weights, bit for bit."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from composer import Trainer
from composer.algorithms import EMA, SAM, SWA, GradientClipping, LabelSmoothing, MixUp, SelectiveBackprop
from composer.optim import CosineAnnealingScheduler
from tests.common import At, weights
from tests.trainer.resuming import BATCH, CLASSES, SAMPLES, STEPS, Augmented, build, shuffled


class Stream(IterableDataset[Any]):
    """Has no indices; draws numbers."""

    def __iter__(self):
        data = Augmented()
        yield from (data[index] for index in range(SAMPLES))


class Remembering(IterableDataset[Any]):
    """Keeps its own place."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self):
        data = Augmented()
        while self.place < SAMPLES:
            self.place += 1
            yield data[self.place - 1]
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class RememberingLoader:
    """Keeps its place as torchdata's loader does."""

    def __init__(self) -> None:
        self.place = 0

    def __len__(self) -> int:
        return math.ceil(SAMPLES / BATCH)

    def __iter__(self):
        data = Augmented()
        batches = [list(range(start, min(start + BATCH, SAMPLES))) for start in range(0, SAMPLES, BATCH)]
        self.place %= len(batches)  # no one asks for more batches than there are
        while self.place < len(batches):
            self.place += 1
            yield torch.utils.data.default_collate([data[index] for index in batches[self.place - 1]])

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Plain:
    """No more than an iterable, in another order each time."""

    def __iter__(self):
        data = Augmented()
        order = torch.randperm(SAMPLES).tolist()
        for start in range(0, SAMPLES, BATCH):
            yield torch.utils.data.default_collate([data[index] for index in order[start : start + BATCH]])


def _weighted() -> DataLoader[Any]:
    sampler = WeightedRandomSampler(torch.arange(1, SAMPLES + 1).tolist(), SAMPLES)
    return DataLoader(Augmented(), BATCH, sampler=sampler)


LOADERS: dict[str, Any] = {
    "shuffled": shuffled,
    "own generator": lambda: DataLoader(
        Augmented(), BATCH, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(5)
    ),
    "in order": lambda: DataLoader(Augmented(), BATCH),
    "weighted": _weighted,
    "workers": lambda: shuffled(num_workers=2),
    "persistent workers": lambda: DataLoader(Augmented(), BATCH, shuffle=True, num_workers=2, persistent_workers=True),
    "stream": lambda: DataLoader(Stream(), BATCH),
    "stream with a worker": lambda: DataLoader(Stream(), BATCH, num_workers=1),
    "data set with a place": lambda: DataLoader(Remembering(), BATCH),
    "loader with a place": RememberingLoader,
    "plain iterable": Plain,
}


@pytest.fixture(autouse=True)
def _expected_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="composer")


def compare(make: Any, folder: Path, stops: Any, **arguments: Any) -> None:
    """Train straight on, saving after each batch and epoch; then resume from each of these, and compare."""
    straight = build(make(), save_folder=str(folder), save_interval=lambda state, event: True, **arguments)
    losses = At("batch_end", lambda state: state.total_loss_dict["loss/train/total"].item())
    straight.state.callbacks.append(losses)
    straight.fit()
    expected = weights(straight)
    end = straight.state.timestamp
    straight.close()
    files = {int(path.name.split("-")[1][2:]): path for path in folder.glob("ep*.pt")}
    assert len(files) == STEPS
    for batch in stops:
        resumed = build(make(), load_path=str(files[batch]), **arguments)
        assert int(resumed.state.timestamp.batch) == batch
        seen = At("batch_end", lambda state: state.total_loss_dict["loss/train/total"].item())
        resumed.state.callbacks.append(seen)
        resumed.fit()
        assert seen.found == losses.found[batch:]
        assert torch.equal(weights(resumed), expected)
        counters = ("epoch", "batch", "sample", "batch_in_epoch", "sample_in_epoch")
        assert all(getattr(resumed.state.timestamp, name) == getattr(end, name) for name in counters)
        resumed.close()


@pytest.mark.parametrize("kind", LOADERS)
def test_ResumeAnywhere_for_every_type_of_data(kind, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RESUME_SEED", "1")
    stops = range(1, STEPS) if "worker" not in kind else (1, 5, 6, 9)
    compare(LOADERS[kind], tmp_path, stops)


ALGORITHMS: dict[str, Any] = {
    "EMA": lambda: [EMA(half_life="3ba")],
    "SWA": lambda: [SWA(swa_start="0.3dur", swa_end="0.9dur", update_interval="1ba")],
    "SAM": lambda: [SAM(rho=0.05, interval=2, reuse=0.5)],
    "many": lambda: [MixUp(0.2), LabelSmoothing(0.1), GradientClipping("norm", 0.1), EMA(half_life="3ba")],
    "selective": lambda: [SelectiveBackprop(start=0.2, end=0.9, keep=0.5, scale_factor=1.0, interrupt=2)],
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_ResumeAnywhere_for_algorithms_with_state(name, tmp_path) -> None:
    folder = tmp_path / "straight"
    make = ALGORITHMS[name]
    straight = build(shuffled(), save_folder=str(folder), save_interval="1ba", algorithms=make())
    straight.fit()
    expected = weights(straight)
    for path in sorted(folder.glob("ep*.pt")):
        if "-ba12-" in path.name:
            continue
        resumed = build(shuffled(), load_path=str(path), algorithms=make())
        resumed.fit()
        assert torch.equal(weights(resumed), expected), path.name
        assert _same(resumed.state.algorithms, straight.state.algorithms), path.name


def _same(one: Any, other: Any) -> bool:
    left, right = ([{**algorithm.state_dict(), "repr": 0} for algorithm in several] for several in (one, other))
    torch.testing.assert_close(left, right, rtol=0, atol=0)
    return True


@pytest.mark.parametrize("unit", ["2ep", "12ba", "44sp"])
def test_resumed_run_matches_uninterrupted_run(unit, tmp_path) -> None:
    data = DataLoader(TensorDataset(torch.randn(SAMPLES, 4), torch.arange(SAMPLES) % CLASSES), BATCH)
    arguments: dict[str, Any] = {"max_duration": unit, "schedulers": CosineAnnealingScheduler()}
    arguments |= {"eval_dataloader": data, "eval_interval": "3ba"}
    straight = build(shuffled(), save_folder=str(tmp_path), save_interval="5ba", **arguments)
    straight.fit()
    resumed = build(shuffled(), load_path=str(tmp_path / "ep0-ba5-rank0.pt"), **arguments)
    resumed.fit()
    assert torch.equal(weights(resumed), weights(straight))
    accuracies = [trainer.state.eval_metrics["eval"]["MulticlassAccuracy"].compute() for trainer in (straight, resumed)]
    assert accuracies[0] == accuracies[1]


def test_training_is_independent_of_evaluation_interval() -> None:
    data = DataLoader(Augmented(), BATCH, shuffle=True)
    ends = []
    for interval in ("1ba", "6ba"):
        trainer = build(shuffled(), eval_dataloader=data, eval_interval=interval)
        trainer.fit()
        ends.append(weights(trainer))
    assert torch.equal(*ends)


def test_ResumeCost_does_not_grow_with_the_data(tmp_path) -> None:
    """No more samples are fetched than are trained on, out of ten million at nine tenths."""

    class Numbers(Dataset[Any]):
        fetched: list[int] = []

        def __len__(self):
            return 10_000_000

        def __getitem__(self, index):
            self.fetched.append(index)
            return torch.full((4,), index / 1e7), index % CLASSES

    def make(**arguments: Any) -> Trainer:
        return build(DataLoader(Numbers(), 1000, shuffle=True), schedulers=None, **arguments)

    trainer = make(max_duration="1ba", save_folder=str(tmp_path))
    trainer.fit()
    state = trainer.state
    done = 9000
    counts = {"batch": done, "batch_in_epoch": done, "sample": done * 1000, "sample_in_epoch": done * 1000}
    state.timestamp = state.timestamp.copy(**counts)
    path = trainer.save_checkpoint(str(tmp_path / "nine_tenths.pt"))
    Numbers.fetched.clear()
    resumed = make(load_path=path, max_duration=f"{done + 1}ba")
    begin = time.perf_counter()
    resumed.fit()
    assert len(Numbers.fetched) == 1000
    assert len(set(Numbers.fetched)) == 1000
    assert time.perf_counter() - begin < 30  # seconds; drawing nine million samples would take minutes
