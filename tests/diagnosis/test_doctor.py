"""The whole diagnosis of small programs, with real trials."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from composer.diagnosis.doctor import _block_steps, _break_even, _Diagnosis, _is_decided, _with_gains, doctor
from composer.diagnosis.remedies import Remedy
from composer.diagnosis.report import Report, Tried
from composer.diagnosis.verdict import Verdict
from composer.statistics.paired import Ratio
from composer.trials import Target
from composer.trials.blocks import Block
from composer.trials.interleave import Contest
from tests.trials.programs import gone


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


@pytest.mark.parametrize(
    ("before", "share", "text"),
    [
        (Verdict("none", "Nothing is wrong."), 0.2, "the search for unused parameters takes 20%"),
        (Verdict("host", "The batches are small.", 0.7), 0.2, "the search for unused parameters takes 20%"),
        (Verdict("communication", "They communicate for 50%.", 0.5), 0.5, "50%, the search for unused parameters"),
        (Verdict("data", "Waiting takes 40%.", 0.4), 0.4, None),
    ],
)
def test_a_search_for_unused_parameters_that_takes_time_is_part_of_the_verdict(
    before: Verdict, share: float, text: str | None
) -> None:
    tried = Tried(Remedy("find_unused"), Ratio(1.25, 1.2, 1.3), pays=True)
    after = _with_gains(before, [tried])
    assert after.share == pytest.approx(share)
    if text is None:
        assert after == before
    else:
        assert after.cause == "communication"
        assert after.where == "find_unused_parameters"
        assert text in after.text


def test_slow_first_steps_are_made_up_for_after_some_steps() -> None:
    kinds = ("",) * 4
    contest = Contest(Path("folder"), dict.fromkeys(("base", "compile")), None, steps=4)  # type: ignore[arg-type]
    contest.warmups = {"base": Block((1.0,) * 4, kinds, ("",), 5.0), "compile": Block((0.5,) * 4, kinds, ("",), 62.5)}
    assert _break_even(contest, {"base": [1.0, 1.0], "compile": [0.5, 0.5]}, "compile") == 120
    assert _break_even(contest, {"base": [0.5, 0.5], "compile": [0.5, 0.5]}, "compile") is None
    tried = Tried(Remedy("compile", lines="compile_config={}"), Ratio(2.0, 1.9, 2.1), pays=True, break_even=120)
    report = Report(Verdict("none", "No bottleneck."), 1.0, {"forward": 1.0}, tried=[tried])
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


_HANGS = """
class Stuck(TensorDataset):
    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is not None:
            time.sleep(600)
        time.sleep(0.004)
        return super().__getitem__(index)

train(data=Stuck)
"""


@pytest.mark.usefixtures("forked")
def test_a_remedy_that_hangs_is_ended_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer.diagnosis.doctor._LEAST_LIMIT", 1.0)
    monkeypatch.setattr("composer.diagnosis.doctor._PATIENCE", 0.0)
    monkeypatch.setattr("composer.diagnosis.doctor._CONTEST_SECONDS", 1.0)
    monkeypatch.setattr("composer.diagnosis.doctor._LONGEST_SECONDS", 1.0)
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT + _HANGS)
    report = doctor([str(script)], steps=5, remedies=["workers", "progress_bar"])
    errors = {one.remedy.name: one.error for one in report.tried}
    assert errors.pop("workers-1") == errors.pop("workers-2") == "it did not end within 1 s"
    assert set(errors) <= {"progress_bar"} and set(errors.values()) <= {""}
    assert "workers-1: does not run: it did not end within 1 s" in str(report)
    assert gone(str(tmp_path))


def test_a_remedy_has_some_times_the_time_of_the_unchanged_run(tmp_path: Path) -> None:
    target = Target("function", "a:b")
    one = _Diagnosis(target, tmp_path, 5, None, (), 1, 300.0, None, None, None)
    one._measured = 20.0
    assert one._limit_of(Remedy("workers-2")) == 60
    assert one._limit_of(Remedy("compile+fused")) == 150  # which may take long to start
    one._measured = 2.0
    assert one._limit_of(Remedy("workers-2")) == 30


@pytest.mark.usefixtures("forked")
def test_a_program_that_fails_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="does not train"):
        doctor(Target("function", "tests.diagnosis.test_doctor:fails"), steps=5)


_BOARD = """
import requests
from composer.loggers import LoggerDestination

class Board(LoggerDestination):
    def log_hyperparameters(self, hyperparameters):
        {}["server"]
    def log_images(self, images, *args, **kwargs):
        self._draw(images)
    def _draw(self, images):
        raise OSError("no font")
    def log_table(self, *args, **kwargs):
        raise ValueError

class Far(LoggerDestination):
    def log_metrics(self, metrics, step=None):
        requests.get("http://192.0.2.1/")

class Images(Callback):
    def init(self, state, logger):
        logger.log_hyperparameters({"lr": 0.1})
    def batch_end(self, state, logger):
        logger.log_images(torch.zeros(2, 2))
        logger.log_table(["a"], [[1]])

import threading
def write():
    raise RuntimeError("the disk is full")
