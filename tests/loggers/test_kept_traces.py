"""Which loggers receive a trace whenever an algorithm acts, without ``Trainer(log_traces=True)``."""

from __future__ import annotations

import io
from typing import Any

import pytest
from torch import nn

from composer import Algorithm, Event, State
from composer.core.event_plan import Planner
from composer.core.logger import Logger, LoggerDestination
from composer.loggers import ConsoleLogger, FileLogger, InMemoryLogger, JSONLinesLogger, ProgressBarLogger
from tests.common import trainer_of
from tests.loggers.test_progress_bar_logger import Terminal

NAME = "algorithm_traces/Act/batch_end"


class Act(Algorithm):
    """Acts after every other batch."""

    def match(self, event, state):
        return event is Event.BATCH_END and int(state.timestamp.batch) % 2 == 0

    def apply(self, event, state, logger):
        return 0


class Own(LoggerDestination):
    def __init__(self) -> None:
        self.found: list[Any] = []

    def log_traces(self, traces):
        self.found.append(traces)


class Sub(FileLogger):
    def log_traces(self, traces):
        self.write("[own]: ", str(traces))


def fit(*loggers: LoggerDestination) -> None:
    trainer_of(algorithms=Act(), loggers=loggers, max_duration="4ba").fit()


def test_the_file_has_one_line_each_time_an_algorithm_acts(tmp_path) -> None:
    fit(FileLogger(f"{tmp_path}/a.txt"), FileLogger(f"{tmp_path}/b.txt", log_traces=False))
    assert (tmp_path / "a.txt").read_text().splitlines().count(f"[trace]: {NAME}: 1") == 2
    assert "[trace]" not in (tmp_path / "b.txt").read_text()


def test_lines_in_the_file_keep_their_order(tmp_path) -> None:
    class Say(Act):
        def apply(self, event, state, logger):
            file.write("", f"batch {state.timestamp.batch.value}")

    file = FileLogger(f"{tmp_path}/a.txt", capture_stdout=False, capture_stderr=False)
    trainer_of(algorithms=Say(), loggers=file, max_duration="4ba").fit()
    lines = (tmp_path / "a.txt").read_text().splitlines()
    trace = "[trace]: algorithm_traces/Say/batch_end: 1"
    assert [line for line in lines if line[0] == "b" or line == trace] == ["batch 2", trace, "batch 4", trace]


def test_lines_on_a_console() -> None:
    shown, hidden = io.StringIO(), io.StringIO()
    fit(ConsoleLogger(stream=shown, log_traces=True), ConsoleLogger(stream=hidden))
    assert shown.getvalue().count(f"[trace] {NAME}: 1") == 2
    assert "trace" not in hidden.getvalue()


def test_a_custom_logger() -> None:
    own = Own()
    fit(own)
    assert own.found == [{NAME: 1}] * 2


@pytest.mark.parametrize(
    ("make", "keeps"),
    [
        (LoggerDestination, False),
        (InMemoryLogger, False),
        (Own, True),
        (lambda: FileLogger(), True),
        (lambda: FileLogger(log_traces=False), False),
        (lambda: Sub(log_traces=False), True),
        (ConsoleLogger, False),
        (lambda: ConsoleLogger(log_traces=True), True),
        (lambda: ProgressBarLogger(Terminal()), False),
        (lambda: ProgressBarLogger(Terminal(), log_traces=True), True),
        (JSONLinesLogger, False),  # gets them where Trainer(log_traces=True) asks
    ],
)
def test_traces_are_recorded_only_for_loggers_that_keep_them(make, keeps) -> None:
    logger = make()
    assert logger.__keeps_traces__ is keeps
    state = State(model=nn.Linear(1, 1), algorithms=[Act()])
    planner = Planner(state, Logger(state, [InMemoryLogger(), logger]), logs_traces=False)
    with planner.caching():
        [handler, *_] = planner.handlers(Event.BATCH_START)
        assert handler.__name__ == ("recorded" if keeps else "run")  # pyright: ignore
