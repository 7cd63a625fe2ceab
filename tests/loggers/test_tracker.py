from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest
import torch

from composer.core import Engine, Logger, State
from composer.loggers._tracker import Tracker, artifact_name, end_with_timeout, rendered_images
from composer.warnings import ComposerWarning
from tests.common import trainer_of
from tests.loggers.loop import Loop
from tests.loggers.trackers import as_rank, interrupt, resume_with


class Toy(Tracker):
    """A tracker that stores everything in a list."""

    def __init__(self, rank_zero_only: bool = True) -> None:
        super().__init__(rank_zero_only)
        self.calls: list[Any] = []
        self.begun: list[dict[str, Any]] = []
        self.ended: list[str] = []

    def _begin(self, state, saved):
        self.begun.append(saved)

    def _end(self, outcome):
        self.ended.append(outcome)

    def _identity(self):
        return {"id": "one"}

    def log_metrics(self, metrics, step=None):
        if self._ready(self.log_metrics, metrics, step):
            self.calls.append((step, metrics))

    def log_hyperparameters(self, hyperparameters):
        if self._ready(self.log_hyperparameters, hyperparameters):
            self.calls.append(hyperparameters)


def test_a_run_that_cannot_begin_is_not_tried_again_when_it_is_closed() -> None:
    class Offline(Toy):
        def _begin(self, state, saved):
            super()._begin(state, saved)
            raise ConnectionError("no key")

    toy = Offline()
    with pytest.raises(ConnectionError, match="no key"):
        trainer_of(loggers=toy)
    assert toy.begun == [{}]


def test_calls_before_the_run_are_queued_in_order() -> None:
    toy = Toy()
    loop = Loop([toy])
    loop.logger.log_metrics({"a": 1})
    loop.init()
    loop.logger.log_hyperparameters({"lr": 1})
    loop.fire("before_load")
    assert (toy.calls, toy.begun) == ([], [])
    loop.fire("after_load")
    assert toy.begun == [{}]
    assert toy.calls == [(0, {"a": 1}), {"lr": 1}]
    loop.fit().close()
    assert len(toy.begun) == 1
    assert toy.ended == ["finished"]


@pytest.mark.parametrize("event", ["after_load", "fit_start", "eval_start", "predict_start"])
def test_the_run_begins_with_the_first_of_these(event) -> None:
    toy = Toy()
    loop = Loop([toy]).init()
    loop.fire(event)
    assert toy.begun == [{}]


def test_without_these_events_nothing_is_lost() -> None:
    toy = Toy()
    state = State(torch.nn.Linear(1, 1))
    logger = Logger(state, toy)
    engine = Engine(state, logger, callbacks=[toy])
    logger.log_metrics({"a": 1})
    engine.close()
    assert toy.calls == [(0, {"a": 1})]
    assert toy.ended == ["finished"]


def test_a_run_that_cannot_end_is_reported_and_the_others_end(caplog) -> None:
    class Broken(Toy):
        def _end(self, outcome):
            raise ConnectionError("tracker is down")

    toy = Toy()
    trainer = trainer_of(loggers=[Broken(), toy])
    trainer.fit()
    trainer.close()
    assert "Broken.post_close failed" in caplog.text
    assert "tracker is down" in caplog.text
    assert toy.ended == ["finished"]


def test_no_run_begins_without_data() -> None:
    toy = Toy()
    Loop([toy]).init().close()
    assert (toy.begun, toy.ended) == ([], [])


def test_others_may_log_while_they_close() -> None:
    class Late(Toy):
        def close(self, state, logger):
            super().close(state, logger)
            logger.log_metrics({"late": 1})

    toy = Toy()
    Loop([toy, Late()]).init().fit().close()
    assert toy.calls[-1] == (8, {"late": 1})
    assert toy.ended == ["finished"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError(), "failed"),
        (KeyboardInterrupt(), "killed"),
        (SystemExit(143), "killed"),
        (SystemExit(0), "finished"),
    ],
)
def test_outcome(error, outcome) -> None:
    toy = Toy()
    interrupt(Loop([toy]).init(), error)
    assert toy.ended == [outcome]


def test_a_run_that_continues_after_an_exception_is_finished() -> None:
    toy = Toy()
    loop = Loop([toy]).init()
    loop.tick = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        loop.fit()
    loop.logger.suspend()
    loop.tick = lambda: None
    loop.fit().close()
    assert toy.ended == ["finished"]


