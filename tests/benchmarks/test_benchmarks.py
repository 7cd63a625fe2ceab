"""The benchmarks measure what they say and lay it out; how fast anything is, no test asks."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from benchmarks import contenders, engine_cost, environment, import_time, peak_memory, report, run, step_overhead
from benchmarks.report import Goal, Report
from composer.core.event_plan import Planner

TINY = {"steps": 3, "warmup": 1}


def test_contenders_take_the_same_steps() -> None:
    """The raw loop, the one by hand and ours end with the same weights, so that the same work is timed."""
    weights = []
    for name in ("raw", "composer"):
        torch.manual_seed(0)
        batches = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(3)]
        module = torch.nn.Linear(4, 3)
        marks: list[int] = []
        task = contenders.Task(
            contenders.make_loader(batches, 4, 2, lambda seen=marks: seen.append(1)), module, num_classes=3
        )
        contenders.CONTENDERS[name].train(task)
        assert len(marks) == 2
        weights.append(module.weight.detach())
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)


def test_full_calls_metric_schedule_and_callbacks(capsys: pytest.CaptureFixture[str]) -> None:
    batches = [(torch.randn(8, 4), torch.randint(3, (8,)))]
    for train in (contenders.train_composer, contenders.train_composer_by_default):
        loader = contenders.make_loader(batches, 2, 1, lambda: None, tail=0)
        task = contenders.Task(loader, torch.nn.Linear(4, 3), full=True, num_classes=3)
        train(task)
        assert task.seen == [contenders.NUM_CALLBACKS * 3]
        assert "Accuracy" in capsys.readouterr().err  # the progress bar has shown it


def test_loader_marks_the_steps_between() -> None:
    seen: list[object] = []
    loader = contenders.make_loader([([0],), ([1],)], steps=3, warmup=2, mark=lambda: seen.append("mark"), tail=1)
    for batch in loader:
        seen.append(batch[0][0])
    assert seen == [0, 1, "mark", 0, 1, 0, "mark", 1]
    assert len(loader) == 6


@pytest.mark.slow
def test_step_overhead_in_processes_of_their_own() -> None:
    found = step_overhead.measure(["raw", "composer"], rounds=1, repeats=1, **TINY)
    assert [row[0] for row in found.rows] == [
        "bare: hand-written loop",
        "bare: composer",
        "full: hand-written loop",
        "full: composer",
    ]
    assert all(row[1] > 0 for row in found.rows)
    assert [goal.limit for goal in found.goals] == [1.05, 25]  # those of full need "hand"
    assert set(found.samples) == {"raw", "composer"}
    # What was built for CUDA may say so in the module and not in the package.
    assert found.machine["libraries"]["torch"] in (torch.__version__, torch.__version__.partition("+")[0])


def test_step_overhead_compares_within_rounds() -> None:
    """A round in which everything is twice as slow changes neither the difference's median nor the ratio."""
    samples = {
        "raw": {"bare": [[100.0], [200.0], [100.0], [100.0], [100.0]]},
        "composer": {
            "bare": [[110.0], [220.0], [110.0], [110.0], [110.0]],
            "full": [[150.0], [300.0], [150.0], [150.0], [150.0]],
        },
        "hand": {"full": [[140.0], [280.0], [140.0], [140.0], [140.0]]},
        "default": {"full": [[160.0], [320.0], [160.0], [160.0], [160.0]]},
    }
    found = step_overhead._report(samples, 5, 1, 10, "cpu", "wall")
    assert [(goal.value, goal.met) for goal in found.goals] == [
        (pytest.approx(1.1), False),
        (10, True),
        (pytest.approx(150 / 140), True),
        (pytest.approx(160 / 140), False),
    ]


def test_step_overhead_on_a_busy_machine_is_no_success() -> None:
    samples = {
        "raw": {"bare": [[100.0], [200.0], [150.0], [120.0]]},
        "composer": {"bare": [[100.0], [120.0], [130.0], [120.0]], "full": [[100.0]] * 4},
        "hand": {"full": [[100.0]] * 4},
    }
    found = step_overhead._report(samples, 4, 1, 10, "cpu", "wall")
    assert [goal.met for goal in found.goals] == [False, False, False]
    assert found.goals[1].verdict.startswith("unclear")


