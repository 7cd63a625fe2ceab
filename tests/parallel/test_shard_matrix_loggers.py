"""ShardMatrix: which rank writes what; loggers do not change training."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from composer import dist
from composer.loggers import (
    ConsoleLogger,
    CSVLogger,
    FileLogger,
    InMemoryLogger,
    JSONLinesLogger,
    ProgressBarLogger,
)
from tests.common import Received, Regression, regression_data
from tests.parallel.matrix import STRATEGIES, Trained, trained
from tests.ranks import Ranks


def train(strategy: str | None, folder: str) -> tuple[Trained, dict[str, Any]]:
    """Train with the loggers that are part of this package; return what this process got to show."""
    console, bars, memory, received = io.StringIO(), io.StringIO(), InMemoryLogger(), Received()
    found = trained(
        Regression(metrics=True),
        regression_data(4, 8),
        eval_dataloader=regression_data(2, 2, seed=dist.get_global_rank()),
        run_name="night",
        loggers=[
            memory,
            received,
            ConsoleLogger("1ba", console),
            ProgressBarLogger(bars),
            FileLogger(f"{folder}/{{run_name}}/logs-rank{{rank}}.txt", capture_stdout=False, capture_stderr=False),
            FileLogger(f"{folder}/logs.txt", capture_stdout=False, capture_stderr=False),
            CSVLogger(f"{folder}/metrics.csv"),
            JSONLinesLogger(f"{folder}/log.jsonl"),
        ],
        **(STRATEGIES[strategy] if strategy else {}),
    )
    shown = {
        "console": console.getvalue(),
        "bars": bars.getvalue(),
        "losses": [value for _, value in memory.data["loss/train/total"]],
        "metric": memory.data["metrics/eval/MeanSquaredError"][-1][1],
        "received": [value for _, value in received.series("loss/train/total")],
    }
    return found, shown


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks(strategy: str, two_ranks: Ranks, tmp_path: Path) -> None:
    alone, _ = train(None, str(tmp_path / "alone"))
    (first, shown), (second, other) = two_ranks.run(train, strategy, str(tmp_path / "both"))
    first.check_exactly(second)
    alone.check(first)
    # What is logged is of all processes together, wherever it is asked for.
    for one in (shown, other):
        assert one["losses"] == one["received"] == pytest.approx(first.losses)
        assert one["metric"] == shown["metric"]
    # One terminal, one file of a name.
    assert "loss/train/total" in shown["console"]
    assert shown["bars"]
    assert other["console"] == other["bars"] == ""
    files = {path.relative_to(tmp_path / "both").as_posix() for path in (tmp_path / "both").rglob("*.*")}
    assert files == {"night/logs-rank0.txt", "night/logs-rank1.txt", "logs.txt", "metrics.csv", "log.jsonl"}
    for name in ("night/logs-rank0.txt", "night/logs-rank1.txt", "logs.txt"):
        assert "loss/train/total" in (tmp_path / "both" / name).read_text()
    with (tmp_path / "both" / "metrics.csv").open(newline="") as file:
        rows = [row["loss/train/total"] for row in csv.DictReader(file)]
    assert [float(row) for row in rows if row] == pytest.approx(first.losses)
    lines = [json.loads(line) for line in (tmp_path / "both" / "log.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if line["kind"] == "metrics" and "loss/train/total" in line["values"]]
    assert steps == list(range(4))
