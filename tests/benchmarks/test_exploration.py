"""The measurement of explore continues from its records, lays them out, and asks Optuna for the same space."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import exploration, optuna_study, placebos
from benchmarks.optuna_study import Problem
from composer import Algorithm, Evaluator, Trainer
from composer.exploration import Goal, Variant
from composer.models import ComposerClassifier
from composer.trials import Assignment

VARIANTS = (
    Variant("EMA", ("algorithms+=EMA()",)),
    Variant("MixUp(0.2)", ("algorithms+=MixUp(0.2)",), group="MixUp"),
    Variant("MixUp(1.0)", ("algorithms+=MixUp(1.0)",), group="MixUp"),
    Variant("lr x0.5", ("optimizers.lr=0.05",), "learning_rate", group="lr"),
    Variant("lr x4", ("optimizers.lr=0.4",), "learning_rate", group="lr"),
)


def tiny() -> Trainer:
    """Ten epochs of a problem that one layer solves."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 8, generator=generator)
    rows = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    model = ComposerClassifier(nn.Linear(8, 2), num_classes=2)
    return Trainer(
        model=model,
        train_dataloader=torch.utils.data.DataLoader(rows, 16),
        eval_dataloader=Evaluator(label="eval", dataloader=torch.utils.data.DataLoader(rows, 16)),
        eval_interval="1ep",
        max_duration="10ep",
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        progress_bar=False,
    )


PROBLEM = Problem(tiny, Goal.parse("MulticlassAccuracy>=0.9"), VARIANTS, 0.1, 60.0)


