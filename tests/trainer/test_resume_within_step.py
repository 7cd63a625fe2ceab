"""A checkpoint that is saved within a step resumes at the batch of that step, which does not count yet."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from composer import Callback, Event, State, Trainer
from composer.algorithms import BatchSizeWarmup
from composer.checkpoint import save_checkpoint
from composer.core.epoch_iterators import EpochIterators
from composer.datasets import TensorLoader
from composer.models import ComposerClassifier
from composer.warnings import ComposerWarning
from tests.common import At, weights
from tests.core.test_epoch_iterator import Counting, Loader, OwnLoader, Stream
from tests.ranks import Ranks

SAMPLES, BATCH, CLASSES = 22, 4, 3
STEPS_PER_EPOCH, STEPS = 6, 12  # the last batch of an epoch has two samples
# The first step of the run, one in the middle, the last of an epoch, the first of the second epoch, and the last.
STOPS = (0, 3, 5, 6, 11)


def samples() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(SAMPLES, 4, generator=generator), torch.arange(SAMPLES) % CLASSES)


class Streamed(IterableDataset[Any]):
    def __iter__(self):
        data = samples()
        yield from (data[index] for index in range(SAMPLES))


class CountingStream(Streamed):
    """Its state is requested with the number of samples, as that of streaming datasets."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self):
        data = samples()
        first, self.place = self.place, 0
        yield from (data[index] for index in range(first, SAMPLES))

    def state_dict(self, num_samples: int, from_beginning: bool) -> Any:
        return {"place": num_samples}

    def load_state_dict(self, state: Any) -> None:
        self.place = state["place"]


class StatefulLoader:
    """Its state is the position after the last batch it yielded."""

    def __init__(self) -> None:
        self.place = 0

    def __len__(self) -> int:
        return STEPS_PER_EPOCH

    def __iter__(self):
        batches = list(DataLoader(samples(), BATCH))
        self.place %= len(batches)
        while self.place < len(batches):
            self.place += 1
            yield batches[self.place - 1]

    def state_dict(self) -> Any:
        return {"place": self.place}

    def load_state_dict(self, state: Any) -> None:
        self.place = state["place"]


LOADERS: dict[str, Any] = {
    "shuffled": lambda: DataLoader(samples(), BATCH, shuffle=True),
    "own generator": lambda: DataLoader(samples(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(5)),
    "weighted": lambda: DataLoader(samples(), BATCH, sampler=WeightedRandomSampler(list(range(1, 23)), SAMPLES)),
    "worker": lambda: DataLoader(samples(), BATCH, shuffle=True, num_workers=1),
    "iterable": lambda: DataLoader(Streamed(), BATCH),
    "own class, shuffled": lambda: OwnLoader(samples(), BATCH, shuffle=True),
    "counts samples": lambda: DataLoader(CountingStream(), BATCH),
    "tensors on the device": lambda: TensorLoader(samples().tensors, BATCH, device="cpu"),
}


class SaveIn(Callback):
    """Saves a checkpoint at an event of every step, or of one."""

    def __init__(self, event: str, folder: Path, step: int | None = None) -> None:
        self.event, self.folder, self.step = Event(event), folder, step

    def run_event(self, event: Event, state: State, logger: Any) -> None:
        if event is self.event and self.step in (None, state.timestamp.batch.value):
            save_checkpoint(state, self.folder / "{batch}.pt")


def train(loader: Any, *callbacks: Callback, **arguments: Any) -> tuple[Trainer, list[Any]]:
    """Train a model without random numbers; return the trainer, and the samples of each step."""
    torch.manual_seed(1)
    model = ComposerClassifier(nn.Linear(4, CLASSES), num_classes=CLASSES)
    seen = At("before_forward", lambda state: state.batch[0][:, 0].tolist())
    options: dict[str, Any] = {"max_duration": f"{STEPS}ba", **arguments}
    trainer = Trainer(
        model=model,
        train_dataloader=loader,
        optimizers=torch.optim.Adam(model.parameters(), lr=0.1),
        callbacks=[seen, *callbacks],
        progress_bar=False,
        seed=3,
        **options,
    )
    trainer.fit()
    return trainer, seen.found


@pytest.fixture(autouse=True)
def _expected_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="composer")


@pytest.mark.parametrize("event", ["after_dataloader", "batch_start", "before_forward", "after_train_batch"])
def test_every_event_of_a_step(event: str, tmp_path: Path) -> None:
    straight, seen = train(LOADERS["shuffled"](), SaveIn(event, tmp_path))
    for stop in STOPS:
        resumed, rest = train(LOADERS["shuffled"](), load_path=str(tmp_path / f"{stop}.pt"))
        assert rest == seen[stop:]
        assert torch.equal(weights(resumed), weights(straight))


