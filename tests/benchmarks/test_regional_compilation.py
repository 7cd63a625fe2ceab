"""The benchmark of regional compilation, with times that are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environment
from benchmarks import regional_compilation as benchmark
from composer.parallel.wrapping import repeated_blocks


def test_report_of_given_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"eager": 1.0, "full model": 101.0, "by block": 11.0, benchmark.TOOLCHAIN: 5.0}

    def call(target: str, arguments: dict[str, Any]) -> float:
        return seconds[arguments.get("name", benchmark.TOOLCHAIN)]

    monkeypatch.setattr(environment, "call", call)
    for name in benchmark.STARTS:
        benchmark.measure_start(name, tmp_path)
    times = {"eager": [0.2] * 3, "full model": [0.1] * 3, "by block": [0.1, 0.102, 0.104]}
    (tmp_path / "steps.json").write_text(json.dumps(times))
    report = benchmark.report(tmp_path)
    whole, compiled, step = report.goals
    assert whole.value == pytest.approx(11 / 101 * 100)
    assert compiled.value == pytest.approx(6 / 96 * 100)
    assert step.value == pytest.approx(2.0)
    assert [row[:3] for row in report.rows] == [["eager", 1.0, 1], ["full model", 101.0, 1], ["by block", 11.0, 1]]
    assert "Compared with the eager model, compiling by block pays after 102 steps." in report.notes
    assert "Compared with the eager model, compiling the full model pays after 1000 steps." in report.notes
    monkeypatch.setattr(
        environment, "call", lambda target, arguments: seconds[arguments["name"]] * arguments["layers"] / 12
    )
    benchmark.measure_start("by block", tmp_path, 24)
    assert not any("24 blocks" in note for note in benchmark.report(tmp_path).notes)  # nothing to compare with
    benchmark.measure_start("full model", tmp_path, 24)
    times["by block"] = [0.3, 0.2, 0.1]
    (tmp_path / "steps.json").write_text(json.dumps(times))
    report = benchmark.report(tmp_path)
    text = "With 24 blocks, a cold start by block takes 22.0 s and that of the full model 202.0 s: 11%"
    assert any(note.startswith(text) for note in report.notes)
    assert [row[1] for row in report.rows] == [1.0, 101.0, 11.0]
    assert any(note.endswith("by block does not make a step faster by more than the spread.") for note in report.notes)


def test_interrupted_start_is_not_continued_with_its_cache(tmp_path: Path) -> None:
    (tmp_path / "cache-eager-0").mkdir()
    with pytest.raises(SystemExit, match="remove it"):
        benchmark.measure_start("eager", tmp_path)


def test_model_has_the_blocks() -> None:
    assert len(repeated_blocks(benchmark.make_model())) == benchmark.LAYERS
    assert len(repeated_blocks(benchmark.make_model(3))) == 3
