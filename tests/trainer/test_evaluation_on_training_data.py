"""An evaluation on the training data itself: training goes on where it was, and the evaluation sees all of the data."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from composer import Evaluator, Trainer
from composer.datasets import DevicePrefetcher, Mixture, TensorLoader
from composer.models import ComposerClassifier
from composer.warnings import ComposerWarning
from tests.common import At, weights
from tests.trainer.test_resume_within_step import (
    BATCH,
    CLASSES,
    SAMPLES,
    CountingStream,
    SaveIn,
    StatefulLoader,
    Streamed,
    samples,
)

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata


class PlacedStream(IterableDataset[Any]):
    """Its iterators begin at the place of the dataset, in an order that depends on the epoch."""

    def __init__(self, size: int = SAMPLES) -> None:
        self.place = self.epoch = 0
        self.size = size

    def __iter__(self):
        data = samples()
        while self.place < self.size:
            self.place += 1
            yield data[(self.place * (2 * self.epoch + 3)) % SAMPLES]
        self.place, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> Any:
        return {"place": self.place, "epoch": self.epoch}

    def load_state_dict(self, state: Any) -> None:
        self.place, self.epoch = state["place"], state["epoch"]


class OpenStream(PlacedStream):
    """It cannot be copied."""

    def __init__(self, size: int = SAMPLES) -> None:
        super().__init__(size)
        self.lock = threading.Lock()


class Jittered(Dataset[Any]):
    """With indices, and a generator that is its state."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(5)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, y = samples()[index]
        return x + torch.randn(4, generator=self.generator), y

    def state_dict(self) -> Any:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Any) -> None:
        self.generator.set_state(state["generator"])


class Remembering:
    """Has an attribute that a DataLoader has, too."""

    _iterator: Any = None

    def __iter__(self):
        self._iterator = iter(DataLoader(samples(), BATCH))
        return self._iterator


class CountedStream(CountingStream):
    """The state at the end of an epoch is that at the beginning of the next one."""

    def __iter__(self):
        self.place %= SAMPLES
        return super().__iter__()


def hugging_face(*, shuffle: bool) -> Any:
    datasets = pytest.importorskip("datasets")
    x, y = samples().tensors
    rows = datasets.Dataset.from_dict({"x": x.tolist(), "y": y.tolist()}).to_iterable_dataset(num_shards=2)

    def collate(found: list[Any]) -> Any:
        return torch.tensor([row["x"] for row in found]), torch.tensor([row["y"] for row in found])

    return DataLoader(rows.shuffle(seed=1, buffer_size=8) if shuffle else rows, BATCH, collate_fn=collate)


def words(seed: int) -> Any:
    return TensorLoader(samples().tensors, BATCH, seed=seed, device="cpu")


LOADERS: dict[str, Any] = {
    "map-style": lambda: DataLoader(samples(), BATCH, shuffle=True),
    "map-style, persistent workers": lambda: DataLoader(
        samples(), BATCH, shuffle=True, num_workers=1, persistent_workers=True
    ),
    "stream": lambda: DataLoader(Streamed(), BATCH),
    "stream, workers": lambda: DataLoader(Streamed(), BATCH, num_workers=1),
    "stream, persistent workers": lambda: DataLoader(Streamed(), BATCH, num_workers=2, persistent_workers=True),
    "iterator remembered": Remembering,
    "list": lambda: list(DataLoader(samples(), BATCH)),
    "placed stream": lambda: DataLoader(PlacedStream(), BATCH),
    "placed stream that cannot be copied": lambda: DataLoader(OpenStream(), BATCH),
    "placed stream of full batches that cannot be copied": lambda: DataLoader(OpenStream(6 * BATCH), BATCH),
    "map-style with a state": lambda: DataLoader(Jittered(), BATCH, shuffle=True),
    "stateful, map-style with a state": lambda: StatefulDataLoader(Jittered(), BATCH, shuffle=True),
    "counting stream": lambda: DataLoader(CountedStream(), BATCH),
    "loader with a place": StatefulLoader,
    "tensors": lambda: words(0),
    "stateful, map-style": lambda: StatefulDataLoader(samples(), BATCH, shuffle=True),
    "stateful, worker": lambda: StatefulDataLoader(samples(), BATCH, shuffle=True, num_workers=1),
    "stateful, placed stream": lambda: StatefulDataLoader(PlacedStream(), BATCH),
    "stateful, stream, persistent worker": lambda: StatefulDataLoader(
        Streamed(), BATCH, num_workers=1, persistent_workers=True
    ),
    "mixture": lambda: Mixture([(words(1), 0.5), (DataLoader(Streamed(), BATCH), 0.5)], epoch_length=6),
    "prefetched": lambda: DevicePrefetcher(DataLoader(samples(), BATCH, shuffle=True), device="cpu"),
    "prefetched tensors": lambda: DevicePrefetcher(words(2), device="cpu"),
    "prefetched placed stream": lambda: DevicePrefetcher(DataLoader(PlacedStream(), BATCH), device="cpu"),
    "prefetched placed stream that cannot be copied": lambda: DevicePrefetcher(
        DataLoader(OpenStream(), BATCH), device="cpu"
    ),
    "prefetched map-style with a state": lambda: DevicePrefetcher(
        DataLoader(Jittered(), BATCH, shuffle=True), device="cpu"
    ),
    "prefetched, stateful, map-style": lambda: DevicePrefetcher(
        StatefulDataLoader(samples(), BATCH, shuffle=True), device="cpu"
    ),
    "prefetched, stateful, worker": lambda: DevicePrefetcher(
        StatefulDataLoader(samples(), BATCH, shuffle=True, num_workers=1), device="cpu"
    ),
    "Hugging Face": lambda: hugging_face(shuffle=False),
    "Hugging Face, shuffled": lambda: hugging_face(shuffle=True),
}
# Without workers that share the samples, each yields all of them.
IN_EPOCH = {
    "stream, persistent workers": 2 * SAMPLES,
    "mixture": 6 * BATCH,
    "placed stream of full batches that cannot be copied": 6 * BATCH,
}
DURATION, NUM_EVALUATIONS = "15ba", 8  # an epoch has six batches, and one of two workers twelve


