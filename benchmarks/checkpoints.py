"""Measure checkpointing: how long a save blocks and slows down training, and how long resuming takes."""

from __future__ import annotations

import argparse
import gc
import math
import os
import statistics
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from benchmarks import environment
from benchmarks.checkpoint_pauses import MOST_STEPS, Pause, composer_pause
from benchmarks.report import Goal, Report, spread

SIZES = (10, 100, 500, 2000)
"""Sizes of the state in MB: weights and the two moments of AdamW."""

_FEWER_ABOVE, _FEWER = 1000, 5  # rounds where one takes a minute
_MOST_OF_LOAD = 500  # MB for which the goal of loading is set

_WIDTH = 512
_BYTES_A_LAYER = 3 * 4 * (_WIDTH * _WIDTH + _WIDTH)

TORCH, COPY, INTO, SAVE, STALL = (
    "torch.save",
    "plain copy",
    "copy into old memory",
    "blocking save",
    "asynchronous save",
)
LOST = "asynchronous save, all that training loses"
LOAD_TORCH, LOAD, FRESH, RESUME = "torch.load", "load", "fresh start to the first step", "resumption to the first step"
LOAD_ZLIB = "load, checksums by zlib"
DCP, FOLDER, LOAD_DCP, LOAD_FOLDER = "dcp.save", "blocking save of a folder", "dcp.load", "load of a folder"
LIGHTNING = tuple(f"Lightning's {name}" for name in (SAVE, STALL, LOST, LOAD, FRESH, RESUME))
NAMES = (
    TORCH,
    COPY,
    INTO,
    SAVE,
    STALL,
    LOST,
    LOAD_TORCH,
    LOAD,
    LOAD_ZLIB,
    FRESH,
    RESUME,
    DCP,
    FOLDER,
    LOAD_DCP,
    LOAD_FOLDER,
)
_WRITERS = (TORCH, SAVE, STALL, DCP, FOLDER, *LIGHTNING[:2])


def number_of_layers(megabytes: int) -> int:
    """How many layers a state of a given size has."""
    return max(1, round(megabytes * 1e6 / _BYTES_A_LAYER))


def layers(number: int, device: str) -> nn.Sequential:
    """The model of all that are compared."""
    with torch.device(device):
        return nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(number)))


def batches(number: int = 4) -> list[tuple[Tensor, Tensor]]:
    """The data of all that are compared."""
    return [(torch.randn(1, _WIDTH), torch.zeros(1, dtype=torch.int64))] * number


class Model:
    """A training of linear layers whose state has about a given size, or of GPT-2.

    Args:
        megabytes: Size of the state.
        device: "cpu" or "cuda".
        gpt2: "full" or "tiny", for that model instead, whose state has the size that it has.
    """

    def __init__(self, megabytes: int, device: str, gpt2: str = "") -> None:
        self._layers, self._device, self._gpt2 = number_of_layers(megabytes), device, gpt2

    def trainer(self, *, steps: int = 4, **arguments: Any) -> Any:
        """Make a trainer whose epoch has a number of steps."""
        from composer import Trainer

        model, data = self._of_gpt2() if self._gpt2 else self._of_layers()
        data = data[:1] * steps
        return Trainer(
            model=model,
            train_dataloader=data,
            optimizers=torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True),
            device="gpu" if self._device == "cuda" else self._device,
            precision="fp32",
            progress_bar=False,
            seed=1,
            **arguments,
        )

    def _of_layers(self) -> tuple[Any, Any]:
        from composer.models import ComposerClassifier

        return ComposerClassifier(layers(self._layers, self._device), num_classes=_WIDTH), batches()

    def _of_gpt2(self) -> tuple[Any, Any]:
        from benchmarks.gpu import contenders, gpt2

        shape = gpt2.TINY if self._gpt2 == "tiny" else gpt2.Shape()
        model = contenders.composer_model(gpt2.GPT2(shape), gpt2.logits_of, gpt2.loss_of)
        return model.to(self._device), gpt2.batches(shape, 1, 4)


