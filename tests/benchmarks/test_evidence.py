"""Methods are measured by themselves, with a tuned baseline, and the pages tell what came of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import evidence, evidence_tasks, explored
from benchmarks.evidence_tasks import TASKS, EvidenceTask
from composer import Evaluator, Trainer
from composer.exploration import method_rows
from composer.models import ComposerClassifier
from composer.statistics import Decision
from composer.trials import Assignment
from docs import figures


def test_each_method_that_explore_tries_is_tried_on_a_task() -> None:
    tried = {method for task in TASKS.values() for method in task.methods}
    rows = {name for name, row in method_rows.METHODS.items() if not row.excluded}
    # For GPUs, and with an optimizer of its own.
    assert rows - tried == {"LowPrecisionGroupNorm", "ScheduleFree"}


@pytest.mark.parametrize("name", list(TASKS))
def test_methods_can_be_created(name: str) -> None:
    for method, call in TASKS[name].methods.items():
        assert type(Assignment.parse(f"algorithms+={call}").value).__name__ == method


@pytest.mark.parametrize("program", [evidence_tasks.few_digits, evidence_tasks.patches])
@pytest.mark.parametrize("method", ["PatchDropout", "StochasticDepth", "GyroDropout"])
def test_methods_have_an_effect_on_programs_where_they_are_tried(program, method: str, monkeypatch) -> None:
    (task,) = (one for one in TASKS.values() if one.program is program)
    if method not in task.methods:
        return
    made = program()
    algorithm = Assignment.parse(f"algorithms+={task.methods[method]}").value
    batch = next(iter(made.state.train_dataloader))
    optimizer = torch.optim.SGD(made.state.model.parameters(), lr=0.01)
    trainer = Trainer(
        model=made.state.model,
        algorithms=[algorithm],
        optimizers=optimizer,
        max_duration="1ba",
        progress_bar=False,
    )
    trainer.fit(train_dataloader=[batch])  # a method without effect is a warning, which is an error here


def numbers() -> Trainer:
    """One layer that tells the sign of a sum, with a learning rate that is far below the best."""
    x = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
    rows = TensorDataset(x, (x.sum(1) > 0).long())
    model = ComposerClassifier(torch.nn.Linear(8, 2), num_classes=2)
    return Trainer(
        model=model,
        train_dataloader=DataLoader(rows, 32, shuffle=True),
        eval_dataloader=Evaluator(label="eval", dataloader=DataLoader(rows, 128)),
        eval_interval="2ba",
        max_duration="2ep",
        optimizers=torch.optim.SGD(model.parameters(), lr=0.02),
        progress_bar=False,
    )


FAST = EvidenceTask(
    "rows of numbers",
    numbers,
    {"EMA": "EMA(half_life='4ba', update_interval='1ba')", "SAM": "SAM(0.05)"},
    "MulticlassAccuracy>=0.8",
)


@pytest.mark.parametrize("has_target", [True, False])
def test_a_task_is_measured_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_target: bool) -> None:
    task = FAST if has_target else dataclasses.replace(FAST, target="", metric="MulticlassAccuracy")
    monkeypatch.setattr(evidence, "TASKS", {"numbers": task})
    monkeypatch.setattr(evidence, "PAIRS", 2)
    monkeypatch.setattr(evidence, "_FACTORS", (1.0, 4.0))
    monkeypatch.setattr(evidence, "_TUNING_SEEDS", 1)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    report = evidence.measure(tmp_path, ["numbers"])
    assert [name for name, *_ in report.rows] == ["numbers: EMA", "numbers: SAM"]
    result = json.loads((tmp_path / "numbers" / "evidence.json").read_text())
    assert result["factor"] == 4.0  # the best of those that are tried
    assert {one["pairs"] for one in result["found"].values()} == {2}
    assert (report.rows[0][1] != "-") == has_target
    assert report.rows[0][3] != "-"
    assert evidence.measure(tmp_path, ["numbers"]).rows == report.rows  # from its records
    report.write(tmp_path)
    told = figures.evidence(tmp_path)
    assert told["SAM"][0].startswith("Rows of numbers: ")
    assert told["SAM"][0].endswith(", `SAM(0.05)`")
    assert ("times as fast to MulticlassAccuracy>=0.8" in told["EMA"][0]) == has_target


@pytest.mark.parametrize("decision", list(Decision))
def test_each_verdict_is_told(tmp_path: Path, decision: Decision) -> None:
    found = {
        "decision": str(decision),
        "failures": 0,
        "pairs": 8,
        "reached_after": 7,
        "effect": {"value": 1.2, "low": 1.1, "high": None},
        "quality_at_equal_samples": {"value": 0.1, "low": -0.2, "high": 0.3},
    }
    task = {"about": "digits", "target": "A>=0.9", "methods": {"EMA": "EMA()"}, "found": {"EMA": found}}
    (tmp_path / "evidence.json").write_text(json.dumps({"samples": {"digits": task}}))
    verdict = {"pays": "it pays", "does not": "it does not pay"}.get(decision, "undecided")
    assert figures.evidence(tmp_path) == {
        "EMA": [
            "Digits: 1.20 [1.10, ∞] times as fast to A>=0.9 (1 of 8 runs did not get there), A better by +0.100 "
            f"[-0.200, +0.300] after as many samples; **{verdict}**, `EMA()`"
        ]
    }


def test_the_tasks_of_explore_are_among_them() -> None:
    for name, program in explored.PROGRAMS.items():
        assert TASKS[name].program is program
        assert TASKS[name].target == explored.TARGETS[name]


def test_published_tasks_are_laid_into_a_folder(tmp_path: Path) -> None:
    folder, published = tmp_path / "records", json.loads((evidence.RESULTS / "evidence.json").read_text())
    own = next(iter(published["samples"]))
    (folder / own).mkdir(parents=True)
    (folder / own / "evidence.json").write_text(json.dumps(published["samples"][own] | {"about": "measured anew"}))
    assert evidence.restore(folder) == len(published["samples"])
    report = evidence.report_of(folder)
    assert report.rows == published["rows"]
    assert report.samples[own]["about"] == "measured anew"
