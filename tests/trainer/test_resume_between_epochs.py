"""Data with a state of its own goes on from one epoch to the next, in the same process and in a resumed run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from composer import Callback, Trainer
from composer.datasets import DevicePrefetcher, Mixture
from composer.models import ComposerClassifier
from tests import common
from tests.common import At, weights
from tests.trainer.test_resume_within_step import SaveIn

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata

BATCH, CLASSES = 2, 3
EPOCH, STEPS = 3, 12  # batches


class Onward(common.Onward):
    """Its batches have labels."""

    def batch(self, number: int) -> Any:
        return torch.full((BATCH, 4), number / STEPS), torch.full((BATCH,), number % CLASSES)


class Sized(Onward):
    def __len__(self) -> int:
        return EPOCH


class Drawn(IterableDataset[Any]):
    """Draws its samples when they are read, and values that it does not use before the first."""

    def __iter__(self) -> Iterator[Any]:
        torch.randperm(EPOCH)
        for number in range(EPOCH * BATCH):
            yield torch.randn(4), torch.tensor(number % CLASSES)


class DrawnBatches:
    def __iter__(self) -> Iterator[Any]:
        for _ in range(EPOCH):
            yield torch.randn(BATCH, 4), torch.arange(BATCH) % CLASSES


def samples(number: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(number)
    return TensorDataset(torch.randn(number, 4, generator=generator), torch.arange(number) % CLASSES)


def mixture() -> Mixture:
    sources = {str(number): (DataLoader(samples(number), BATCH, shuffle=True), 0.5) for number in (17, 22)}
    return Mixture(sources, epoch_length=EPOCH)


def torchdata() -> Any:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    torch.manual_seed(0)  # its sampler draws a seed when it is created
    return loaders.StatefulDataLoader(samples(EPOCH * BATCH), BATCH, shuffle=True)


DATA: dict[str, Callable[[], Any]] = {
    "sized": Sized,
    "without a length": Onward,
    "mixture": mixture,
    "torchdata": torchdata,
    "prefetched, sized": lambda: DevicePrefetcher(Sized(), "cpu"),
    "prefetched, without a length": lambda: DevicePrefetcher(Onward(), "cpu"),
    "prefetched mixture": lambda: DevicePrefetcher(mixture(), "cpu"),
    "prefetched torchdata": lambda: DevicePrefetcher(torchdata(), "cpu"),
}
SIZED = [name for name in DATA if "without a length" not in name]  # of which a fit in batches ends epochs


def trainer_on(data: Any, *callbacks: Callback, **arguments: Any) -> tuple[Trainer, list[Any]]:
    """A run with dropout, and the list of the samples of its steps."""
    torch.manual_seed(1)
    model = ComposerClassifier(nn.Sequential(nn.Dropout(0.3), nn.Linear(4, CLASSES)), num_classes=CLASSES)
    seen = At("before_forward", lambda state: state.batch[0].tolist())
    trainer = Trainer(
        model=model,
        train_dataloader=data,
        optimizers=torch.optim.Adam(model.parameters(), lr=0.1),
        callbacks=[seen, *callbacks],
        progress_bar=False,
        seed=3,
        **{"max_duration": f"{STEPS}ba", **arguments},
    )
    return trainer, seen.found


def whole_run(name: str, *callbacks: Callback) -> tuple[list[Any], torch.Tensor]:
    """The samples of each step, and the weights at the end."""
    trainer, seen = trainer_on(DATA[name](), *callbacks)
    trainer.fit()
    assert len(seen) == STEPS
    return list(seen), weights(trainer)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("duration", ["3ba", "6ba", "12sp", "2ep"])
def test_a_fit_that_ends_with_an_epoch(name: str, duration: str, tmp_path: Path) -> None:
    seen, expected = whole_run(name)
    first, found = trainer_on(DATA[name](), max_duration=duration)
    first.fit()
    done = len(found)
    first.save_checkpoint(tmp_path / "after.pt")
    first.fit(duration=f"{STEPS - done}ba")
    assert found == seen
    assert torch.equal(weights(first), expected)
    resumed, rest = trainer_on(DATA[name](), load_path=str(tmp_path / "after.pt"))
    resumed.fit()
    assert rest == seen[done:]
    assert torch.equal(weights(resumed), expected)


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("event", ["epoch_end", "epoch_checkpoint", "fit_end"])
def test_saved_at_the_end_of_a_fit(name: str, event: str, tmp_path: Path) -> None:
    seen, expected = whole_run(name)
    first, _ = trainer_on(DATA[name](), SaveIn(event, tmp_path), max_duration="6ba")
    first.fit()
    resumed, rest = trainer_on(DATA[name](), load_path=str(tmp_path / "6.pt"))
    resumed.fit()
    assert rest == seen[6:]
    assert torch.equal(weights(resumed), expected)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("event", ["epoch_checkpoint", "epoch_start", "before_dataloader"])
def test_saved_again_before_the_next_epoch(name: str, event: str, tmp_path: Path) -> None:
    """The first checkpoint is saved at EPOCH_END, so that EPOCH_CHECKPOINT follows in the resumed run."""
    seen, expected = whole_run(name, SaveIn("epoch_end", tmp_path, 6))
    (tmp_path / "again").mkdir()
    again = SaveIn(event, tmp_path / "again", 6)
    second, _ = trainer_on(DATA[name](), again, load_path=str(tmp_path / "6.pt"), max_duration="7ba")
    second.fit()
    third, rest = trainer_on(DATA[name](), load_path=str(tmp_path / "again" / "6.pt"))
    third.fit()
    assert rest == seen[6:]
    assert torch.equal(weights(third), expected)


@pytest.mark.parametrize("name", DATA)
def test_saved_before_each_step(name: str, tmp_path: Path) -> None:
    """Also before the first step of an epoch, which has begun."""
    seen, expected = whole_run(name, SaveIn("before_dataloader", tmp_path))
    for stop in range(STEPS):
        resumed, rest = trainer_on(DATA[name](), load_path=str(tmp_path / f"{stop}.pt"))
        resumed.fit()
        assert rest == seen[stop:], stop
        assert torch.equal(weights(resumed), expected), stop


@pytest.mark.parametrize("event", ["before_dataloader", "batch_checkpoint"])
@pytest.mark.parametrize("subset", [2, EPOCH, 5])
@pytest.mark.parametrize("name", ["without a length", "prefetched, without a length"])
def test_epochs_with_a_largest_number_of_batches(name: str, subset: int, event: str, tmp_path: Path) -> None:
    """The data, which has no length, ends before that number of batches or not."""

    def places() -> At:
        return At("batch_end", lambda state: (state.timestamp.epoch.value, state.timestamp.batch_in_epoch.value))

    arguments = {"train_subset_num_batches": subset}
    expected = places()
    whole, seen = trainer_on(DATA[name](), expected, SaveIn(event, tmp_path), **arguments)
    whole.fit()
    assert {epoch for epoch, _ in expected.found} != {0}
    for stop in range(1, STEPS):
        found = places()
        resumed, rest = trainer_on(DATA[name](), found, load_path=str(tmp_path / f"{stop}.pt"), **arguments)
        resumed.fit()
        assert (rest, found.found) == (seen[stop:], expected.found[stop:]), stop
        assert torch.equal(weights(resumed), weights(whole)), stop


@pytest.mark.parametrize("make", [lambda: DataLoader(Drawn(), BATCH), DrawnBatches])
@pytest.mark.parametrize("event", ["epoch_start", "before_dataloader", "after_dataloader", "batch_end"])
def test_data_without_a_state_that_draws_its_values(make: Callable[[], Any], event: str, tmp_path: Path) -> None:
    """Saved before the first batch of an epoch is fetched or after it, and again by the run that resumes there."""
    whole, seen = trainer_on(make(), SaveIn(event, tmp_path))
    whole.fit()
    (tmp_path / "again").mkdir()
    for stop in (EPOCH,) if event == "batch_end" else (0, EPOCH):
        first = tmp_path / f"{stop}.pt"
        again = SaveIn("before_dataloader", tmp_path / "again", stop)
        for path, callbacks in ((first, [again]), (tmp_path / "again" / first.name, [])):
            resumed, rest = trainer_on(make(), *callbacks, load_path=str(path))
            resumed.fit()
            assert rest == seen[stop:], path
            assert torch.equal(weights(resumed), weights(whole)), path


def test_other_data_begins_a_begun_epoch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole_run("sized", SaveIn("before_dataloader", tmp_path))
    resumed, rest = trainer_on(DataLoader(samples(6), BATCH), load_path=str(tmp_path / "6.pt"), max_duration="9ba")
    resumed.fit()
    assert rest == [samples(6)[first : first + BATCH][0].tolist() for first in (0, 2, 4)]
    assert "The training data differs from that of the checkpoint" in caplog.text


class Counted(IterableDataset[Any]):
    """Its samples are the same in every epoch."""

    def __iter__(self) -> Iterator[Any]:
        return iter(samples(EPOCH * BATCH))


@pytest.mark.parametrize("prefetched", [False, True])
def test_persistent_workers_sample_their_seed_once(prefetched: bool, tmp_path: Path) -> None:
    """A run that resumes between epochs starts them, while they go on in another: both draw the same dropout."""

    def data() -> Any:
        loader = DataLoader(Counted(), BATCH, num_workers=1, persistent_workers=True)
        return DevicePrefetcher(loader, "cpu") if prefetched else loader

    whole, seen = trainer_on(data(), SaveIn("epoch_checkpoint", tmp_path))
    whole.fit()
    for stop in (EPOCH, 2 * EPOCH):
        resumed, rest = trainer_on(data(), load_path=str(tmp_path / f"{stop}.pt"))
        resumed.fit()
        assert rest == seen[stop:]
        assert torch.equal(weights(resumed), weights(whole)), stop


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_script_asks_a_torchdata_loader_for_its_state() -> None:
    """It then has an iterator, whose seed is drawn, with which training begins."""
    seen, _ = whole_run("torchdata")
    data = torchdata()
    data.state_dict()
    trainer, found = trainer_on(data)
    trainer.fit()
    assert found == seen
