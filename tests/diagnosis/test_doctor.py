"""The whole diagnosis of small programs, with real trials."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from composer.diagnosis.doctor import doctor
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
