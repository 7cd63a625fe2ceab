"""TimeToTarget confirms the recipes of its tasks with explore, and lays out what that found."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import composer
from benchmarks import language_model, tasks, time_to_target, training
from benchmarks.tasks import TASKS, Task
from composer.exploration import Exploration, Variant, confirm_recipe
from composer.exploration.given_recipe import GivenRecipe
from composer.exploration.program_facts import ProgramFacts
from composer.exploration.variant import BASELINE, combined
from composer.trials import Assignment
from composer.trials.assignments import apply
from tests.exploration.simulation import GOAL, Effect, Simulation, method, tuning

EFFECTS = {"Good": Effect(1.5), "Help": Effect(1.3), "lr x2": Effect(1.3), "Bad": Effect(0.7)}
QUIET = {"time_noise": 0.01, "seed_noise": 0.01, "learning_noise": 0.01}


def simulated(*names: str, tuners: Sequence[Variant] = ()) -> Exploration:
    return confirm_recipe(Simulation(EFFECTS, **QUIET), GOAL, combined(map(method, names)), tuners)


def cells(rows: list[list[Any]], label: str) -> dict[str, Any]:
    """A row by column; ratios with their intervals."""
    row = next(row for row in rows if row[0] == f"task: {label}")
    pairs = zip(time_to_target._COLUMNS, row, strict=True)
    found: dict[str, Any] = {}
    for name, value in pairs:
        found[name if name not in found else f"{name} 2"] = value
    return found


def test_rows_are_what_the_exploration_found() -> None:
    found = simulated("Good", "Help", tuners=tuning())
    rows, goal = time_to_target.summarize("task", found)
    labels = ["baseline", "untuned baseline", "recipe", "recipe without Good", "recipe without Help"]
    assert [row[0] for row in rows] == [f"task: {label}" for label in labels]
    baseline, recipe, without = (cells(rows, labels[place]) for place in (0, 2, 3))
    assert found.result is not None and found.result.effect is not None
    effect = found.result.effect
    assert recipe["times the baseline's"] == f"{1 / effect.value:.2f}"
    assert recipe["interval"] == f"{1 / effect.high:.2f} to {1 / effect.low:.2f}"
    assert recipe["verdict"] == without["verdict"] == "pays"
    assert recipe["seconds"] / baseline["seconds"] == pytest.approx(1 / effect.value, rel=0.05)
    assert baseline["reached"] in ("6 of 6", "8 of 8")
    assert float(without["times the recipe's"]) == pytest.approx(1.5, rel=0.05)
    assert float(without["times the baseline's"]) == pytest.approx(1 / 1.3, rel=0.05)
    assert float(cells(rows, labels[1])["times the baseline's"]) == pytest.approx(1.3, rel=0.05)
    assert (goal.value, goal.met) == (pytest.approx(1 / effect.low), True)


def test_curves_are_those_of_the_rows() -> None:
    found = simulated("Good", "Help")
    samples = json.loads(json.dumps(time_to_target._samples(found), allow_nan=False))
    rows, _ = time_to_target.summarize("task", found)
    assert [f"task: {label}" for label in samples["curves"]] == [row[0] for row in rows]
    for row in rows:
        runs = samples["curves"][row[0].removeprefix("task: ")]
        assert row[1] == pytest.approx(sum(run["reached"] for run in runs) / len(runs), rel=1e-6)
        assert all(len(run["cpu"]) == len(run["values"]) > 1 for run in runs)
    assert "runs" not in samples["exploration"]


def test_a_recipe_that_does_not_pay_is_laid_out_too() -> None:
    rows, goal = time_to_target.summarize("task", simulated("Bad", "Idle"))
    assert [row[0] for row in rows] == ["task: baseline", "task: recipe"]
    assert cells(rows, "recipe")["verdict"] == "does not"
    assert not goal.met
    assert goal.value > 1.3


def test_a_recipe_of_one_part_is_not_compared_with_itself() -> None:
    rows, _ = time_to_target.summarize("task", simulated("Good"))
    assert [row[0] for row in rows] == ["task: baseline", "task: recipe"]


def test_runs_that_missed_the_target_count() -> None:
    simulation = Simulation({"Never": Effect(1.0, ceiling=-0.05)})
    rows, goal = time_to_target.summarize("task", confirm_recipe(simulation, GOAL, method("Never")))
    recipe = cells(rows, "recipe")
    assert (recipe["seconds"], recipe["reached"], recipe["verdict"]) == ("never", "0 of 6", "does not")
    assert float(recipe["times the baseline's"]) > 1
    assert not goal.met
    nothing = confirm_recipe(Simulation(EFFECTS), GOAL, method("Good"), budget=10.0)
    rows, goal = time_to_target.summarize("task", nothing)
    assert [row[1] for row in rows] == ["never", "never"]
    assert (goal.value, goal.verdict) == (math.inf, "unclear: nothing was compared")


def test_measure_asks_explore_to_confirm_and_lays_out_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def explore(program: object, **arguments: Any) -> Exploration:
        asked.append({**arguments, "program": program})
        return simulated("Good", "Help")

    monkeypatch.setattr(composer, "explore", explore)
    report = time_to_target.measure()
    assert [one["program"] for one in asked] == [task.program for task in TASKS.values()]
    assert [one["confirm"] for one in asked] == [task.recipe for task in TASKS.values()]
    assert {one["clock"] for one in asked} == {"cpu"}
    assert {one["without"] for one in asked} == {("batch size",)}
    assert [len(row) for row in report.rows] == [len(report.columns)] * 8
    assert len(report.goals) == len(TASKS)
    assert any(note.startswith("vision: 3,000 digits") for note in report.notes)
    json.dumps(report.samples, allow_nan=False)
    asked.clear()
    time_to_target.measure(["language"], 6, is_tuned=False)
    assert (asked[0]["pairs"], asked[0]["without"]) == (6, ("batch size", "learning rate"))


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_recipe_is_one_that_explore_can_confirm(task: Task) -> None:
    recipe = GivenRecipe.of(task.recipe)
    variant = recipe.variant(ProgramFacts(learning_rates=(0.02,)))
    assert variant != BASELINE
    assert len({one.name for one in variant.single}) == len(task.recipe)
    assert apply([Assignment.parse(one) for one in recipe.changes if "+=" in one], {"algorithms": None})


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_program_trains_and_evaluates_what_its_target_names(task: Task) -> None:
    goal = composer.exploration.Goal.parse(task.target)
    with task.program() as trainer:
        trainer.fit(duration="10ba")
        trainer.eval(subset_num_batches=1)
        assert math.isfinite(float(trainer.state.eval_metric_values[goal.metric]))


@pytest.mark.slow
def test_splits_share_nothing() -> None:
    digits = tasks.splits_of_digits()
    weights = torch.rand(28 * 28, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    train, held_out = (set((one.columns[0].flatten(1).double() @ weights).tolist()) for one in digits.values())  # type: ignore[index]
    assert [len(digits[name]) for name in digits] == [3000, 2000]
    assert not train & held_out


def test_labels_are_the_next_bytes() -> None:
    for table in tasks.source_code().values():
        inputs, labels = (table.columns[name] for name in ("input_ids", "labels"))  # type: ignore[index]
        assert inputs.shape == labels.shape == (len(table), language_model.SEQUENCE)
        assert torch.equal(inputs[:, 1:], labels[:, :-1])
        assert labels.max() < language_model.VOCABULARY


def test_evaluations_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(training.time, "process_time", lambda: float(next(clock)))
    watch = training.Watch("metric")

    class State:
        eval_metric_values = {"metric": torch.tensor(0.5)}

    watch.fit_start(State(), None)
    for _ in range(3):
        watch.eval_before_all(State(), None)
        watch.eval_after_all(State(), None)
    assert watch.curve.cpu == [1.0, 2.0, 3.0]
    assert watch.curve.values == [0.5] * 3


def test_methods_change_the_language_model() -> None:
    from composer.functional import apply_alibi

    model = language_model.LanguageModel()
    apply_alibi(model, language_model.SEQUENCE)
    assert not any(isinstance(module, nn.Embedding) for module in model.modules() if module is not model.tokens)
    batch = {"input_ids": torch.randint(language_model.VOCABULARY, (1, 8))}
    changed = {"input_ids": batch["input_ids"].clone()}
    changed["input_ids"][0, 5] += 1
    changed["input_ids"] %= language_model.VOCABULARY
    before, after = model(batch), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])  # causal still
    assert not torch.equal(before[:, 5:], after[:, 5:])
