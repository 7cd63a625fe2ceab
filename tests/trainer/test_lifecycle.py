"""Construct to close: many trainers, exceptions, interrupts."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
import weakref

import pytest
import torch

from composer import Callback, Trainer
from composer.algorithms import EMA
from composer.core import Logger
from tests.common import At, Received, Recorder, Regression, regression_data, trainer_of, weights, weights_of


class Closing(Callback):
    def __init__(self, log: list[str], name: str, fails: bool = False) -> None:
        self.log, self.name, self.fails = log, name, fails

    def close(self, state, logger):
        self.log.append(f"close {self.name}")
        if self.fails:
            raise RuntimeError("cannot close")

    def post_close(self):
        self.log.append(f"post_close {self.name}")


# ---------------------------------------------------------------------------------------------------- many


def count_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "left open"])
def test_ManyTrainers_leave_nothing_behind(closed) -> None:
    """Neither memory nor threads grow; a trainer that no one closed is closed when it goes."""

    def one() -> list[weakref.ref]:
        model = Regression(metrics=True)
        trainer = trainer_of(
            model, eval_dataloader=regression_data(1), loggers=Received(), callbacks=Closing(log, "it")
        )
        trainer.fit()
        if closed:
            trainer.close()
        return [weakref.ref(thing) for thing in (trainer, model, trainer.state, trainer.engine, trainer.logger)]

    log: list[str] = []
    one()
    threads, tensors, seen = set(threading.enumerate()), count_tensors(), []
    for _ in range(20):
        seen += one()
    gc.collect()
    assert [ref() for ref in seen] == [None] * 100
    assert set(threading.enumerate()) <= threads
    assert count_tensors() <= tensors
    assert log == ["close it", "post_close it"] * 21


def test_ManyTrainers_touch_nothing_of_the_process() -> None:
    def picture():
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        return handlers, dict(os.environ), sys.stdout, sys.stderr, sys.excepthook, warnings.filters[:]

    before = picture()
    with trainer_of(eval_dataloader=regression_data(1)) as trainer:
        trainer.fit()
        assert picture() == before
    assert picture() == before


def test_ManyTrainers_close_only_themselves() -> None:
    log: list[str] = []
    trainers = [trainer_of(callbacks=Closing(log, str(i)), loggers=Received(), max_duration="2ba") for i in range(20)]
    for trainer in trainers:
        trainer.fit()
    for i in range(0, 20, 2):
        trainers[i].close()
    assert log == [f"{what} {i}" for i in range(0, 20, 2) for what in ("close", "post_close")]
    for i in range(1, 20, 2):
        trainers[i].fit(duration="2ba")
        assert trainers[i].state.timestamp.batch == 4
    assert [t.state.callbacks[0].closed for t in trainers] == [1, 0] * 10
    assert all(len(t.state.callbacks[0].series("loss/train/total")) == 4 for t in trainers[1::2])


def test_model_does_not_keep_its_trainer_alive() -> None:
    model = Regression()
    trainer = trainer_of(model)
    assert model.logger is trainer.logger
    state = weakref.ref(trainer.state)
    trainer.close()
    assert model.logger is None
    del trainer
    gc.collect()
    assert state() is None

    first, second = trainer_of(model), trainer_of(model)
    first.close()
    assert model.logger is second.logger


def test_interleaved_trainers_match_sequential_ones() -> None:
    def pair():
        return [trainer_of(Regression(), regression_data(seed=i), max_duration="4ba", seed=i) for i in (0, 1)]

    torch.manual_seed(0)
    together = pair()
    for _ in range(4):
        for trainer in together:
            trainer.fit(duration="1ba")
    torch.manual_seed(0)
    alone = pair()
    for trainer in alone:
        trainer.fit()
    assert all(torch.equal(weights(a), weights(b)) for a, b in zip(together, alone, strict=True))


# ---------------------------------------------------------------------------------------------------- closing


def test_a_closed_trainer_raises() -> None:
    trainer = trainer_of(eval_dataloader=regression_data(1))
    trainer.fit()
    trainer.close()
    trainer.close()
    before = trainer.state.timestamp
    for call in (
        trainer.fit,
        lambda: trainer.fit(duration="1ep"),
        trainer.eval,
        lambda: trainer.eval(regression_data(1)),
        lambda: trainer.predict(regression_data(1)),
    ):
        with pytest.raises(RuntimeError, match="This trainer is closed; create a new one to continue"):
            call()
    assert trainer.state.timestamp == before


def test_context_manager_always_closes() -> None:
    log: list[str] = []
    received = Received()
    with pytest.raises(KeyError), trainer_of(callbacks=Closing(log, "it"), loggers=received) as trainer:
        assert isinstance(trainer, Trainer)
        trainer.fit()
        raise KeyError
    assert log == ["close it", "post_close it"]
    assert received.closed == 1


def test_failing_close_does_not_skip_other_callbacks(caplog) -> None:
    log: list[str] = []
    trainer = trainer_of(callbacks=[Closing(log, "bad", fails=True), Closing(log, "good")])
    trainer.close()
    assert log == ["close bad", "close good", "post_close good"]
    assert "Closing.close failed" in caplog.text


def test_callbacks_may_log_while_they_close() -> None:
    class Last(Callback):
        def close(self, state, logger):
            logger.log_metrics({"last": torch.tensor(2.0)})

    log = Received(flush_interval=1000)
    with trainer_of(callbacks=Last(), loggers=log) as trainer:
        trainer.fit()
    assert log.series("last") == [(4, 2.0)]


def test_failing_constructor_closes_what_it_opened() -> None:
    log: list[str] = []
    with pytest.raises(ValueError, match="precision"):
        trainer_of(callbacks=Closing(log, "it"), precision="amp_fp16")
    gc.collect()
    assert log == ["close it", "post_close it"]


# ---------------------------------------------------------------------------------------------------- exceptions


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("event", ["after_dataloader", "after_loss", "batch_end", "epoch_end", "eval_batch_end"])
def test_an_exception_leaves_the_trainer_usable(error, event) -> None:
    """Loggers let go of the terminal and have what was logged; training continues where it was left."""
    at = At(event, lambda state: (_ for _ in ()).throw(error("stop")) if state.timestamp.batch >= 2 else None)
    log, recorder = Received(flush_interval=1000), Recorder()
    trainer = trainer_of(
        Regression(metrics=True),
        loggers=log,
        callbacks=[recorder, at],
        max_duration="3ep",
        eval_dataloader=regression_data(1),
        eval_interval="2ba",
        device_train_microbatch_size=1,
    )
    with pytest.raises(error, match="stop") as raised:
        trainer.fit()
    assert raised.value.__notes__ == [f"Raised by At at the event {event!r}."]
    assert log.suspended == 1
    assert not trainer.logger.deferred
    assert len(log.series("loss/train/total")) == trainer.state.timestamp.batch
    assert trainer.state.phase.mode == "train"
    assert trainer.state.model.training

    at.function = lambda state: None
    trainer.fit()
    assert trainer.state.timestamp.epoch == 3
    assert recorder.events[-1] == "fit_end"
    assert len(trainer.state.batch[0]) == 2  # the full batch, not a part of it
    trainer.close()
    assert log.closed == 1


def test_exception_in_forward_and_loss() -> None:
    class Fails(Regression):
        where = "forward"

        def forward(self, batch):
            if self.where == "forward":
                raise ZeroDivisionError("in forward")
            return super().forward(batch)

        def loss(self, outputs, batch):
            if self.where == "loss":
                raise ZeroDivisionError("in loss")
            return super().loss(outputs, batch)

    model = Fails()
    trainer = trainer_of(model)
    for where in ("forward", "loss"):
        model.where = where
        with pytest.raises(ZeroDivisionError, match=f"in {where}"):
            trainer.fit()
    model.where = "nowhere"
    trainer.fit()
    assert trainer.state.timestamp.epoch == 1


def test_progress_and_console_survive_an_interrupt(tmp_path) -> None:
    at = At("batch_end", lambda state: (_ for _ in ()).throw(KeyboardInterrupt) if state.timestamp.batch == 2 else None)
    with (tmp_path / "log").open("w") as stream:
        model = Regression()
        trainer = Trainer(
            model=model,
            train_dataloader=regression_data(),
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            max_duration="1ep",
            console_stream=stream,
            callbacks=at,
        )
        with pytest.raises(KeyboardInterrupt):
            trainer.fit()
        trainer.fit()
        trainer.close()
    assert trainer.state.timestamp.batch == 4
    assert (tmp_path / "log").read_text()


def test_an_exception_in_an_evaluation_with_averaged_weights() -> None:
    """Training continues with its own weights, not with the average that was being evaluated."""
    fail = At("eval_after_forward", lambda state: 1 / 0)
    ends = At("batch_end", lambda state: weights_of(state.model))
    starts = At("before_forward", lambda state: weights_of(state.model))
    trainer = trainer_of(
        algorithms=EMA(half_life="1ba"),
        eval_dataloader=regression_data(1),
        eval_interval="2ba",
        callbacks=[fail, ends, starts],
    )
    with pytest.raises(ZeroDivisionError):
        trainer.fit()
    assert not torch.equal(weights(trainer), ends.found[1])
    fail.function = lambda state: None
    trainer.fit()
    assert torch.equal(starts.found[2], ends.found[1])


# ---------------------------------------------------------------------------------------------------- the logger


def test_the_model_logs_through_the_trainer() -> None:
    class Logging(Regression):
        def loss(self, outputs, batch):
            assert isinstance(self.logger, Logger)
            self.logger.log_metrics({"mean": outputs.mean()})
            return super().loss(outputs, batch)

    log = Received()
    trainer_of(Logging(), loggers=log).fit()
    assert [step for step, _ in log.series("mean")] == [0, 1, 2, 3]


def test_callbacks_added_while_training_run() -> None:
    late = Recorder()
    add = At("batch_end", lambda state: state.callbacks.append(late) if state.timestamp.batch == 3 else None)
    trainer_of(callbacks=add).fit()
    assert late.events[:2] == ["batch_checkpoint", "before_dataloader"]