class Chosen:
    """A trial that takes the last choice and the highest number."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        self.asked[name] = (low, high, log)
        return high

    def suggest_categorical(self, name: str, choices: list[str]) -> str:
        self.asked[name] = choices
        return choices[-1]


def test_placebos_do_nothing_and_can_be_created_by_name() -> None:
    for change in placebos.PLACEBOS:
        made = Assignment.parse(change).value
        assert isinstance(made, Algorithm)
        assert {*vars(type(made))} <= {"__module__", "__doc__", "__firstlineno__", "__static_attributes__", "slot"}
    assert len(placebos.PLACEBOS) == 5


def test_optuna_is_asked_for_the_space_of_explore() -> None:
    trial = Chosen()
    params = optuna_study._suggested(PROBLEM, trial)
    assert trial.asked == {
        "optimizers.lr": (0.05, 0.4, True),
        "EMA": ["off", "EMA"],
        "MixUp": ["off", "MixUp(0.2)", "MixUp(1.0)"],
    }
    assert optuna_study._changes(PROBLEM, params) == (
        "optimizers.lr=0.4",
        "algorithms+=EMA()",
        "algorithms+=MixUp(1.0)",
    )
    assert optuna_study._changes(PROBLEM, optuna_study._unchanged(PROBLEM)) == ()


def test_optuna_searches_and_continues(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    found = optuna_study.study(PROBLEM, 1.0, 0, tmp_path / "optuna.journal")
    assert found.trials >= 1
    assert 0 < found.seconds < 60
    again = optuna_study.study(PROBLEM, 0.5, 0, tmp_path / "optuna.journal")
    assert again == found


def record(name: str, repetition: int, low: float, placebos: list[str]) -> dict[str, Any]:
    """What an exploration leaves."""
    result = {
        "effect": {"value": 1.5, "low": low, "high": 1.7},
        "pairs": 8,
        "reached_before": 7,
        "reached_after": 8,
    }
    return {
        "name": name,
        "repetition": repetition,
        "found": True,
        "recipe": {"name": "EMA", "changes": ["algorithms+=EMA()"]},
        "result": result,
        "overall": None,
        "search_cost": 14.0 + repetition,
        "placebos": placebos,
        "minutes": 5.0,
        "limit": 20.0,
    }


def test_what_is_recorded_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def explored(name: str, repetition: int, folder: Path) -> dict[str, Any]:
        asked.append((name, repetition))
        return record(name, repetition, 1.4, [])

    monkeypatch.setattr(exploration, "explored", explored)
    monkeypatch.setattr(exploration.torch, "set_num_threads", lambda number: None)
    exploration.measure(tmp_path, ["speech", "digits"], [0], with_optuna=False)
    report = exploration.measure(tmp_path, ["digits", "speech"], [0, 1], with_optuna=False)
    assert asked == [("speech", 0), ("digits", 0), ("digits", 1), ("speech", 1)]
    assert [row[0] for row in report.rows] == ["digits, 1", "speech, 1", "digits, 2", "speech, 2"]
    assert report.rows[0][3] == "1.50 (1.40 to 1.70), 1 before missed"


def test_goals_are_of_what_was_measured(tmp_path: Path) -> None:
    for name, low in (("digits", 1.4), ("book", 1.35), ("spelling", 1.1), ("speech", 1.31)):
        (tmp_path / f"{name}-0").mkdir()
        (tmp_path / f"{name}-0" / "explored.json").write_text(json.dumps(record(name, 0, low, ["a placebo"])))
    gain, accepted, cost, stability = exploration.report_of(tmp_path).goals
    assert (gain.value, gain.met) == (1, True)
    assert (accepted.value, accepted.verdict) == (20.0, "unclear: fewer than 100 are tried")
    assert (cost.value, cost.met) == (14.0, True)
    assert stability.verdict == "unclear: 4 of 4 programs have fewer repetitions"


def test_recipes_are_stable_if_four_of_five_intervals_overlap(tmp_path: Path) -> None:
    lows = {"digits": (1.4, 1.5, 1.6, 1.69, 1.71), "book": (1.4, 1.5, 1.6, 1.71, 1.71)}
    for name in exploration.PROGRAMS:
        for repetition, low in enumerate(lows.get(name, (1.4,) * 5)):
            (tmp_path / f"{name}-{repetition}").mkdir()
            found = record(name, repetition, low, [])
            if low > 1.7:
                found["result"] = None  # nothing was found
            (tmp_path / f"{name}-{repetition}" / "explored.json").write_text(json.dumps(found))
    *_, stability = exploration.report_of(tmp_path).goals
    assert (stability.value, stability.doubt, stability.met) == (1, "", False)


def test_a_later_search_does_not_replace_what_an_earlier_one_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "first" / "digits-0"
    own.mkdir(parents=True)
    (own / "explored.json").write_text(json.dumps(record("digits", 0, 1.1, ["a placebo"])))
    exploration.report_of(tmp_path / "first").write(tmp_path)
    assert exploration.restore(tmp_path / "records", tmp_path) == 1

    def explored(name: str, repetition: int, folder: Path) -> dict[str, Any]:
        return {**record(name, repetition, 1.6, []), "search": exploration.SEARCH}

    monkeypatch.setattr(exploration, "explored", explored)
    monkeypatch.setattr(exploration.torch, "set_num_threads", lambda number: None)
    report = exploration.measure(tmp_path / "records", ["digits"], [0], with_optuna=False)
    assert [row[:2] for row in report.rows] == [["digits, 1", "1"], ["digits, 1", str(exploration.SEARCH)]]
    older, newer, accepted, *_ = report.goals
    assert (older.value, newer.value) == (1, 0)
    assert accepted.value == 10.0  # the placebo of the first is counted too
    assert exploration.restore(tmp_path / "records", tmp_path) == 1  # again changes nothing
    assert len(exploration.report_of(tmp_path / "records").rows) == 2


def test_results_of_both_searches_are_laid_out(tmp_path: Path) -> None:
    own = tmp_path / "digits-0"
    own.mkdir()
    (own / "explored.json").write_text(json.dumps(record("digits", 0, 1.4, [])))
    best = {"trials": 20, "pruned": 12, "failed": 3, "variant": {"name": "Optuna", "changes": ["optimizers.lr=0.4"]}}
    (own / "optuna.json").write_text(json.dumps(best))
    (own / "head_to_head.json").write_text(json.dumps(record("digits", 0, 0.9, [])["result"]))
    (row,) = exploration.report_of(tmp_path).rows
    assert row[8:10] == ["20 (12 pruned, 3 failed)", "optimizers.lr=0.4"]
    assert row[10].startswith("1.50 (0.90 to 1.70)")
