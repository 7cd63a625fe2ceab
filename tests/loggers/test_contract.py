"""Contract tests of every logger destination; each one's test file defines a ``CASE``."""

from __future__ import annotations

import importlib
import io
import json
import sys
import threading
from pathlib import Path

import pytest
import torch

import composer.loggers
from composer.core import Engine, Logger, LoggerDestination, State
from tests.accelerator import FakeAccelerator
from tests.common import trainer_of
from tests.declared_waits import compare
from tests.loggers.loop import Loop
from tests.loggers.trackers import as_rank
from tests.trainer.test_sync_free import Step

CASES = {}
OTHERS = [Path("test_html_report.py"), Path("test_remote_uploader_downloader.py")]
for path in sorted([*Path(__file__).parent.glob("test_*_logger.py"), *OTHERS]):
    name = path.stem.removeprefix("test_").replace("_", "")
    try:
        CASES[name] = importlib.import_module(f"tests.loggers.{path.stem}").CASE
    except ModuleNotFoundError as error:
        if str(error.name).startswith("tests."):
            raise
        CASES[name] = {"make": None, "marks": pytest.mark.skip(reason=f"not installed: {error.name}")}

EVERYWHERE = (composer.loggers.InMemoryLogger, composer.loggers.RemoteUploaderDownloader)
PUBLIC = [
    value
    for value in (getattr(composer.loggers, name) for name in composer.loggers.__all__)
    if isinstance(value, type) and issubclass(value, LoggerDestination) and value is not LoggerDestination
]


@pytest.fixture(
    params=[pytest.param(case["make"], id=name, marks=case.get("marks", ())) for name, case in CASES.items()]
)
def make(request: pytest.FixtureRequest):
    return request.param


@pytest.mark.parametrize("logger", PUBLIC, ids=lambda logger: logger.__name__)
def test_every_logger_has_a_case(logger) -> None:
    assert logger.__name__.lower() in CASES


def everything(loop: Loop) -> None:
    """Log every type of data."""
    logger = loop.logger
    logger.log_hyperparameters({"seed": 1, "model": {"depth": 2}, "none": None})
    loop.init().fit()
    logger.log_metrics({"nan": float("nan"), "word": "a", "none": None, "matrix": torch.eye(2), "bool": True})
    logger.log_metrics({"metrics/train/x": torch.tensor(1)}, step=100)
    logger.log_table(["a", "b"], [[1, "x"], [2.0, None]], name="T")
    logger.log_traces({"trace": 1})
    logger.log_images(torch.rand(2, 3, 4, 4), name="images")
    loop.evaluate().predict()


@pytest.mark.parametrize(
    "options", [{}, {"max_duration": "6ba", "eval_every": 2}, {"length": None, "eval_length": None}]
)
def test_accepts_everything(make, options) -> None:
    loop = Loop([make()], **options)
    everything(loop)
    loop.close()


def test_leaves_the_process_as_it_was(make) -> None:
    make()  # a package may keep something for the process from its first use on
    streams, threads = (sys.stdout, sys.stderr), set(threading.enumerate())
    loop = Loop([make()])
    assert (sys.stdout, sys.stderr) == streams
    everything(loop)
    loop.close()
    assert (sys.stdout, sys.stderr) == streams
    assert set(threading.enumerate()) <= threads


def test_no_cost_on_other_ranks(make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics are kept and read only on ranks that log them."""
    as_rank(monkeypatch, 1)
    destination = make()
    received: list[dict] = []
    monkeypatch.setattr(destination, "__receive__", lambda metrics, step, timestamp: received.append(metrics))
    logger = Logger(State(torch.nn.Linear(1, 1)), destination, on_error="raise")
    logger.log_metrics({"loss/train/total": torch.tensor(1.0)})
    assert bool(received) == destination.__logs_here__
    # The files of the cases have the same names everywhere.
    assert destination.__logs_here__ == isinstance(destination, EVERYWHERE)


def test_can_be_used_in_a_second_run(make) -> None:
    destination = make()
    for _ in range(2):
        loop = Loop([destination])
        everything(loop)
        loop.close()


def test_works_with_an_engine_alone(make) -> None:
    state = State(torch.nn.Linear(1, 1), max_duration="1ep")
    destination = make()
    logger = Logger(state, destination, on_error="raise")
    engine = Engine(state, logger, callbacks=[destination])
    for event in ("epoch_start", "batch_end", "epoch_end", "eval_start", "eval_batch_end", "eval_end", "fit_end"):
        logger.log_metrics({"loss/train/total": torch.tensor(1.0)})
        engine.run_event(event)
    engine.close()


def test_can_be_saved_and_loaded(make) -> None:
    destination = make()
    loop = Loop([destination], "1000ba", length=1000).init()
    loop.logger.deferred = True
    loop.fire("fit_start")
    loop.fire("epoch_start")
    for _ in range(3):
        loop.batch()
    state = json.loads(json.dumps(destination.state_dict()))
    loop.close()
    other = make()
    other.load_state_dict(state)
    other.load_state_dict({"of another version": {"n": 3}})
    Loop([other]).init().fit().close()


def test_SyncFree_between_deliveries(make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host synchronizes with the device only in steps in which the destination is due."""
    due: set[int | None] = set()
    poll = Logger.poll
    with FakeAccelerator() as accelerator:

        def noting(logger: Logger) -> bool:
            is_due = poll(logger)
            due.update({accelerator.step} if is_due else ())
            return is_due

        monkeypatch.setattr(Logger, "poll", noting)
        destination = make()
        trainer = trainer_of(
            callbacks=Step(lambda step: setattr(accelerator, "step", step)), loggers=destination, run_name="run"
        )
        trainer.fit()
        trainer.close()
    undeclared, missing = compare(type(destination).__name__, accelerator.found, 4)
    assert [wait for wait in undeclared if wait.step not in due] == []
    assert missing == []


@pytest.mark.parametrize("ticks", range(12))
def test_can_be_interrupted_anywhere(make, ticks) -> None:
    streams = (sys.stdout, sys.stderr)
    left = iter(range(ticks))

    def tick() -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    loop = Loop([make()], tick=tick).init()
    with pytest.raises(KeyboardInterrupt):
        loop.fit()
    loop.logger.suspend()
    assert (sys.stdout, sys.stderr) == streams
    loop.tick = lambda: None
    loop.state.phase = loop.state.train_phase
    loop.fit().close()
    assert (sys.stdout, sys.stderr) == streams


def test_nothing_goes_to_other_streams(make, capfd: pytest.CaptureFixture[str]) -> None:
    """The cases write to separate streams."""
    loop = Loop([make()])
    everything(loop)
    loop.close()
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_a_stream_of_its_own_is_left_open() -> None:
    stream = io.StringIO()
    for logger in PUBLIC:
        if "stream" in logger.__init__.__annotations__:
            loop = Loop([logger(stream=stream)]).init().fit()
            loop.close()
    assert not stream.closed
