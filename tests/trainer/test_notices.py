"""One-line notices of a run appear in the console, the logs and the summary, each once."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Callback, Trainer
from composer.callbacks import EarlyStopper
from tests.common import At, classifier, labeled_data, trainer_of
from tests.forking import Parent
from tests.loggers.terminal import Terminal, screen
from tests.trainer.interrupting import MODES, interrupt_all


class StopLate(Callback):
    def batch_end(self, state, logger):
        if state.timestamp.batch == 3:
            state.stop_training(reason="three are enough")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "composer"]


def run(stream: Any, **arguments: Any) -> Trainer:
    """A run that shows lines on a stream: with bars on a terminal, or as a console does."""
    shown: dict[str, Any] = {"log_to_console": True, "console_log_interval": "1000ba"}
    if isinstance(stream, Terminal):
        shown = {}
    model = classifier()
    defaults: dict[str, Any] = {
        "optimizers": torch.optim.SGD(model.parameters(), lr=0.1),
        "eval_dataloader": labeled_data(2, seed=2),
        "max_duration": "3ep",
        "run_name": "night",
        "progress_bar": isinstance(stream, Terminal),
    }
    return Trainer(
        model=model, train_dataloader=labeled_data(), console_stream=stream, **{**defaults, **shown, **arguments}
    )


def lines_of(stream: Any) -> list[str]:
    return screen(stream.getvalue()) if isinstance(stream, Terminal) else stream.getvalue().splitlines()


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are broken between words in a narrower terminal."""
    monkeypatch.setenv("COLUMNS", "300")


def split(stream: Any, line: str) -> tuple[int, int]:
    """How often a line was shown while training, and how often in the summary."""
    lines = lines_of(stream)
    begin = next((place for place, text in enumerate(lines) if text.startswith("trained ")), len(lines))
    return lines[:begin].count(line), lines[begin:].count(f"  {line}")


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_run_that_is_stopped_early(stream, caplog) -> None:
    caplog.set_level(logging.INFO, "composer")
    shown, stopper = stream(), EarlyStopper("CrossEntropy", "eval", min_delta=100.0, patience=1)
    run(shown, callbacks=stopper, max_duration="9ep").fit()
    (record,) = told(caplog)
    pattern = r"stopped by EarlyStopper: CrossEntropy [\d.]+ not below [\d.]+ by more than 100 for 2 evaluations"
    assert re.fullmatch(pattern, record[1])
    assert record[0] == "INFO"
    assert split(shown, record[1]) == (1, 1)


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_run_that_is_resumed(stream, caplog, tmp_path) -> None:
    caplog.set_level(logging.INFO, "composer")
    run(io.StringIO(), save_folder=str(tmp_path), save_interval="1ep", max_duration="1ep").fit()
    assert told(caplog) == []
    shown = stream()
    resumed = run(shown, save_folder=str(tmp_path), autoresume=True)
    resumed.fit()
    line = f"resumed from {tmp_path / 'ep1-ba4-rank0.pt'} at epoch 1, batch 4"
    assert told(caplog) == [("INFO", line)]
    assert split(shown, line) == (1, 1)
    resumed.fit(duration="1ep")
    assert split(shown, line)[0] == 1  # and is not reported for the next fit


def test_weights_that_are_loaded(caplog, tmp_path) -> None:
    caplog.set_level(logging.INFO, "composer")
    path = run(io.StringIO(), max_duration="1ep").save_checkpoint(str(tmp_path / "a.pt"))
    run(io.StringIO(), load_path=path, load_weights_only=True)
    assert told(caplog) == [("INFO", f"loaded the weights of {path}")]


def test_stopped_run_with_another_duration(caplog, tmp_path) -> None:
    caplog.set_level(logging.INFO, "composer")
    shown: dict[str, Any] = {"save_folder": str(tmp_path), "callbacks": StopLate(), "autoresume": True}
    run(io.StringIO(), **shown).fit()
    run(io.StringIO(), **shown, max_duration="2ep").fit()
    assert told(caplog)[-1][1] == (
        "resumed although stopped by StopLate: three are enough: max_duration is now 2ep, and was 3ep"
    )


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_loss_that_is_nan(stream, caplog) -> None:
    def poison(state):
        if state.timestamp.batch == 5:
            with torch.no_grad():
                next(state.model.parameters()).fill_(float("nan"))

    caplog.set_level(logging.INFO, "composer")
    shown = stream()
    run(shown, callbacks=At("batch_start", poison)).fit()
    line = "loss is NaN since batch 5 (NaNMonitor raises an error there)"
    assert told(caplog) == [("WARNING", line)]
    assert split(shown, line) == (1, 1)


def test_quiet_run_only_writes_to_logs(caplog, capfd) -> None:
    caplog.set_level(logging.INFO, "composer")
    trainer_of(callbacks=StopLate(), max_duration="9ep").fit()
    assert told(caplog) == [("INFO", "stopped by StopLate: three are enough")]
    assert "".join(capfd.readouterr()) == ""