@pytest.mark.parametrize("name", LOADERS)
def test_every_kind_of_loader(name: str, tmp_path: Path) -> None:
    straight, seen = train(LOADERS[name](), SaveIn("batch_start", tmp_path))
    for stop in STOPS:
        resumed, rest = train(LOADERS[name](), load_path=str(tmp_path / f"{stop}.pt"))
        assert rest == seen[stop:], stop
        assert torch.equal(weights(resumed), weights(straight))


@pytest.mark.parametrize("name", ["shuffled", "iterable", "tensors on the device"])
def test_steps_of_several_batches(name: str, tmp_path: Path) -> None:
    def warmup() -> BatchSizeWarmup:
        return BatchSizeWarmup({"2ba": 2, "4ba": 3})

    duration = {"max_duration": "3ep"}
    straight, seen = train(LOADERS[name](), SaveIn("after_loss", tmp_path), algorithms=warmup(), **duration)
    assert max(map(len, seen)) > 2 * BATCH
    for stop in range(len(seen)):
        resumed, rest = train(LOADERS[name](), algorithms=warmup(), load_path=str(tmp_path / f"{stop}.pt"), **duration)
        assert rest == seen[stop:], stop
        assert torch.equal(weights(resumed), weights(straight))


def test_repeated_batches(tmp_path: Path) -> None:
    arguments = {"overfit_batches": 3}
    _, seen = train(LOADERS["shuffled"](), SaveIn("batch_start", tmp_path), **arguments)
    _, rest = train(LOADERS["shuffled"](), load_path=str(tmp_path / "4.pt"), **arguments)
    assert rest == seen[4:]


def test_a_state_without_an_earlier_position_warns(tmp_path: Path) -> None:
    with pytest.warns(ComposerWarning, match=r"within step 3,.* of StatefulLoader .* leaves that batch out. Save at"):
        _, seen = train(StatefulLoader(), SaveIn("batch_start", tmp_path, 3))
    with pytest.warns(ComposerWarning, match="within step 6,.* begins this epoch with new data"):
        train(StatefulLoader(), SaveIn("batch_start", tmp_path, 6))
    _, rest = train(StatefulLoader(), load_path=str(tmp_path / "3.pt"), max_duration="5ba")
    assert rest == seen[4:6]  # as the warning says


def test_no_warning_outside_of_steps_and_at_the_first_batch(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ComposerWarning)
        train(StatefulLoader(), SaveIn("before_dataloader", tmp_path), SaveIn("batch_end", tmp_path))
        train(StatefulLoader(), SaveIn("batch_start", tmp_path), max_duration="1ba")


def test_after_an_exception_in_a_step(tmp_path: Path) -> None:
    def fail(state: State) -> None:
        if state.timestamp.batch == 3 and not failed:
            failed.append(True)
            raise RuntimeError("once")

    failed: list[bool] = []
    torch.manual_seed(1)
    model = ComposerClassifier(nn.Linear(4, CLASSES), num_classes=CLASSES)
    trainer = Trainer(
        model=model,
        train_dataloader=LOADERS["shuffled"](),
        optimizers=torch.optim.Adam(model.parameters(), lr=0.1),
        callbacks=At("before_forward", fail),
        progress_bar=False,
        max_duration=f"{STEPS}ba",
        seed=3,
    )
    with pytest.raises(RuntimeError, match="once"):
        trainer.fit()
    trainer.save_checkpoint(tmp_path / "failed.pt")
    _, seen = train(LOADERS["shuffled"]())
    _, rest = train(LOADERS["shuffled"](), load_path=str(tmp_path / "failed.pt"))
    assert rest == seen[3:]


@pytest.mark.parametrize("make", [lambda: DataLoader(Counting(), None), lambda: DataLoader(Stream(), None), Loader])
def test_end_of_data_of_unknown_length(make: Any) -> None:
    running = EpochIterators(make(), seed=0).begin(epoch=0)
    batches = list(iter(running.__next__, 4))  # all but the last, which is taken, too
    position = running.state_dict(len(batches), uncounted=1, sized=False)
    later = EpochIterators(make(), seed=0).begin(epoch=0, batch=len(batches), saved=position)
    assert list(later) == ([4] if running.can_step_back else [])


def _of_a_rank(kind: str, folder: str) -> list[tuple[list[Any], list[Any]]]:
    def make() -> Any:
        if kind == "tensors":
            return TensorLoader(samples().tensors, 2)
        return DataLoader(Streamed(), 2) if kind == "iterable" else DataLoader(samples(), 2, shuffle=True)

    _, seen = train(make(), SaveIn("batch_start", Path(folder)), device="cpu")
    found: list[tuple[list[Any], list[Any]]] = []
    for stop in (3, 6, 11):
        _, rest = train(make(), load_path=f"{folder}/{stop}.pt", device="cpu")
        found.append((rest, seen[stop:]))
    return found


@pytest.mark.parametrize("kind", ["shuffled", "iterable", "tensors"])
def test_two_ranks(kind: str, tmp_path: Path, two_ranks: Ranks) -> None:
    for of_rank in two_ranks.run(_of_a_rank, kind, str(tmp_path)):
        for rest, expected in of_rank:
            assert rest == expected