threading.Thread(target=write, name="writer").start()
model = ComposerClassifier(torch.nn.Linear(4, 2), num_classes=2)
Trainer(model=model, train_dataloader=loader(TensorDataset), max_duration="9ep", callbacks=Images(),
        loggers=[Board(), Far()]).fit()
"""


@pytest.mark.usefixtures("forked")
def test_what_loggers_raise_is_told(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT + _BOARD)
    report = doctor([str(script)], steps=5, remedies=[])
    told = [(each["source"], each["call"], each["in"], each["error"]) for each in report.errors]
    assert set(told) == {
        ("Board", "log_hyperparameters", "Board.log_hyperparameters", "KeyError: 'server'"),
        ("Board", "log_images", "Board._draw", "OSError: no font"),
        ("Board", "log_table", "Board.log_table", "ValueError"),
        ("thread writer", "", "write", "RuntimeError: the disk is full"),
    }
    assert not report.ok and not report.to_json()["ok"]
    line = _SCRIPT.count("\n") + _BOARD[: _BOARD.index("raise OSError")].count("\n") + 1
    assert f"Board.log_images, train.py:{line} (Board._draw): OSError: no font, " in str(report)
    assert "Not measured, since they write elsewhere: Far" in str(report)


def test_a_report_with_errors_is_not_ok() -> None:
    line = {"file": "a.py", "line": 1, "in": "f"}
    error = {"source": "Board", "call": "log_images", **line, "error": "OSError", "count": 1}
    report = Report(Verdict("none", "No bottleneck."), 1.0, {"forward": 1.0}, errors=[error])
    assert not report.ok
    assert Report(Verdict("none", "No bottleneck."), 1.0, {"forward": 1.0}).ok


def fails() -> Any:
    raise ValueError("no data")


_SCRIPT = """
import time, torch
from torch.utils.data import DataLoader, TensorDataset
from composer import Callback, Trainer
from composer.models import ComposerClassifier

class Nap(Callback):
    def batch_end(self, state, logger):
        time.sleep(0.03)

class Stop(Callback):
    def batch_end(self, state, logger):
        if state.timestamp.batch.value == STOP:
            state.stop_training()

class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.004)
        return super().__getitem__(index)

def loader(kind):
    return DataLoader(kind(torch.ones(64, 4), torch.zeros(64, dtype=torch.long)), batch_size=8)

def train(*callbacks, data=TensorDataset):
    model = ComposerClassifier(torch.nn.Linear(4, 2), num_classes=2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = Trainer(
        model=model, train_dataloader=loader(data), optimizers=optimizer, max_duration="9ep", callbacks=callbacks
    )
    trainer.fit()
    return trainer

"""


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("calls", "remedies"),
    [
        ("train(); train(data=Slow)", ["workers"]),
        ("train().fit(duration='4ep', train_dataloader=loader(Slow))", []),
    ],
)
def test_the_call_of_fit_that_is_meant_is_measured(tmp_path: Path, calls: str, remedies: list[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT + calls)
    report = doctor([str(script)], steps=5, remedies=remedies, fit=2)
    assert report.verdict.cause == "data"
    assert "Slow.__getitem__" in report.verdict.where
    assert {one.difference for one in report.tried} <= {"none", "rounding"}
    assert not remedies or max(one.ratio.value for one in report.tried if one.ratio) > 1.1


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("stop", [8, 20])
def test_what_a_program_that_stops_early_trains_is_measured(tmp_path: Path, stop: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT.replace("STOP", str(stop)) + "train(Nap(), Stop())")
    report = doctor([str(script)], steps=10, remedies=[])
    assert report.verdict.cause == "callback"
    assert ("train.py:9 (" in str(report)) == (stop == 20)  # lines are sampled after the steps that are timed
    script.write_text(_SCRIPT.replace("STOP", "4") + "train(Nap(), Stop())")
    with pytest.raises(
        RuntimeError, match=r"stopped training after .* steps, too few to measure\. Turn off what stops"
    ):
        doctor([str(script)], steps=10, remedies=[])


_HOOK = """
def rows(gradient):
    total = gradient.sum()
    for row in range(300):
        total = total + gradient[row % len(gradient)].sum()
    return gradient * (1 + 0 * total)

class Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return rows(gradient)

class Net(torch.nn.Linear):
    def forward(self, value):
        value = super().forward(value)
        if KIND == "function":
            return Rows.apply(value)
        value.register_hook(rows)
        return value

torch.nn.Linear = Net
train()
"""


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("kind", ["hook", "function"])
def test_a_loop_in_the_backward_pass_has_its_line(tmp_path: Path, kind: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT + _HOOK.replace("KIND", repr(kind)))
    verdict = doctor([str(script)], steps=5, remedies=[]).verdict
    assert verdict.cause == "host"
    assert "(rows)" in verdict.where
    assert verdict.where in verdict.text


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="steps must be at least 5"):
        doctor(["train.py"], steps=1)
    with pytest.raises(ValueError, match="workers"):
        doctor(["train.py"], remedies=["worker"])
    with pytest.raises(FileNotFoundError, match=r"trace=.*Create it first"):
        doctor(Target("function", "a:b"), trace="no/such/folder/x.json")
