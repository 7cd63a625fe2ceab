"""Runs on data of other packages, and of our loaders, resume bit for bit."""

from __future__ import annotations

import gc
import io
import itertools
import logging
import random
import tarfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composer.callbacks import CheckpointSaver
from composer.datasets import DevicePrefetcher, Mixture, TensorLoader
from composer.warnings import ComposerWarning
from tests.common import At, weights
from tests.trainer.resuming import BATCH, CLASSES, SAMPLES, STEPS, Augmented, build

pytestmark = [
    pytest.mark.slow,
    # What the packages do: an old call of torch, and tar files that are left to the collector of garbage.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]

# In the middle of the first epoch, after its last batch, at its end, and in the second.
STOPS = ("steps/ep0-ba2", "steps/ep0-ba6", "epochs/ep1-ba6", "steps/ep1-ba7", "steps/ep1-ba11")


_numbers = itertools.count()


def points() -> list[dict[str, Any]]:
    generator = np.random.default_rng(0)
    return [{"x": generator.normal(size=4).astype(np.float32), "y": i % CLASSES} for i in range(SAMPLES)]


def paired(samples: Any) -> Any:
    """What the model takes: (x, y)."""
    x = torch.stack([torch.tensor(sample["x"].tolist()) for sample in samples])
    return x, torch.tensor([int(sample["y"]) for sample in samples])


# ------------------------------------------------------------------------------------------------- the packages


def stateful(folder: Path, **more: Any) -> Any:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    data = Augmented()
    if more:
        # The generators of workers are not part of its state.
        data = TensorDataset(data.x, torch.arange(SAMPLES) % CLASSES)
    return torchdata.StatefulDataLoader(data, BATCH, shuffle=True, **more)


def mapped(folder: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(points()).with_format("torch")
    return DataLoader(data, BATCH, shuffle=True, collate_fn=paired)


def iterable(folder: Path, **more: Any) -> Any:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(points()).to_iterable_dataset(num_shards=2).with_format("torch")
    return DataLoader(data, BATCH, collate_fn=paired, **more)


def stateful_iterable(folder: Path) -> Any:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    return torchdata.StatefulDataLoader(iterable(folder).dataset, BATCH, collate_fn=paired, num_workers=1)


def write_shards(folder: Path) -> Any:
    streaming = pytest.importorskip("streaming")
    if not (folder / "shards").exists():
        columns = {"x": "ndarray:float32:4", "y": "int"}
        with streaming.MDSWriter(out=str(folder / "shards"), columns=columns, size_limit=256) as writer:
            for sample in points():
                writer.write(sample)
    return streaming


def stream_of(folder: Path, cache: str, batch_size: int) -> Any:
    """A dataset with a folder of its own, as streaming wants for each that there is at a time."""
    return write_shards(folder).StreamingDataset(
        remote=str(folder / "shards"),
        local=str(folder / cache),
        batch_size=batch_size,
        shuffle=True,
        shuffle_seed=3,
        num_canonical_nodes=1,
    )


def streamed(folder: Path, loader: str = "DataLoader", **more: Any) -> Any:
    streaming = write_shards(folder)
    data = stream_of(folder, f"cache{next(_numbers)}", BATCH)
    kind = DataLoader if loader == "DataLoader" else streaming.StreamingDataLoader
    return kind(data, BATCH, collate_fn=paired, **more)


def _stream_of_a_rank(folder: str, batch_size: int, stop: str, load: str | None) -> list[list[float]]:
    """What identifies the samples of each step."""
    data = stream_of(Path(folder), f"cache of batches of {batch_size}", batch_size)
    loader = write_shards(Path(folder)).StreamingDataLoader(data, batch_size, collate_fn=paired)
    more: dict[str, Any] = {"save_folder": f"{folder}/saved", "save_interval": "2ba", "save_filename": "at{batch}.pt"}
    more = more if load is None else {"load_path": f"{folder}/saved/{load}"}
    run = build(loader, max_duration=stop, schedulers=[], **more)
    seen = At("after_dataloader", lambda state: state.batch[0][:, 0].tolist())
    run.state.callbacks.append(seen)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The random state was saved with", ComposerWarning)
        run.fit()
    run.close()
    return seen.found


def test_WorldResize_of_a_stream(two_ranks, tmp_path) -> None:
    """What two ranks have not had yet, one has."""
    write_shards(tmp_path)
    halves = two_ranks.run(_stream_of_a_rank, str(tmp_path), 2, "2ba", None)
    had = [value for half in halves for step in half for value in step]
    rest = [value for step in _stream_of_a_rank(str(tmp_path), 4, "1ep", "at2.pt") for value in step]
    assert len(set(had)) == len(had) == 8
    assert sorted(had + rest) == sorted(sample["x"][0].item() for sample in points())


def tarred(folder: Path, **more: Any) -> Any:
    webdataset = pytest.importorskip("webdataset")
    path = folder / "points.tar"
    if not path.exists():
        with tarfile.open(path, "w") as tar:
            for number, sample in enumerate(points()):
                for name, content in (("x.npy", _npy(sample["x"])), ("y.cls", str(sample["y"]).encode())):
                    info = tarfile.TarInfo(f"{number:04d}.{name}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    # The generator of the process is saved with a run; one made for the pipeline would not be.
    data = webdataset.WebDataset(str(path), shardshuffle=False).shuffle(10, rng=random).decode()
    data = data.to_tuple("x.npy", "y.cls")
    return DataLoader(data, BATCH, **more)


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def on_device(folder: Path) -> Any:
    x, y = paired(points())
    return TensorLoader((x, y), BATCH, device="cpu", transform=lambda b: (b[0] + 0.1 * torch.randn_like(b[0]), b[1]))


def mixed(folder: Path, *sources: Any, **more: Any) -> Mixture:
    """Sources of which some start a new epoch before the mixture does."""
    pairs = [(source(folder), weight) for source, weight in zip(sources, (0.5, 0.3, 0.2), strict=False)]
    return Mixture(pairs, **({"epoch_length": STEPS // 2} | more))


def plain_stateful(folder: Path) -> Any:
    return stateful(folder, num_workers=0)  # without random values: looking whether an epoch ends would sample some


def listed(folder: Path) -> Any:
    return [paired(points()[first : first + BATCH]) for first in range(0, SAMPLES, BATCH)]


def indexed(folder: Path, **more: Any) -> Any:
    return DataLoader(Augmented(), BATCH, shuffle=True, **more)


KINDS: dict[str, Any] = {
    "torchdata": stateful,
    "torchdata, workers": lambda folder: stateful(folder, num_workers=2),
    "torchdata of an iterable": stateful_iterable,
    "datasets": mapped,
    "datasets, iterable": iterable,
    "streaming": streamed,
    "streaming, its loader": lambda folder: streamed(folder, "StreamingDataLoader"),
    "streaming, workers": lambda folder: streamed(folder, "StreamingDataLoader", num_workers=2),
    "webdataset": tarred,
    "webdataset, a worker": lambda folder: tarred(folder, num_workers=1),
    "tensors": on_device,
    "mixed": lambda folder: mixed(folder, indexed, on_device, lambda folder: indexed(folder, num_workers=2)),
    "mixed streams": lambda folder: mixed(folder, stateful, streamed, listed),
    "prefetched": lambda folder: DevicePrefetcher(DataLoader(Augmented(), BATCH, shuffle=True), device="cpu"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_ResumeAnywhere_for_the_data_of_others(kind, tmp_path, caplog) -> None:
    caplog.set_level(logging.ERROR, logger="composer")
    check_resume(KINDS[kind], tmp_path, STOPS)


def test_ResumeAnywhere_of_a_mixture_without_length(tmp_path) -> None:
    """Its epochs end where a source does: resumed after each batch and each epoch."""
    check_resume(lambda folder: mixed(folder, plain_stateful, iterable, epoch_length=None), tmp_path)


def check_resume(make: Any, tmp_path: Path, stops: Sequence[str] = ()) -> None:
    """Resume a run at checkpoints, or at all of them."""
    saved = tmp_path / "saved"
    intervals: dict[str, Any] = {"steps": lambda state, event: True, "epochs": "1ep"}
    savers = [CheckpointSaver(str(saved / name), save_interval=interval) for name, interval in intervals.items()]
    straight = build(make(tmp_path), callbacks=savers)
    losses = At("batch_end", lambda state: state.total_loss_dict["loss/train/total"].item())
    straight.state.callbacks.append(losses)
    straight.fit()
    expected = weights(straight)
    straight.close()
    assert len(losses.found) == STEPS
    assert len(set(losses.found)) == STEPS
    every = [str(path.relative_to(saved)).removesuffix("-rank0.pt") for path in saved.rglob("ep*-rank0.pt")]
    assert any(stop.startswith("epochs/") for stop in every)
    for stop in stops or sorted(stop for stop in every if not stop.endswith(f"ba{STEPS}")):
        resumed = build(make(tmp_path), load_path=str(saved / f"{stop}-rank0.pt"))
        batch = int(resumed.state.timestamp.batch)
        seen = At("batch_end", lambda state: state.total_loss_dict["loss/train/total"].item())
        resumed.state.callbacks.append(seen)
        resumed.fit()
        assert seen.found == losses.found[batch:], stop
        assert torch.equal(weights(resumed), expected)
        resumed.close()
    del straight, resumed
    gc.collect()  # report here what the packages leave open
