"""Runs of two settings with several seeds each, as histories and as logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from composer.core.run_event import RunEvent
from composer.history import History, HistoryBuilder

__all__ = ["seeded_run", "write_log"]


def seeded_run(name: str, lr: float, seed: int, steps: int = 200, **settings: Any) -> History:
    """A run whose accuracy rises faster with a larger learning rate, with noise of its seed."""
    builder = HistoryBuilder(name)
    for record in _records(lr, seed, steps):
        builder.add(record["step"], record["values"], sample=record["sample"], seconds=record["seconds"])
    builder.hyperparameters.update(lr=lr, seed=seed, run_name=name, folder=f"saved/{name}", **settings)
    builder.environment = {"versions": {"torch": "2.13.0"}, "launcher": {"PORT": str(seed)}}
    builder.events.append(RunEvent("end", steps))
    return builder.history()


def write_log(folder: Path, name: str, lr: float, seed: int, steps: int = 200) -> Path:
    """The same as a log in a folder of its own."""
    path = folder / name
    path.mkdir(parents=True)
    settings = {"lr": lr, "rank_zero_seed": seed, "run_name": name}
    lines = [{"kind": "hyperparameters", "values": settings}]
    lines += [{"kind": "metrics", **record} for record in _records(lr, seed, steps)]
    (path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _records(lr: float, seed: int, steps: int) -> list[dict[str, Any]]:
    noise = np.random.default_rng([seed, int(1000 * lr)])
    found: list[dict[str, Any]] = []
    for step in range(steps + 1):
        values = {"loss/train/total": 2 / (1 + step * lr) + 0.1 * noise.random()}
        if step and step % 20 == 0:
            values["metrics/eval/Accuracy"] = 1 - 0.5 / (1 + step * lr) + 0.004 * noise.normal()
            values["metrics/eval/CrossEntropy"] = 1 / (1 + step * lr)
        found.append({"step": step, "sample": 32 * step, "seconds": 0.01 * step, "values": values})
    return found
