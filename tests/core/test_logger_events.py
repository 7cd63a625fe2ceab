"""When metrics are delivered, and what happens when a destination fails."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from composer.core import Callback, Engine, Event, Logger, LoggerDestination, Timestamp
from composer.warnings import ComposerWarning
from tests.core.test_logger import Keeps, logger_of, state_of


class Fails(LoggerDestination):
    """Fails at everything."""

    __hash__ = None  # as a dataclass has it

    def __getattribute__(self, name):
        if name in ("__receive__", "__due__", "__suspend__", "upload_file", "batch_end") or name.startswith("log_"):
            return self.fail
        return super().__getattribute__(name)

    def fail(self, *args, **kwargs):
        raise OSError("disk full")

    def batch_end(self, state, logger):
        raise AssertionError


class TestEvents:
    """When a deferred logger delivers, and in which order with the destinations' own hooks."""

    FLUSH = ("epoch_end", "eval_end", "eval_after_all", "eval_standalone_end", "predict_end", "fit_end")

    def make(self, flush_interval=1):
        calls = []

        class Hooked(Keeps):
            def run_event(self, event, state, logger):
                self.calls.append(("hook", event.value))

        class Logs(Callback):
            def run_event(self, event, state, logger):
                logger.log_metrics({event.value: 1})

        state = state_of(callbacks=[Hooked(flush_interval, calls=calls), Logs()])
        engine = Engine(state)
        engine.logger.deferred = True
        return engine, calls

    @pytest.mark.parametrize("event", list(Event))
    def test_before_the_hook_of_the_destination(self, event):
        engine, calls = self.make()
        engine.run_event(event)
        delivered = [("metrics", {event.value: 1}, 7)] if event in self.FLUSH else []
        assert calls == [*delivered, ("hook", event.value)]

    def test_batch_end_delivers_only_if_due(self):
        engine, calls = self.make(flush_interval=2)
        for batch in range(1, 5):
            engine.state.timestamp = Timestamp(batch=batch)
            assert engine.logger.poll() == (batch % 2 == 0)
            engine.run_event("batch_end")
        hook = ("hook", "batch_end")
        metrics = [("metrics", {"batch_end": 1}, batch) for batch in range(1, 5)]
        assert calls == [hook, *metrics[:2], hook, hook, *metrics[2:], hook]

    def test_due_destinations_receive_in_order(self):
        calls = []
        loggers = [Keeps(2, "slow"), Keeps(1, "fast")]
        for logger in loggers:
            logger.log_metrics = lambda metrics, step, name=logger.name: calls.append((name, step))
        engine = Engine(state_of(callbacks=loggers))
        engine.logger.deferred = True
        for batch in (1, 2):
            engine.state.timestamp = Timestamp(batch=batch)
            engine.logger.log_metrics({"m": 1})
            engine.logger.poll()
            engine.run_event("batch_end")
        assert calls == [("fast", 1), ("slow", 1), ("slow", 2), ("fast", 2)]

    def test_not_deferred_a_batch_needs_no_poll(self):
        engine, calls = self.make(flush_interval=100)
        engine.logger.deferred = False
        engine.run_event("batch_end")
        assert calls == [("metrics", {"batch_end": 1}, 7), ("hook", "batch_end")]


class TestFailing:
    """LogAxis: a tracker that fails does not stop the training unless asked, and other destinations miss nothing."""

    def exercise(self, logger):
        logger.log_metrics({"m": 1})
        logger.poll()
        logger.log_hyperparameters({"lr": 0.1})
        logger.log_table([], [])
        logger.log_images([])
        logger.log_traces({"t": 1})
        logger.upload_file("{run_name}/weights.pt", "weights.pt", overwrite=True)
        logger.suspend()
        logger.log_metrics({"m": 2})

    def test_failure_warns_once_and_others_still_receive(self):
        fails, keeps = Fails(), Keeps()
        logger = logger_of(fails, keeps)
        with pytest.warns(ComposerWarning) as caught:
            self.exercise(logger)
        assert len(caught) == 1
        message = str(caught[0].message)
        start = "Fails failed and may have lost log records; training continues. "
        assert message.startswith(start)
        assert message.endswith("OSError: disk full\n")
        kinds = [call[0] for call in keeps.calls]
        assert kinds == [
            "metrics",
            "hyperparameters",
            "table",
            "images",
            "traces",
            "file",
            "suspend",
            "metrics",
        ]
        assert keeps.calls[5] == ("file", logger._state, "run/weights.pt", Path("weights.pt"), True)

    def test_each_destination_warns_for_itself(self):
        logger = logger_of(Fails(), Fails())
        with pytest.warns(ComposerWarning) as caught:
            self.exercise(logger)
        assert len(caught) == 2

    def test_bad_entry_does_not_drop_the_next(self):
        class Picky(Keeps):
            def log_metrics(self, metrics, step=None):
                if "bad" in metrics:
                    raise ValueError("bad")
                super().log_metrics(metrics, step)

        picky = Picky()
        logger = logger_of(picky, deferred=True)
        for name in ("a", "bad", "b", "bad", "c"):
            logger.log_metrics({name: 1})
        with pytest.warns(ComposerWarning, match="ValueError: bad") as caught:
            logger.flush()
        assert len(caught) == 1
        assert [list(metrics) for _, metrics, _ in picky.calls] == [["a"], ["b"], ["c"]]

    @pytest.mark.parametrize(
        "log",
        [
            lambda logger: logger.log_metrics({"m": 1}),
            lambda logger: logger.log_table([], []),
            lambda logger: logger.log_hyperparameters({}),
            lambda logger: logger.poll(),
            lambda logger: logger.suspend(),
        ],
    )
    def test_raises_on_request(self, log):
        with pytest.raises(OSError, match="disk full") as caught:
            log(logger_of(Fails(), on_error="raise"))
        assert caught.value.__notes__ == ["Raised by the logger Fails."]

    def test_raises_after_others_received(self):
        keeps = Keeps()
        with pytest.raises(OSError, match="disk full"):
            logger_of(Fails(), keeps, on_error="raise").log_metrics({"m": 1})
        assert keeps.calls == [("metrics", {"m": 1}, 7)]

    def test_hook_failures_warn_except_at_init(self):
        engine = Engine(state_of(callbacks=[fails := Fails()]))
        with pytest.warns(ComposerWarning, match="Fails failed"):
            engine.run_event("batch_end")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            engine.run_event("batch_end")
        fails.init = lambda state, logger: fails.fail()
        with pytest.raises(OSError, match="disk full") as caught:
            Engine(engine.state).run_event("init")
        assert caught.value.__notes__ == ["Raised by Fails at the event 'init'."]

    def test_hook_failures_raise_on_request(self):
        state = state_of(callbacks=[fails := Fails()])
        engine = Engine(state, Logger(state, fails, on_error="raise"))
        with pytest.raises(OSError, match="disk full") as caught:
            engine.run_event("batch_end")
        assert caught.value.__notes__ == ["Raised by the logger Fails.", "Raised by Fails at the event 'batch_end'."]
