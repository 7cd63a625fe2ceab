"""The whole diagnosis of small programs, with real trials."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from composer.diagnosis.blocks import Block
from composer.diagnosis.doctor import _block_steps, _break_even, _is_decided, doctor
from composer.diagnosis.interleave import Contest
from composer.diagnosis.paired import Ratio
from composer.diagnosis.remedies import Remedy
from composer.diagnosis.report import Report, Tried
from composer.diagnosis.verdict import Verdict
from composer.trials import Target


@pytest.fixture
def forked(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one fork server for all tests."""
    monkeypatch.setattr("composer.trials.workspace.ForkServer", lambda *_: contextlib.nullcontext(server))


@pytest.mark.usefixtures("forked")
def test_a_sleeping_data_set_is_found_and_workers_help() -> None:
    told: list[str] = []
    target = Target("function", "tests.diagnosis.bottlenecks:sleeping_dataset")
    report = doctor(target, steps=5, remedies=["workers"], progress=told.append)
    assert (report.verdict.cause, report.ok) == ("data", False)
    assert "Sleeping.make" in report.verdict.where
    assert sum(report.shares.values()) == pytest.approx(1)
    assert {one.remedy.name for one in report.tried} == {"workers-1", "workers-2"}
    assert {one.difference for one in report.tried} == {"batches"}  # workers draw other random numbers
    assert max(one.ratio.value for one in report.tried if one.ratio) > 1.1
    assert "num_workers" in str(report)
    assert report.to_json()["verdict"]["cause"] == "data"
    assert any("workers-2" in each for each in told)


def test_a_block_is_whole_epochs_where_these_are_short() -> None:
    assert _block_steps(0.02, 6, ranks=1) == 18  # 0.36 s, three epochs
    assert _block_steps(0.05, 20, ranks=1) == 20  # an epoch of 1 s
    assert _block_steps(0.05, 200, ranks=1) == 6  # 0.3 s of an epoch of 10 s
    assert _block_steps(1.0, None, ranks=1) == 2
    assert _block_steps(0.05, None, ranks=2) == 12
    assert _block_steps(1e-4, None, ranks=1) == 256


def test_a_remedy_that_clearly_does_not_pay_is_measured_less() -> None:
    assert _is_decided(Ratio(0.99, 0.97, 1.01), 3, 1.0)
    assert not _is_decided(Ratio(1.5, 1.49, 1.51), 3, 1.0)
    assert _is_decided(Ratio(1.5, 1.49, 1.51), 5, 1.0)
    assert not _is_decided(Ratio(1.5, 1.4, 1.6), 5, 1.0)


def test_a_vague_gain_is_measured_for_longer() -> None:
    assert _is_decided(Ratio(1.5, 1.4, 1.6), 20, 16.0)
    assert not _is_decided(Ratio(1.5, 1.1, 2.4), 20, 16.0)
    assert _is_decided(Ratio(1.01, 0.8, 1.3), 20, 16.0)


def test_slow_first_steps_are_made_up_for_after_some_steps() -> None:
    kinds = ("",) * 4
    contest = Contest(Path("folder"), dict.fromkeys(("base", "compile")), None, steps=4)  # type: ignore[arg-type]
    contest.warmups = {"base": Block((1.0,) * 4, kinds, ("",), 5.0), "compile": Block((0.5,) * 4, kinds, ("",), 62.5)}
    assert _break_even(contest, {"base": [1.0, 1.0], "compile": [0.5, 0.5]}, "compile") == 120
    assert _break_even(contest, {"base": [0.5, 0.5], "compile": [0.5, 0.5]}, "compile") is None
    tried = Tried(Remedy("compile", lines="compile_config={}"), Ratio(2.0, 1.9, 2.1), pays=True, break_even=120)
    report = Report(Verdict("none", "Nothing is wrong."), 1.0, {"forward": 1.0}, tried=[tried])
    assert "compile_config={}  (in runs of more than 120 steps)" in str(report)
    assert report.to_json()["remedies"][0]["break_even"] == 120


@pytest.mark.usefixtures("forked")
def test_the_steps_lines_command_and_trace_are_in_the_report(tmp_path: Path) -> None:
    target = Target("function", "tests.diagnosis.bottlenecks:sleeping_dataset")
    trace = tmp_path / "steps.trace.json"
    report = doctor(target, steps=5, remedies=[], trace=trace, folder=tmp_path / "trials")
    assert len(report.steps) == 5
    assert report.lines[0]["in"] == "Sleeping.make"
    assert 0 < report.lines[0]["share"] <= 1
    assert report.command == target.name
    assert report.trace is not None and report.trace.path == str(trace)
    assert json.loads(trace.read_text())["traceEvents"]
    assert str(trace) in str(report)
    told = report.to_json()
    assert told["trace"]["steps"] == 3
    assert json.loads(json.dumps(told))["steps"] == report.steps
    assert {"torch", "device_name", "threads", "cores"} <= report.facts.keys()


@pytest.mark.usefixtures("forked")
def test_a_program_that_fails_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="does not train"):
        doctor(Target("function", "tests.diagnosis.test_doctor:fails"), steps=5)


def fails() -> Any:
    raise ValueError("no data")


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="steps must be at least 5"):
        doctor(["train.py"], steps=1)
    with pytest.raises(ValueError, match="workers"):
        doctor(["train.py"], remedies=["worker"])
    with pytest.raises(FileNotFoundError, match=r"trace=.*Create it first"):
        doctor(Target("function", "a:b"), trace="no/such/folder/x.json")
