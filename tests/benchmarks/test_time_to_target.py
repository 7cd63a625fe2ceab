"""TimeToTarget trains in pairs, tunes on other data than it tests on, and reads its curves rightly."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import language_model, tasks, time_to_target, training
from benchmarks.tasks import TASKS
from benchmarks.training import Curve, Setting, Table, Task

TINY = Setting(0.01, 4)


def little(task: Task) -> dict[str, Table]:
    """Few examples in each split, of what the task has there."""
    torch.manual_seed(0)
    if task.name == "language":
        return {name: Table(table[list(range(16))]) for name, table in task.splits().items()}
    return {
        name: Table((torch.rand(16, 1, 28, 28), torch.randint(10, (16,)))) for name in ("train", "validation", "test")
    }


def curve(*values: float) -> Curve:
    """One evaluation a second, of which the wall takes two."""
    seconds = [1.0 + place for place in range(len(values))]
    return Curve(seconds, [2 * value for value in seconds], list(values))


def test_interval_is_students() -> None:
    """Against the textbook: mean 5, deviation 2 of four values, 3.182 / sqrt(4) deviations to each side."""
    values = [5 - math.sqrt(6), 5.0, 5.0, 5 + math.sqrt(6)]
    assert time_to_target.interval(values) == pytest.approx((5, 5 - 3.182, 5 + 3.182))
    assert time_to_target.interval([3.0]) == (3.0, -math.inf, math.inf)
    with pytest.raises(ValueError, match="at most 10"):
        time_to_target.interval([1.0] * 11)


def test_interval_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = [stats.t.ppf(0.975, degrees) for degrees in range(1, 10)]
    assert list(time_to_target._STUDENT) == pytest.approx(expected, abs=1e-3)


def test_ratios_are_of_pairs() -> None:
    ratio = time_to_target.ratio_interval([2.0, 8.0, None, 1.0], [1.0, 2.0, 1.0, None])
    assert ratio is not None
    assert ratio[0] == pytest.approx(math.sqrt(2 * 4))
    assert ratio[1] < ratio[0] < ratio[2]
    assert time_to_target.ratio_interval([None], [1.0]) is None


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_target_is_reached_in_the_right_direction(task: Task) -> None:
    better = task.target + (0.01 if task.higher else -0.01)
    found = curve(task.target - (better - task.target), task.target, better)
    assert found.time_to(task.is_reached) == 2.0
    assert found.time_to(task.is_reached, "wall") == 4.0
    assert curve(found.values[0]).time_to(task.is_reached) is None


def test_best_gets_there_first_of_all() -> None:
    """Faster now and then is worth less than getting there each time."""
    task = TASKS["vision"]
    slow, fast, never = Setting(1, 1), Setting(2, 1), Setting(3, 1)
    trials = {
        fast: [curve(1.0), curve(0.0)],
        slow: [curve(0.0, 0.0, 1.0), curve(0.0, 0.0, 0.0, 1.0)],
        never: [curve(0.0), curve(0.0)],
    }
    assert time_to_target.best(trials, task) == slow
    del trials[slow]
    assert time_to_target.best(trials, task) == fast


def test_variants_leave_out_each_method_once() -> None:
    for task in TASKS.values():
        choices = time_to_target.variants(task)
        assert len(choices) == 2 + len(task.methods)
        assert not choices["baseline"]
        assert choices["recipe"] == task.methods
        for name in task.methods:
            assert set(task.methods) - set(choices[f"recipe without {name}"]) == {name}


def test_summary() -> None:
    task = TASKS["vision"]
    curves = {
        "baseline": [curve(0.0, 0.0, 0.0, 1.0), curve(0.0, 1.0)],
        "recipe": [curve(0.0, 1.0), curve(1.0)],
        "recipe without EMA": [curve(0.0, 0.0), curve(1.0)],
    }
    rows, goal = time_to_target.summarize(task, curves)
    assert [row[0] for row in rows] == [f"vision: {name}" for name in curves]
    assert [row[1] for row in rows] == [3.0, 1.5, 1.0]
    assert [row[4] for row in rows] == ["2 of 2", "2 of 2", "1 of 2"]
    assert [row[5] for row in rows] == ["-", "0.50", "0.50"]
    assert [row[7] for row in rows] == ["-", "-", "1.00"]
    assert (goal.value, goal.met) == (pytest.approx(0.5), True)
    curves["recipe"][1] = curve(0.0)
    goal = time_to_target.summarize(task, curves)[1]
    assert goal.verdict == "unclear: 1 runs did not get to the target"


def test_learning_rate_rises_and_falls_evenly() -> None:
    assert [training.trapezoid(step, 20) for step in (0, 1, 2, 11, 20, 21)] == pytest.approx([0.5, 1, 1, 0.5, 0, 0])


@pytest.mark.slow
def test_splits_share_nothing() -> None:
    digits = tasks.splits_of_digits()
    weights = torch.rand(28 * 28, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    seen = [set((digits[name].columns[0].flatten(1).double() @ weights).tolist()) for name in digits]  # type: ignore[index]
    assert [len(digits[name]) for name in digits] == [3000, 1000, 1000]
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]


def test_labels_are_the_next_bytes() -> None:
    for table in tasks.source_code().values():
        inputs, labels = (table.columns[name] for name in ("input_ids", "labels"))  # type: ignore[index]
        assert inputs.shape == labels.shape == (len(table), language_model.SEQUENCE)
        assert torch.equal(inputs[:, 1:], labels[:, :-1])
        assert labels.max() < language_model.VOCABULARY


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_training_is_paired(task: Task) -> None:
    """The same seed and methods give the same values; another seed or the methods others."""
    data = little(task)
    task = replace(task, splits=lambda: data, batch_size=8)
    first, again, other = (task.train({}, TINY, seed, num_evaluations=2).values for seed in (0, 0, 1))
    assert first == again != other
    found = task.train(task.methods, TINY, seed=0, split="validation", num_evaluations=2)
    assert found.values != first
    assert len(found.cpu) == len(found.wall) == len(found.values) == 2
    assert 0 < found.cpu[0] < found.cpu[1]


def test_evaluations_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(training.Watch, "_now", staticmethod(lambda: (float(next(clock)), 0.0)))
    watch = training.Watch("metric")

    class State:
        eval_metric_values = {"metric": torch.tensor(0.5)}

    watch.fit_start(State(), None)
    for _ in range(3):
        watch.eval_before_all(State(), None)
        watch.eval_after_all(State(), None)
    assert watch.curve.cpu == [1.0, 2.0, 3.0]
    assert watch.curve.values == [0.5] * 3


def test_measure_lays_out_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    def train(self: Task, methods: Any, setting: Setting, seed: int, split: str = "test", **_: Any) -> Curve:
        calls.append((tuple(methods), setting, seed, split))
        return curve(0.0, 0.97 if self.higher else 1.0)

    monkeypatch.setattr(Task, "train", train)
    report = time_to_target.measure(seeds=2)
    assert {split for _, _, seed, split in calls if seed in time_to_target.TUNING_SEEDS} == {"validation"}
    assert {seed for _, setting, seed, split in calls if split == "test" and setting.steps > 6} == {1, 2}
    assert len(report.rows) == sum(2 + len(task.methods) for task in TASKS.values())
    assert [len(row) for row in report.rows] == [len(report.columns)] * len(report.rows)
    assert all(goal.value == 1.0 for goal in report.goals)
    assert "vision: baseline" in report.text()


def test_methods_change_the_language_model() -> None:
    model = language_model.LanguageModel()
    for make in TASKS["language"].methods.values():
        if type(make()).__name__ == "Alibi":
            from composer.functional import apply_alibi

            apply_alibi(model, language_model.SEQUENCE)
    assert not any(isinstance(module, nn.Embedding) for module in model.modules() if module is not model.tokens)
    batch = {"input_ids": torch.randint(language_model.VOCABULARY, (1, 8))}
    changed = {"input_ids": batch["input_ids"].clone()}
    changed["input_ids"][0, 5] += 1
    changed["input_ids"] %= language_model.VOCABULARY
    before, after = model(batch), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])  # causal still
    assert not torch.equal(before[:, 5:], after[:, 5:])
