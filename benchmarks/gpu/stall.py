"""How long the training of GPT-2 stands still for a checkpoint of its 1.5 GB."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.checkpoints import COPY, INTO, LOST, SAVE, STALL, TORCH
from benchmarks.gpu.options import Options
from benchmarks.report import Goal, Report, spread

_MOST_ROUNDS = 3  # one writes 6 GB
NAMES = (TORCH, COPY, INTO, SAVE, STALL, LOST)


def measure(options: Options) -> Report:
    """Time the ways to save GPT-2 with the state of AdamW, in turns.

    Args:
        options: Device, size and rounds.
    """
    rounds = min(options.rounds, _MOST_ROUNDS)
    arguments: dict[str, Any] = {
        "megabytes": 0,
        "rounds": rounds,
        "device": options.device,
        "gpt2": "tiny" if options.tiny else "full",
        "names": NAMES,
    }
    found = environment.call("benchmarks.checkpoints:time_all", arguments)
    times: dict[str, list[float]] = found["times"]
    rows = [
        [
            name,
            statistics.median(times[name]) * 1e3,
            spread(times[name]) * 1e3,
            min(times[name]) * 1e3,
            found["first"][name] * 1e3,
            over(times[name], times[TORCH]),
            over(times[name], times[SAVE]),
        ]
        for name in NAMES
    ]
    goals = [
        Goal("asynchronous save, over a plain copy", over(times[STALL], times[COPY]), 1.2, "x"),
        Goal("asynchronous save, over torch.save", over(times[STALL], times[TORCH]), 0.25, "x"),
    ]
    notes = [
        f"GPT-2 ({arguments['gpt2']}) with the moments of AdamW, {found['megabytes']:.0f} MB on device "
        f"{options.device}; {rounds} rounds in turn, after a first one that has a column of its own, in one "
        "process. Median and half the interquartile range; ratios are medians of those of each round.",
        "The asynchronous save is how long training stands still; the row below adds by how much the steps are slower "
        "until the file is complete. The first one takes its pinned memory from the system, the others keep it. The "
        "blocking save returns when the file is on the disk; torch.save when the system has it.",
        "A plain copy makes new host tensors that are not pinned; 'copy into old memory' fills pinned ones, which is "
        "what the bus can do.",
        _disk(tempfile.gettempdir()),
    ]
    columns = ["milliseconds", "median", "spread", "least", "the first", "times torch.save", "times blocking save"]
    title = "How long training stands still for a checkpoint of GPT-2"
    return Report("checkpoint_stall", title, columns, rows, goals, notes, found, environment.describe(options.device))


def _disk(folder: str) -> str:
    """What the files lie on, which the blocking saves wait for."""
    place = Path(folder).resolve()
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    around = [(point, kind) for point, kind in mounts if place.is_relative_to(point)]
    # Of what is mounted over each other, the last one is seen.
    kind = max(reversed(around), key=lambda mount: len(mount[0]), default=("", "not known"))[1]
    free = shutil.disk_usage(folder).free
    return f"Files in {folder}: file system {kind}, {free / 1e9:.0f} GB free."


def over(times: list[float], reference: list[float]) -> float:
    """Return the median of the ratios, round by round, so that a slow moment hits both.

    Args:
        times: Seconds of each round.
        reference: Those of what it is compared with.
    """
    return statistics.median(one / other for one, other in zip(times, reference, strict=True))
