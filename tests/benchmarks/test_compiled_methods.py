"""The benchmark of compiled models and methods: its cases train, and the report of given times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compiled_methods as benchmark
from benchmarks import environment
from composer.parallel.wrapping import repeated_blocks


def record(name: str, full: list[float], compilations: int = 1) -> dict[str, Any]:
    """What a measurement returns."""
    configs = {
        "eager": {"start": 1.0, "steps": [0.1, 0.1, 0.1], "compilations": 0, "functions": 0},
        "full": {"start": 21.0, "steps": full, "compilations": compilations, "functions": 1},
    }
    return {"name": name, "once": 10.0, "blocks": 0, "steps_a_piece": 2, "configs": configs}


def test_report_of_given_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"MLP, EMA": record("MLP, EMA", [0.08] * 3), "U-Net": record("U-Net", [0.1, 0.12, 0.13], 3)}
    asked: list[str] = []

    def call(target: str, arguments: dict[str, Any]) -> Any:
        asked.append(arguments["name"])
        return given[arguments["name"]]

    monkeypatch.setattr(environment, "call", call)
    for _ in range(2):  # the second continues with what the first has measured
        report = benchmark.measure(tmp_path, ["MLP, EMA", "U-Net"])
    assert asked == ["MLP, EMA", "U-Net"]
    assert [row[1] for row in report.rows] == ["eager", "full", "eager", "full"]
    assert [row[-1] for row in report.rows] == ["-", "1,000 steps", "-", "not measurably"]
    (goal,) = report.goals
    assert (goal.value, goal.met) == (2, False)
    assert any("Of 2 compiled runs, 1 have less" in note and "U-Net (full) 1.20" in note for note in report.notes)
    assert json.loads(json.dumps(report.samples)) == given


@pytest.mark.parametrize("name", ["MLP, GyroDropout", "GPT, SeqLengthWarmup", "embedding bag, SelectiveBackprop"])
def test_case_trains(name: str) -> None:
    trainer, seconds = benchmark._start(benchmark.CASES[name], None)
    trainer.fit(duration="1ba")
    assert seconds > 0
    assert trainer.state.timestamp.batch == 2
    trainer.close()


def test_models_that_repeat_blocks_are_also_compiled_by_block() -> None:
    names = [name for name, case in benchmark.CASES.items() if repeated_blocks(benchmark.make_model(case)[0])]
    assert {name.split(",")[0] for name in names} >= {"ViT", "GPT", "Llama"}
    assert "MLP, EMA" not in names