def test_a_metric_that_was_never_evaluated_is_reported(tmp_path) -> None:
    shown = io.StringIO()
    run(shown, eval_interval=0).fit()
    rows = {line.split()[0]: line.split()[1:] for line in lines_of(shown)[-4:]}
    assert rows["eval/CrossEntropy"] == rows["eval/MulticlassAccuracy"] == ["not", "evaluated"]


def test_summary_of_a_resumed_run_has_earlier_values(tmp_path) -> None:
    shown: dict[str, Any] = {"save_folder": str(tmp_path), "autoresume": True, "eval_interval": "4ba"}
    first = run(io.StringIO(), **shown, max_duration="4ba")
    first.fit()
    stream = io.StringIO()
    run(stream, **{**shown, "eval_interval": 0}, max_duration="5ba").fit()
    rows = {line.split()[0]: line.split()[1:] for line in lines_of(stream) if line.startswith("  eval/")}
    accuracy = float(first.state.eval_metric_values["MulticlassAccuracy"])
    assert rows["eval/MulticlassAccuracy"] == [f"{accuracy:.4f}"]


# ------------------------------------------------------------------------------------------------------- interruptions


@pytest.fixture(scope="module")
def interrupted(parent: Parent, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Scripts that got a signal in their sixth batch: their exit codes and what they have written."""
    root = tmp_path_factory.mktemp("interrupted")
    cases: dict[str, Any] = {}
    for name in ("SIGINT", "SIGTERM"):
        for kind in ("quiet", "bar", "nowhere") + (("autoresume",) if name == "SIGINT" else ()):
            folder = root / f"{name}-{kind}"
            more: dict[str, Any] = {"progress_bar": kind == "bar", "autoresume": kind == "autoresume"}
            cases[folder.name] = (name, {**more, **({} if kind == "nowhere" else {"save_folder": str(folder)})})
    for call in MODES:
        cases[f"SIGINT-{call}"] = ("SIGINT", {"call": call, "progress_bar": False})
    statuses = parent.call(interrupt_all, root, cases)

    def result(case: str) -> tuple[int, list[str], Path]:
        lines = [line for line in (root / f"{case}.txt").read_text().splitlines() if line]
        return os.waitstatus_to_exitcode(statuses[case]), lines, root / case / "ep1-ba6-rank0.pt"

    return result


@pytest.mark.parametrize(
    ("name", "by", "code", "kind"),
    [
        *(("SIGINT", "Ctrl-C", -signal.SIGINT, kind) for kind in ("quiet", "bar", "autoresume")),
        *(("SIGTERM", "SIGTERM", 128 + signal.SIGTERM, kind) for kind in ("quiet", "bar")),
    ],
)
def test_an_interruption_is_one_line_without_a_traceback(name, by, code, kind, interrupted) -> None:
    status, lines, path = interrupted(f"{name}-{kind}")
    command = "the same command" if kind == "autoresume" else "the same command with autoresume=True"
    assert status == code
    assert lines.count(f"interrupted by {by}; saved {path}; run {command} to continue") == 1
    assert len([line for line in lines if "interrupted" in line]) == 1
    assert not any("Traceback" in line or line.startswith("  File") or "KeyboardInterrupt" in line for line in lines)


def test_interruption_without_save_folder_reports_the_loss(interrupted) -> None:
    status, lines, _ = interrupted("SIGINT-nowhere")
    assert status == -signal.SIGINT
    assert lines.count("interrupted by Ctrl-C; nothing was saved, as there is no save_folder") == 1
    assert lines[-1] == "Raised by At at the event 'batch_start'."  # as Python leaves
    assert interrupted("SIGTERM-nowhere")[:2] == (-signal.SIGTERM, [])  # no one notes it


@pytest.mark.parametrize("call", MODES)
def test_an_interrupted_evaluation_ends_as_any_program(call, interrupted) -> None:
    status, lines, _ = interrupted(f"SIGINT-{call}")
    assert status == -signal.SIGINT
    assert "KeyboardInterrupt" in "".join(lines)


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        ({"save_weights_only": True}, ""),
        ({"save_latest_filename": None}, "; give it as load_path to continue"),
    ],
)
def test_resume_is_not_promised_if_impossible(arguments, end, tmp_path, caplog) -> None:
    def stop(state):
        if state.timestamp.batch == 5:
            os.kill(os.getpid(), signal.SIGINT)

    trainer = run(io.StringIO(), save_folder=str(tmp_path), callbacks=At("batch_start", stop), **arguments)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert told(caplog) == [("WARNING", f"interrupted by Ctrl-C; saved {tmp_path / 'ep1-ba6-rank0.pt'}{end}")]


def test_only_the_traceback_of_the_reported_exception_is_suppressed(tmp_path, monkeypatch) -> None:
    seen: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: seen.append(error))
    trainer = run(
        io.StringIO(),
        save_folder=str(tmp_path),
        callbacks=At("batch_start", lambda state: os.kill(os.getpid(), signal.SIGINT)),
    )
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt) as caught:
            trainer.fit()
    assert type(caught.value) is KeyboardInterrupt
    sys.excepthook(KeyboardInterrupt, caught.value, None)
    assert seen == []
    other = KeyboardInterrupt()
    sys.excepthook(KeyboardInterrupt, other, None)
    assert seen == [other]