def tensors_of(node: Any) -> list[Tensor]:
    """The tensors of a checkpoint."""
    if isinstance(node, Tensor):
        return [node]
    values = node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ()
    return [tensor for value in values for tensor in tensors_of(value)]


def time_all(
    megabytes: int, rounds: int, device: str = "cpu", gpt2: str = "", names: Sequence[str] | None = None
) -> dict[str, Any]:
    """Time everything in turn; return the seconds by name, those of the first time, and the size of the state in MB.

    Args:
        megabytes: Size of the state.
        rounds: Number of times that each is timed, after one that does not count.
        device: "cpu" or "cuda".
        gpt2: See :class:`Model`.
        names: What is timed, without what needs a file that another one of them would have written; None is all.
    """
    from composer.callbacks import CheckpointSaver
    from composer.checkpoint import file_format
    from composer.checkpoint.load import read_checkpoint
    from composer.checkpoint.save import collect

    model = Model(megabytes, device, gpt2)
    peer = lightning_jobs(megabytes, device) if names is None and environment.has("lightning") else None
    names = names or (*NAMES, *(LIGHTNING if peer else ()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saver = CheckpointSaver(
            folder / "run", "ba{batch}.pt", save_interval=0, num_checkpoints_to_keep=1, asynchronous=True
        )
        behind = model.trainer(callbacks=saver, max_duration="1ba", steps=2 * MOST_STEPS)
        trainer = model.trainer(max_duration="1ba")
        trainer.fit()
        content = collect(trainer.state)
        # Weights that two layers share are one tensor to all that save them.
        tensors = list({tensor.untyped_storage().data_ptr(): tensor for tensor in tensors_of(content)}.values())
        memory = [torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda) for tensor in tensors]

        def into() -> None:
            for old, new in zip(memory, tensors, strict=True):
                old.copy_(new, non_blocking=True)

        def start(**arguments: Any) -> None:
            model.trainer(max_duration=arguments.pop("until"), **arguments).fit()

        jobs: dict[str, Callable[[], object]] = {
            TORCH: lambda: torch.save(content, folder / "torch.pt"),
            COPY: lambda: [tensor.to("cpu", copy=True) for tensor in tensors],
            INTO: into,
            SAVE: lambda: file_format.write(collect(trainer.state), folder / "ours.pt"),
            **pause_jobs(lambda: composer_pause(behind, saver)),
            LOAD_TORCH: lambda: torch.load(folder / "torch.pt", map_location="cpu", weights_only=True),
            LOAD: lambda: read_checkpoint(folder / "ours.pt"),
            LOAD_ZLIB: lambda: _read_by_zlib(folder / "ours.pt"),
            FRESH: lambda: start(until="1ba"),
            RESUME: lambda: start(until="2ba", load_path=str(folder / "ours.pt")),
            **_folder_jobs(tensors, memory, folder),
            **({} if peer is None else peer.jobs(folder)),
        }
        times = _in_turns({name: jobs[name] for name in names}, rounds, device, folder)
        for one in (trainer, behind):
            one.close()
    return {
        "times": {name: found[1:] for name, found in times.items()},
        "first": {name: found[0] for name, found in times.items()},
        "megabytes": sum(tensor.nbytes for tensor in tensors) / 1e6,
    }


def _in_turns(jobs: dict[str, Callable[[], object]], rounds: int, device: str, folder: Path) -> dict[str, list[float]]:
    """Seconds of each job in a first round that does not count, and in others.

    A job that takes its own time returns it.

    Raises:
        RuntimeError: A job that saves has not written to the folder.
    """
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds + 1):
        for name, job in jobs.items():
            _settle(device)
            before = _files(folder)
            begin = time.perf_counter()
            result = job()
            _synchronize(device)
            times[name].append(result if isinstance(result, float) else time.perf_counter() - begin)
            del result  # of a load, as large as the state
            if name in _WRITERS and not _files(folder) - before:
                raise RuntimeError(f"{name!r} wrote no file, so its time says nothing.")
    return times