def made(name: str) -> Any:
    torch.manual_seed(0)  # torchdata draws the seed of the order here
    return LOADERS[name]()


def run(loader: Any, *evaluated: Any, interval: Any = "2ba", fit: bool = True, **arguments: Any) -> Any:
    """Train; return the trainer, the samples of each step and the number of samples of each evaluation."""
    torch.manual_seed(1)
    model = ComposerClassifier(nn.Linear(4, CLASSES), num_classes=CLASSES)
    seen = At("batch_start", lambda state: state.batch[0][:, 0].tolist())
    counted = At("eval_end", lambda state: state.eval_phase.timestamp.sample.value)
    evaluators = [
        Evaluator(label=f"eval{number}", dataloader=one, eval_interval=interval) for number, one in enumerate(evaluated)
    ]
    callbacks = arguments.pop("callbacks", [])
    trainer = Trainer(
        model=model,
        train_dataloader=loader,
        eval_dataloader=evaluators or None,
        optimizers=torch.optim.Adam(model.parameters(), lr=0.1),
        callbacks=[seen, counted, *callbacks],
        progress_bar=False,
        seed=3,
        **{"max_duration": DURATION, **arguments},
    )
    if fit:
        trainer.fit()
    return trainer, seen.found, counted.found


@pytest.mark.parametrize("name", LOADERS)
def test_training_sees_the_same_samples(name: str) -> None:
    straight, expected, _ = run(made(name))
    loader = made(name)
    trainer, seen, counted = run(loader, loader, loader)
    assert seen == expected
    assert torch.equal(weights(trainer), weights(straight))
    assert len(counted) == 2 * NUM_EVALUATIONS and set(counted) == {IN_EPOCH.get(name, SAMPLES)}


@pytest.mark.parametrize("name", LOADERS)
def test_between_epochs_and_before_the_first(name: str) -> None:
    straight, expected, _ = run(made(name))
    loader = made(name)
    trainer, seen, _ = run(loader, loader, interval="1ep", fit=False)
    trainer.eval(subset_num_batches=1)
    trainer.fit()
    assert seen == expected
    assert torch.equal(weights(trainer), weights(straight))


# The state of a shuffled stream of Hugging Face leaves out the samples in its buffer.
@pytest.mark.parametrize("name", [name for name in LOADERS if name != "Hugging Face, shuffled"])
def test_a_resumed_run(name: str, tmp_path: Path) -> None:
    straight, expected, _ = run(made(name))
    loader = made(name)
    run(loader, loader, max_duration="9ba", save_folder=str(tmp_path), save_interval="3ba")
    for batch in (3, 6, 9):
        loader = made(name)
        path = next(iter(tmp_path.glob(f"ep*-ba{batch}-rank0.pt")))
        resumed, rest, counted = run(loader, loader, load_path=str(path))
        assert rest == expected[batch:]
        assert set(counted) == {IN_EPOCH.get(name, SAMPLES)}
        assert torch.equal(weights(resumed), weights(straight))