def test_closing_during_an_exception_is_a_failure() -> None:
    toy = Toy()
    with pytest.raises(ZeroDivisionError), trainer_of(loggers=toy):
        _ = 1 / 0
    assert toy.ended == ["failed"]


def test_resumes_a_run_of_the_same_name() -> None:
    second = Toy()
    resume_with(Toy(), second).close()
    assert second.begun == [{"run_name": "test", "id": "one"}]
    other = Toy()
    resume_with(Toy(), other, run_name="other").close()
    assert other.begun == [{}]


def test_a_run_that_has_not_begun_has_the_identity_of_the_loaded_one() -> None:
    toy = Toy()
    toy.load_state_dict({"run_name": "test", "id": "zero"})
    assert toy.state_dict() == {"run_name": "test", "id": "zero"}
    loop = Loop([toy]).init().fit()
    assert toy.state_dict()["id"] == "one"
    loop.close()
    assert toy.state_dict() == {}


def test_each_rank_resumes_its_own_run(monkeypatch) -> None:
    """A checkpoint contains the state of rank 0."""
    as_rank(monkeypatch, 0)
    first, second = Toy(rank_zero_only=False), Toy(rank_zero_only=False)
    resume_with(first, second).close()
    assert second.begun[0]["run_name"] == "test-rank0"
    saved = second.begun[0]
    as_rank(monkeypatch, 1)
    third = Toy(rank_zero_only=False)
    third.load_state_dict(saved)
    Loop([third]).init().fit().close()
    assert third.begun == [{}]


def test_other_ranks_log_nothing(monkeypatch) -> None:
    as_rank(monkeypatch, 1)
    toy = Toy()
    loop = Loop([toy])
    loop.logger.log_hyperparameters({"lr": 1})
    loop.logger.log_traces({"a": 1})
    loop.init().fit().close()
    assert (toy.calls, toy.begun, toy.ended, toy._early, toy._traces) == ([], [], [], [], {})


def test_traces_are_logged_with_the_next_metrics() -> None:
    toy = Toy()
    loop = Loop([toy]).init()
    loop.fire("fit_start")
    loop.logger.log_traces({"a": 1, "b": 1})
    loop.logger.log_traces({"a": 2})
    assert toy.calls == []
    loop.logger.log_metrics({"loss": 3}, step=5)
    loop.logger.log_metrics({"loss": 4}, step=6)
    loop.logger.log_traces({"c": 5})
    loop.close()
    assert toy.calls == [(5, {"a": 2, "b": 1, "loss": 3}), (6, {"loss": 4}), (0, {"c": 5})]


def test_end_with_timeout_does_not_wait_forever(caplog) -> None:
    go = threading.Event()
    with pytest.warns(ComposerWarning, match="Tracker has not finished 0 s after it was closed"):
        end_with_timeout(0.01, "Tracker", go.wait)
    go.set()
    with caplog.at_level(logging.INFO):
        end_with_timeout(5, "Tracker", lambda: None)
    assert "Tracker was closed within 0.0 s." in caplog.text


def test_end_with_timeout_reraises() -> None:
    with pytest.raises(ZeroDivisionError):
        end_with_timeout(5, "Tracker", lambda: 1 / 0)


def test_end_with_timeout_at_interpreter_shutdown(monkeypatch) -> None:
    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    end_with_timeout(5, "Tracker", lambda: done.append(1))
    assert done == [1]


def test_rendered_images() -> None:
    images = torch.zeros(2, 1, 2, 2)
    mask = torch.tensor([[[0, 1], [0, 0]], [[0, 0], [0, 0]]])
    rendered = rendered_images("x", images, masks={"a": mask, "b": mask})
    assert [name for name, _ in rendered] == ["x/0", "x/0/a", "x/0/b", "x/1", "x/1/a", "x/1/b"]
    arrays = dict(rendered)
    assert arrays["x/0"].shape == (2, 2, 1)
    assert np.argwhere(arrays["x/0/a"].any(-1)).tolist() == [[0, 1]]
    assert not arrays["x/1/a"].any()


def test_artifact_name() -> None:
    assert artifact_name("a/b c:d_e-1.pt") == "a.b.c.d_e-1.pt"