def _read_by_zlib(path: Path) -> object:
    """Read a checkpoint as an installation without the optional package for checksums does."""
    from composer.checkpoint import checksum
    from composer.checkpoint.load import read_checkpoint

    with mock.patch.object(checksum, "_implementation", lambda: zlib.crc32):
        return read_checkpoint(path)


def _files(folder: Path) -> set[tuple[str, int, int, int]]:
    """What tells a new or replaced file from an old one."""
    found = ((path, path.stat()) for path in folder.rglob("*") if path.is_file())
    return {(str(path), stat.st_ino, stat.st_mtime_ns, stat.st_size) for path, stat in found}


def pause_jobs(run: Callable[[], Pause], prefix: str = "") -> dict[str, Callable[[], object]]:
    """The call of an asynchronous save, and what the same run loses in all, which the second job only returns."""
    last: list[Pause] = []

    def stall() -> float:
        last[:] = [run()]
        return last[0].call

    return {f"{prefix}{STALL}": stall, f"{prefix}{LOST}": lambda: last[0].lost}


def lightning_jobs(megabytes: int, device: str) -> Any:
    """The same training by Lightning, with the same model, optimizer and data."""
    from benchmarks.lightning_checkpoints import Peer

    return Peer(number_of_layers(megabytes), device)


def _folder_jobs(tensors: Sequence[Tensor], memory: Sequence[Tensor], folder: Path) -> dict[str, Callable[[], object]]:
    """Saving and loading by ``torch.distributed.checkpoint``, and ours; all tensors as if they were weights."""
    from composer.checkpoint.load import read_checkpoint
    from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded

    weights = {str(number): tensor for number, tensor in enumerate(tensors)}
    filled = {str(number): tensor for number, tensor in enumerate(memory)}
    warnings.simplefilter("ignore")  # torch says that there is one process, and that a folder is replaced
    return {
        DCP: lambda: dcp.save(weights, storage_writer=dcp.FileSystemWriter(folder / "dcp")),
        FOLDER: lambda: write_sharded(shard_checkpoint({"state": {"model": weights}}), folder / "folder"),
        LOAD_DCP: lambda: dcp.load(filled, storage_reader=dcp.FileSystemReader(folder / "dcp")),
        LOAD_FOLDER: lambda: read_checkpoint(folder / "folder"),
    }


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _settle(device: str) -> None:
    """Have what was written before on the disk, and trainers of before freed, so that nobody pays for another."""
    gc.collect()  # they are cycles; a few of 2 GB that wait for a collection need more memory than there is
    os.sync()
    _synchronize(device)


def measure(sizes: Sequence[int] = SIZES, rounds: int = 7, device: str = "cpu") -> Report:
    """Compare with ``torch.save`` and with a copy of the state.

    Args:
        sizes: Of the state in MB.
        rounds: Number of times that each is timed.
        device: "cpu" or "cuda".
    """
    rows: list[list[Any]] = []
    goals: list[Goal] = []
    samples: dict[str, Any] = {}
    for size in sizes:
        arguments = {
            "megabytes": size,
            "rounds": min(rounds, _FEWER) if size > _FEWER_ABOVE else rounds,
            "device": device,
        }
        found = environment.call("benchmarks.checkpoints:time_all", arguments)
        times: dict[str, list[float]] = found["times"]
        samples[f"{size} MB"] = times
        rows += [_row(f"{found['megabytes']:.0f} MB, {name}", name, times) for name in times]
        goals += _goals(size, times)
    columns = ["milliseconds", "median", "spread", "least", "times torch.save", "times Lightning's"]
    name = "checkpoints" if device == "cpu" else f"checkpoints_{device}"
    title = "Cost of checkpoints"
    return Report(name, title, columns, rows, goals, _notes(rounds), samples, environment.describe(device))


