"""The best checkpoint of a run that still exists, by the metric that its saver monitored or by its evaluations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from composer.core.metric_direction import larger_is_better
from composer.core.run_event import RunEvent
from composer.history.history import History

__all__ = ["Checkpoint", "checkpoints", "load_lines"]

_BATCH = re.compile(r"(?:^|[^a-z])ba([0-9]+)(?![0-9])")
_SUFFIXES = (".pt", ".safetensors", ".symlink")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a run.

    Attributes:
        path: Its path or URI.
        step: Number of batches trained.
        monitor: Name of the metric that it is ranked by; None if there is none.
        score: Its value.

    >>> Checkpoint("runs/night/ep1.pt", 100).score is None
    True
    """

    path: str
    step: int
    monitor: str | None = None
    score: float | None = None


def checkpoints(history: History, folder: Path | None = None) -> tuple[Checkpoint | None, Checkpoint | None]:
    """Return the best and the newest checkpoint that exist, as far as can be told.

    The best is that with the best score if the saver monitors a metric, and otherwise the one saved right after the
    best evaluation of the first metric of which it is known whether larger values are better.

    Args:
        history: The run.
        folder: Folder of the run, in which to look if the log has no checkpoints.

    >>> event = RunEvent("checkpoint", 8, details={"path": "s3://runs/ep2.pt"})
    >>> checkpoints(History("night", events=[event]))[1].path
    's3://runs/ep2.pt'
    """
    saved = [one for one in _logged(history.events) if "://" in one.path or _exists(one.path)]
    if not saved and folder is not None:
        saved = _found(folder)
    if not saved:
        return None, None
    newest = max(saved, key=lambda one: one.step)
    return _best(history, saved) or _by_evaluation(history, saved), newest


def load_lines(path: str) -> str:
    """Return the lines of a script that load the weights of a checkpoint.

    Args:
        path: Its path or URI.

    >>> print(load_lines("runs/night/ep1.pt"))
    trainer = Trainer(model=model, load_path='runs/night/ep1.pt', load_weights_only=True)
    """
    return f"trainer = Trainer(model=model, load_path={path!r}, load_weights_only=True)"


def _logged(events: Sequence[RunEvent]) -> list[Checkpoint]:
    """Return the checkpoints of the log, the last of each path."""
    found: dict[str, Checkpoint] = {}
    for event in events:
        path, score = event.details.get("path"), event.details.get("score")
        if event.kind == "checkpoint" and isinstance(path, str):
            number = float(score) if isinstance(score, (int, float)) else None
            monitor = event.details.get("monitor")
            found[path] = Checkpoint(path, event.step, None if monitor is None else str(monitor), number)
    return list(found.values())


def _exists(path: str) -> bool:
    """Return whether a file exists, as far as can be seen: it may be in a folder of another user."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def _found(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints below a folder whose names have the number of batches."""
    found: list[Checkpoint] = []
    for level in (folder, *(one for one in _content(folder) if one.is_dir())):
        for path in _content(level):
            batch = _BATCH.search(path.name)
            is_checkpoint = path.suffix in _SUFFIXES or (path.is_dir() and (path / ".metadata").exists())
            if batch is not None and is_checkpoint and not path.is_symlink() and "exception" not in path.name:
                found.append(Checkpoint(str(path), int(batch[1])))
    return found


def _content(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing if it cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _best(history: History, saved: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the checkpoint with the best score."""
    modes = [event.details.get("mode") for event in history.events if "score" in event.details]
    scored = [one for one in saved if one.score is not None and one.score == one.score]
    if not scored:
        return None
    return (max if modes[-1] == "max" else min)(scored, key=lambda one: one.score or 0.0)


def _by_evaluation(history: History, saved: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the checkpoint that was saved at the step of the best evaluation among those with a checkpoint."""
    steps = {one.step: one for one in saved}
    for name, series in history.series.items():
        label, _, metric = name.removeprefix("metrics/").partition("/")
        larger = larger_is_better(metric) if name.startswith("metrics/") and label != "train" else None
        if larger is None:
            continue
        pairs = [(value, step) for step, value in zip(series.step.tolist(), series.values.tolist(), strict=True)]
        pairs = [(value, step) for value, step in pairs if step in steps and value == value]
        if not pairs:
            continue
        value, step = (max if larger else min)(pairs, key=lambda pair: pair[0])
        return Checkpoint(steps[step].path, step, f"{label}/{metric}", value)
    return None