@pytest.mark.slow
def test_import_time_in_fresh_processes() -> None:
    found = import_time.measure(["composer"], rounds=1)
    assert [row[0] for row in found.rows][:2] == ["import torch", "import composer, over torch"]
    assert found.rows[0][1] > 0
    assert found.goals[-1].met, "import composer brings in " + str(found.samples["import composer"][0]["heavy"])


def test_engine_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[Any] = []
    plan = Planner._plan
    monkeypatch.setattr(Planner, "_plan", lambda self, event: planned.append(event) or plan(self, event))
    found = engine_cost.measure(rounds=2, calls=200)
    assert found.rows[0][0] == "empty call"
    assert found.rows[0][4] == 0
    assert len(found.samples["run_event, two listeners"]) == 2
    # In each round, two events once in the loop of the engine, and three times two calls outside of it.
    assert len(planned) == 2 * (2 + 3 * 2)


def test_peak_memory_compares_with_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_memory, "BLOCKS", (1, 1))
    monkeypatch.setattr(contenders, "ask", lambda name, target, **arguments: peak_memory.peak(name, **arguments))
    found = peak_memory.measure(["raw", "composer"], rounds=1, steps=2, image=8, batch_size=2, width=2)
    assert [row[0] for row in found.rows] == ["bare: hand-written loop", "bare: composer"]
    assert found.goals[0].limit == 1.01
    with pytest.raises(ValueError, match="hand-written"):
        peak_memory.measure(["composer"], rounds=1)


def test_a_failing_process_is_reported() -> None:
    with pytest.raises(RuntimeError, match=r"No module named 'benchmarks\.nothing'"):
        environment.call("benchmarks.nothing:at_all", {})


def test_report(tmp_path) -> None:
    goals = [Goal("speed", 2.0, 3, "us"), Goal("memory", 5.0, 1)]
    found = Report("name", "Title", ["what", "median"], [["a", 1234.5], ["b", math.pi]], goals, ["note"], {"a": [1.0]})
    text = found.text()
    assert "1,234" in text
    assert "3.142" in text
    assert "speed: 2 us, at most 3 us: met" in text
    assert "memory: 5, at most 1: missed" in text
    found.write(tmp_path)
    assert "| b | 3.142 |" in (tmp_path / "name.md").read_text()
    assert [goal["met"] for goal in json.loads((tmp_path / "name.json").read_text())["goals"]] == [True, False]


@pytest.mark.parametrize("separate", [False, True])
def test_samples_are_read_again(tmp_path, separate: bool) -> None:
    samples = {"a-1": {"seconds": [1.0, 2.0]}, "b-1": {"seconds": []}}
    Report("name", "Title", ["what"], [["a"]], [], [], samples, separate_samples=separate).write(tmp_path)
    assert report.published_samples("name", tmp_path) == samples
    assert sorted(path.name for path in tmp_path.glob("name/*")) == (["a-1.json", "b-1.json"] if separate else [])


def test_spread_is_half_the_interquartile_range() -> None:
    assert report.spread([1.0, 2.0, 3.0, 4.0, 5.0]) == 1.0
    assert report.spread([7.0]) == 0.0


def test_run_runs_and_prints_what_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["run", "--quick", "engine_cost"])
    monkeypatch.setattr(
        engine_cost,
        "time_calls",
        lambda rounds, calls: {name: [1.0, 2.0] for name in ("empty call", "run_event, no listener")},
    )
    assert run.main() == 0
    shown = capsys.readouterr().out
    assert "run_event, no listener" in shown
    assert "1 of 1 goals met" in shown


def test_a_benchmark_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**given: object) -> report.Report:
        raise RuntimeError("no such package")

    monkeypatch.setattr("sys.argv", ["run", "--quick", "ledger_cost", "engine_cost"])
    monkeypatch.setattr(run.ledger_cost, "measure", fails)
    monkeypatch.setattr(
        engine_cost,
        "time_calls",
        lambda rounds, calls: {name: [1.0, 2.0] for name in ("empty call", "run_event, no listener")},
    )
    assert run.main() == 1
    shown = capsys.readouterr()
    assert "1 of 1 goals met" in shown.out
    assert "no such package" in shown.err
    assert shown.err.endswith("failed: ledger_cost\n")