def _row(label: str, name: str, times: dict[str, list[float]]) -> list[Any]:
    values = [seconds * 1e3 for seconds in times[name]]
    theirs = times.get(f"Lightning's {LOAD if name == LOAD_ZLIB else name}")
    of_lightning = math.nan if theirs is None else _ratio(times[name], theirs)
    return [
        label,
        statistics.median(values),
        spread(values),
        min(values),
        _ratio(times[name], times[TORCH]),
        of_lightning,
    ]


def _goals(size: int, times: dict[str, list[float]]) -> list[Goal]:
    """The goals of a size, as far as there are times of Lightning's."""
    goals = [Goal(f"{size} MB: asynchronous save, over a plain copy", _ratio(times[STALL], times[COPY]), 1.2, "x")]
    goals += [
        Goal(f"{size} MB: {name}, over {theirs}", _ratio(times[name], times[theirs]), 1.0, "x")
        for name, theirs in zip((SAVE, STALL, LOST, LOAD, FRESH, RESUME), LIGHTNING, strict=True)
        if theirs in times and name in (STALL, LOST, RESUME)
    ]
    if (theirs := f"Lightning's {LOAD}") in times and size <= _MOST_OF_LOAD:
        goals.append(Goal(f"{size} MB: load, over {theirs}", _ratio(times[LOAD], times[theirs]), 1.2, "x"))
    if size == 500:
        over = _ratio(times[STALL], times[TORCH])
        goals.append(Goal(f"{size} MB: asynchronous save, over torch.save", over, 0.25, "x"))
    return goals


def _notes(rounds: int) -> list[str]:
    return [
        f"{rounds} rounds in turn, after a warm-up round, in one process for each size; median and half the "
        "interquartile range. Ratios are medians over the rounds. Pending writes are flushed to disk before each.",
        "The state is that of a run: weights and the two moments of AdamW in layers of 1 MB, and the small entries.",
        "torch.save returns when the system has the file, possibly before it is on disk; the blocking save returns "
        "when the file is on disk under its name.",
        "The asynchronous save is called in a training loop, between two steps. Its first row is the call. The second "
        "is the time from the call until the first step that begins after the file is complete, less the steps in "
        "between at the pace of the five before the call: steps beside the writer are slower, since they share "
        "cores, the interpreter lock and memory bandwidth with it. A job that writes no file fails the benchmark.",
        "A plain copy clones each tensor to new host memory; an asynchronous save copies to a reused buffer, like the "
        "row below the plain copy. In addition it takes a fraction of a millisecond for names, random state and the "
        "handover to the thread. At 10 MB the plain copy itself varies by a factor of three, depending on whether the "
        "C library has to request memory from the system.",
        "Loading verifies the checksum of every tensor, which torch.load does not do: with the optional package isal "
        "if it is listed below, and in the row 'checksums by zlib' as without it.",
        "dcp is torch.distributed.checkpoint, on one rank. Composer's folders use its format; their files are read "
        "once more after writing, for checksums, and once more on loading, to verify them. dcp.load fills existing "
        "tensors, Composer allocates them.",
        "Lightning trains the same layers with the same optimizer and data, without logger, progress bar and summary; "
        "its asynchronous save uses AsyncCheckpointIO. Its save returns before the file is on disk, and it verifies "
        "no checksums.",
    ]


def _ratio(times: list[float], reference: list[float]) -> float:
    """Round by round, so that a slow moment hits both."""
    return statistics.median(a / b for a, b in zip(times, reference, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="of the states, in MB")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    given = parser.parse_args()
    report = measure(given.sizes, given.rounds, given.device)
    print(report.text())
    report.write()


if __name__ == "__main__":
    main()
