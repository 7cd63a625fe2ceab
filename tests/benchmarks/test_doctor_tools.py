"""The comparison of tools that name bottlenecks: what counts as right, and its table, never how good a tool is."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import doctor_tools
from benchmarks.doctor_runs import lines_of, profile
from benchmarks.doctor_tools import Answer, Case, judge_profile, judge_traceml, measure

OWN = "tests.diagnosis.bottlenecks"


def traceml(case: Case, kind: str, phase: str | None = None) -> bool:
    return judge_traceml(case, {"kind": kind, "status": kind}, {"diagnosis": {"phase": phase}}, 1.0).right


@pytest.mark.parametrize(
    ("cause", "where", "kind", "phase", "right"),
    [
        ("data", "", "INPUT_BOUND", "input", True),
        ("callback", "", "INPUT_BOUND", "input", False),
        ("saving", "", "RESIDUAL_HEAVY", "residual", True),
        ("data", "", "RESIDUAL_HEAVY", "residual", False),
        ("none", "", "RESIDUAL_HEAVY", "residual", False),
        ("none", "", "COMPUTE_BOUND", "backward", True),
        ("compute", "float64", "COMPUTE_BOUND", "backward", True),
        ("optimizer", "LoopAdam", "COMPUTE_BOUND", "optimizer", True),
        ("optimizer", "LoopAdam", "COMPUTE_BOUND", "backward", False),
        ("host", "Recurrent.forward", "COMPUTE_BOUND", "forward", True),
        ("host", "", "COMPUTE_BOUND", "forward", False),
        ("none", "", "INSUFFICIENT_STEP_TIME_DATA", None, False),
    ],
)
def test_what_a_diagnosis_of_traceml_stands_for(cause: str, where: str, kind: str, phase: str, right: bool) -> None:
    assert traceml(Case(f"{OWN}:any", cause, where), kind, phase) is right


def test_lines_of_a_place() -> None:
    place = lines_of(OWN, "Recurrent.forward")
    whole = lines_of(OWN, "Recurrent")
    assert place is not None
    assert whole is not None
    assert place[0] == "tests/diagnosis/bottlenecks.py"
    assert set(place[1]) < set(whole[1])
    assert lines_of(OWN, "microbatches") is None


def shows(cause: str, where: str, *rows: str, frames: tuple[str, ...] = ()) -> bool:
    return judge_profile(Case(f"{OWN}:any", cause, where), {"rows": list(rows), "frames": frames}, 1.0).right


def test_what_a_profile_shows() -> None:
    found = lines_of(OWN, "Sleeps")
    assert found is not None
    inside, outside = (f"{found[0]}({line}): batch_end" for line in (found[1].start + 1, found[1].stop + 50))
    assert shows("callback", "Sleeps", "aten::mm", inside)
    assert shows("callback", "Sleeps", "aten::mm", frames=("fit", inside))
    assert not shows("callback", "Sleeps", "aten::mm", outside, "<built-in function sleep>")
    assert shows("data", "Sleeping", "aten::mm", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    assert shows("host", "", "aten::mm", "torch/nn/modules/module.py(1782): _call_impl")
    assert not shows("host", "", "aten::mm", "aten::addmm")
    assert shows("none", "", "aten::mm", "torch/utils/data/dataloader.py(720): __next__")
    assert not shows("none", "", "torch/utils/data/dataloader.py(720): __next__", "aten::mm")


def test_a_profile_has_the_planted_line() -> None:
    found = profile(f"{OWN}:sleeping_dataset")
    assert len(found["rows"]) == 3
    place = lines_of(OWN, "Sleeping")
    assert place is not None
    assert any(f"{place[0]}({line}): make" in found["frames"] for line in place[1])
    assert judge_profile(Case(f"{OWN}:sleeping_dataset", "data", "Sleeping"), found, 1.0).right


def test_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(case: Case) -> Answer:
        raise RuntimeError("it did not start")

    def names(cause: str) -> Any:
        return lambda case: Answer(case.cause == cause, cause, 2.0, {})

    tools = {"composer doctor": names("data"), "traceml-ai": names("none"), "torch.profiler": fails}
    monkeypatch.setattr(doctor_tools, "TOOLS", tools)
    programs = {"plain": Case("a:plain", "none"), "sleeps": Case("a:sleeps", "data", "Sleeping")}
    found = measure(programs, list(tools))
    assert [row[:4] for row in found.rows[:4]] == [
        ["sleeps", "data: Sleeping", "right: data", "WRONG: none"],
        ["plain", "nothing", "WRONG: data", "right: none"],
        ["planted bottlenecks named", "", "1 of 1", "0 of 1"],
        ["nothing named where nothing is wrong", "", "0 of 1", "1 of 1"],
    ]
    assert found.rows[0][4] == "WRONG: fails: RuntimeError"
    assert [(goal.value, goal.met) for goal in found.goals] == [(0.0, True), (100.0, False)]


def test_the_programs() -> None:
    own, fresh = doctor_tools.cases(), doctor_tools.cases("fresh")
    assert sum(each.planted for each in own.values()) >= 25
    assert sum(not each.planted for each in own.values()) >= 10
    assert not set(own) & set(fresh)
    assert list(doctor_tools.cases(names=["sleeping"])) == ["sleeping_dataset"]