@pytest.mark.parametrize(
    "name",
    ["stream, persistent workers", "placed stream", "counting stream", "tensors", "stateful, map-style", "mixture"],
)
def test_a_checkpoint_of_an_evaluation(name: str, tmp_path: Path) -> None:
    straight, expected, _ = run(made(name))
    loader = made(name)
    run(loader, loader, callbacks=[SaveIn("eval_batch_end", tmp_path)])
    for batch in (2, 4, 6, 8):
        loader = made(name)
        resumed, rest, _ = run(loader, loader, load_path=str(tmp_path / f"{batch}.pt"))
        assert rest == expected[batch:]
        assert torch.equal(weights(resumed), weights(straight))


@pytest.mark.parametrize("name", ["tensors", "loader with a place", "placed stream", "stream, persistent workers"])
def test_between_two_fits(name: str) -> None:
    """Nothing was known of the evaluation when the first began."""
    _, expected, _ = run(made(name))
    loader = made(name)
    trainer, seen, counted = run(loader, fit=False)
    trainer.fit(duration="4ba")
    trainer.eval(Evaluator(label="later", dataloader=loader))
    trainer.fit(duration="11ba")
    assert seen == expected
    if name not in ("loader with a place", "placed stream"):  # where their iterators begin is up to them
        assert counted == [IN_EPOCH.get(name, SAMPLES)]


def test_predictions_on_training_data() -> None:
    _, expected, _ = run(made("tensors"))
    loader = made("tensors")
    trainer, seen, _ = run(loader, fit=False)
    trainer.fit(duration="4ba")
    assert sum(len(output) for output in trainer.predict(loader)) == SAMPLES
    trainer.fit(duration="11ba")
    assert seen == expected


def test_a_part_of_the_training_data() -> None:
    """The loader that is prefetched is evaluated, and other loaders of the same dataset."""
    straight, expected, _ = run(made("prefetched tensors"))
    loader = made("prefetched tensors")
    trainer, seen, counted = run(loader, loader.loader)
    assert seen == expected and set(counted) == {SAMPLES}
    assert torch.equal(weights(trainer), weights(straight))
    _, expected, _ = run(made("placed stream"))
    loader = made("placed stream")
    _, seen, counted = run(loader, DataLoader(loader.dataset, 7))
    assert seen == expected and set(counted) == {SAMPLES}


@pytest.mark.parametrize("name", ["placed stream", "loader with a place", "tensors", "stateful, map-style"])
@pytest.mark.parametrize("kind", ["mixture", "prefetched"])
def test_a_stateful_part_of_the_training_data(kind: str, name: str, tmp_path: Path) -> None:
    def parts() -> tuple[Any, Any]:
        loader = made(name)
        if kind == "prefetched":
            return DevicePrefetcher(loader, device="cpu"), loader
        return Mixture([(words(1), 0.5), (loader, 0.5)], epoch_length=6), loader

    _, expected, _ = run(parts()[0], max_duration="5ba")
    data, loader = parts()
    _, seen, counted = run(data, loader, max_duration="5ba", callbacks=[SaveIn("batch_checkpoint", tmp_path)])
    assert seen == expected and set(counted) == {SAMPLES}
    data, loader = parts()
    _, rest, counted = run(data, loader, max_duration="5ba", load_path=str(tmp_path / "3.pt"))
    assert rest == expected[3:] and set(counted) == {SAMPLES}


@pytest.mark.parametrize("name", ["placed stream", "tensors", "loader with a place"])
def test_data_that_read_the_training_data(name: str) -> None:
    _, expected, _ = run(made(name))
    loader = made(name)
    _, seen, counted = run(loader, DevicePrefetcher(loader, device="cpu"))
    assert seen == expected and set(counted) == {SAMPLES}


def test_the_user_s_generator_gives_each_evaluation_the_same_order() -> None:
    """Also in the second epoch of training."""
    loader = DataLoader(samples(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(5))
    evaluated = At("eval_batch_start", lambda state: state.batch[0][:, 0].tolist())
    run(loader, loader, callbacks=[evaluated])
    firsts = evaluated.found[::6]
    assert len(firsts) == NUM_EVALUATIONS and all(one == firsts[0] for one in firsts)


def test_an_iterator_loses_batches_and_warns() -> None:
    loader = iter(list(DataLoader(samples(), BATCH)))
    with pytest.warns(ComposerWarning, match="'eval0' is the training data, which can be read only once"):
        _, seen, _ = run(loader, loader, max_duration="1ep")
    assert len(seen) == 2


def test_workers_of_evaluations_end() -> None:
    before = set(multiprocessing.active_children())
    loader = made("stream, persistent workers")
    trainer, _, _ = run(loader, loader, fit=False)
    alive = At("eval_after_all", lambda state: len({*multiprocessing.active_children()} - before))
    trainer.state.callbacks.append(alive)
    trainer.fit()
    assert set(alive.found) == {2}  # those of training
