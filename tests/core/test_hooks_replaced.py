"""Hooks that are replaced after a listener was registered, passes that add algorithms, and engines that are closed."""

from __future__ import annotations

import gc
import logging
import sys
from unittest.mock import MagicMock, Mock

import pytest
import torch

from composer import Algorithm, Callback, Engine, Event, Logger, State, Trainer
from composer.callbacks import LRMonitor
from composer.core import LoggerDestination
from composer.models import ComposerClassifier


def state_of(**arguments):
    return State(model=torch.nn.Linear(1, 1), **arguments)


def trainer_of(**arguments):
    model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    data = [(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))] * 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model=model, train_dataloader=data, optimizers=optimizer, progress_bar=False, **arguments)


class Plain(Callback):
    def batch_end(self, state, logger):
        state.seen.append("plain")


END = Event.BATCH_END


def noted(what):
    return lambda *arguments: arguments[-2].seen.append(what)


REPLACED = {
    "attribute": lambda callback: setattr(callback, "batch_end", noted("new")),
    "another attribute": lambda callback: setattr(callback, "batch_start", noted("new")),
    "class": lambda callback: setattr(type(callback), "batch_end", noted("new")),
    "another method of the class": lambda callback: setattr(type(callback), "batch_start", noted("new")),
    "run_event": lambda callback: setattr(
        callback, "run_event", lambda event, state, logger: event is Event.BATCH_END and state.seen.append("new")
    ),
    "run_event of the class": lambda callback: setattr(
        type(callback),
        "run_event",
        lambda self, event, state, logger: event == "batch_end" and state.seen.append("new"),
    ),
}


@pytest.mark.parametrize("base", [Plain, LRMonitor])
@pytest.mark.parametrize("replace", REPLACED.values(), ids=REPLACED.keys())
def test_replaced_between_two_fits(base, replace):
    callback = type("Mine", (base,), {})()
    with trainer_of(max_duration="1ep", callbacks=callback) as trainer:
        trainer.state.seen = seen = []
        trainer.fit()
        before = seen.copy()
        replace(callback)
        trainer.fit(duration="1ep")
        after = seen[len(before) :]
        assert before == (["plain"] * 3 if base is Plain else [])
        assert after.count("new") == 3


@pytest.mark.parametrize("replace", REPLACED.values(), ids=REPLACED.keys())
def test_replaced_during_fit(replace):
    class Replaces(Callback):
        def after_dataloader(self, state, logger):
            if state.timestamp.batch == 1:
                replace(callback)

    callback = type("Mine", (Plain,), {})()
    with trainer_of(max_duration="1ep", callbacks=[Replaces(), callback]) as trainer:
        trainer.state.seen = seen = []
        trainer.fit()
        assert seen.count("new") == 2


def test_removed_method():
    callback = Plain()
    callback.batch_end = noted("own")
    engine = Engine(state_of(), callbacks=callback)
    engine.state.seen = []
    engine.run_event("batch_end")
    del callback.batch_end
    engine.run_event("batch_end")
    assert engine.state.seen == ["own", "plain"]


def test_other_attributes_do_not_rebuild_plans():
    class Busy(Callback):
        asked = 0

        def batch_start(self, state, logger):
            self.began = 1

        def batch_end(self, state, logger):
            del self.began

        def __wrap_handlers__(self, event, handlers):
            Busy.asked += event is Event.BATCH_END
            return handlers

    with trainer_of(max_duration="3ep", callbacks=Busy()) as trainer:
        trainer.fit()
    assert Busy.asked == 1


@pytest.mark.parametrize("kind", [Callback, Algorithm])
def test_hooks_added_between_fits_run(kind):
    seen = []
    added = type("Added", (kind,), {"batch_end": lambda self, state, logger: seen.append(state.timestamp.batch.value)})
    with trainer_of(max_duration="1ep") as trainer:
        trainer.fit()
        (trainer.state.callbacks if kind is Callback else trainer.state.algorithms).append(added())
        trainer.fit(duration="2ba")
    assert seen == [4, 5]


class TestDoubles:
    @pytest.mark.parametrize("double", [Mock(), MagicMock(), Mock(spec=Callback), MagicMock(spec=Callback)])
    def test_a_callback(self, double):
        with trainer_of(max_duration="1ba", callbacks=double) as trainer:
            trainer.fit()
        events = [call.args[0] for call in double.run_event.call_args_list]
        assert {Event.INIT, Event.FIT_START, Event.BATCH_END, Event.FIT_END} <= {*events}
        double.close.assert_called_once()
        double.post_close.assert_called_once()

    @pytest.mark.parametrize("event", list(Event))
    @pytest.mark.parametrize("matches", [True, False])
    def test_algorithms(self, event, matches):
        doubles = [Mock(**{"match.return_value": matches, "apply.return_value": code}) for code in range(3)]
        traces = Engine(state_of(algorithms=doubles)).run_event(event)
        for double in doubles:
            double.match.assert_called_once()
            assert double.apply.call_count == matches
        codes = [2, 1, 0] if event.runs_last_to_first else [0, 1, 2]
        assert [trace.exit_code for trace in traces.values()] == (codes if matches else [None] * 3)
        assert all(trace.run is matches for trace in traces.values())

    @pytest.mark.parametrize("wrong", [Callback, 3, "x", object()])
    def test_invalid_listeners_are_rejected(self, wrong):
        with pytest.raises(TypeError, match="callbacks must be Callback objects"):
            Engine(state_of(), callbacks=[wrong])
        with pytest.raises(TypeError, match="algorithms must be Algorithm objects"):
            Engine(state_of(), algorithms=[wrong])


class TestPasses:
    def test_algorithm_added_by_a_pass_runs(self):
        added = Mock(**{"match.return_value": False, "apply.return_value": 7})
        engine = Engine(state_of())
        engine.register_pass(lambda algorithms, event: [*algorithms, added])
        assert [trace.exit_code for trace in engine.run_event(Event.INIT).values()] == [7]
        added.match.assert_not_called()

    def test_in_a_fit(self):
        class Counts(Algorithm):
            steps = 0

            def batch_end(self, state, logger):
                self.steps += 1

        counts = Counts()
        with trainer_of(
            max_duration="1ep", algorithm_passes=lambda algorithms, event: [*algorithms, counts]
        ) as trainer:
            trainer.fit()
        assert counts.steps == 3

    def test_the_list_can_be_read_and_changed(self):
        def one(algorithms, event):
            return algorithms

        for given in (one, [one], [one, 0], (one, 0), [(one, 0)]):
            assert Engine(state_of(), algorithm_passes=given).algorithm_passes == [one]
        engine = Engine(state_of(), algorithms=[Mock(), Mock()])
        assert engine.algorithm_passes == []
        engine.algorithm_passes.append(lambda algorithms, event: [])
        assert engine.run_event("init") == {}
        engine.algorithm_passes = []
        assert len(engine.run_event("init")) == 2


class TestClosing:
    def test_a_closed_engine_fires_no_events(self):
        engine = Engine(state_of(), callbacks=Plain())
        engine.run_event("init")
        engine.close()
        for event in Event:
            with pytest.raises(RuntimeError, match="The engine is closed"):
                engine.run_event(event)

    @pytest.mark.parametrize("kind", [Callback, LoggerDestination])
    def test_open_callback_belongs_to_one_engine(self, kind):
        callback, message = kind(), "open callback or logger from a previous trainer"
        first = Engine(state_of(), callbacks=callback)
        first.run_event("init")
        second = Engine(state_of(), callbacks=callback)
        with pytest.raises(RuntimeError, match=message):
            second.run_event("init")
        first.close()
        second.run_event("init")
        del second
        gc.collect()
        Engine(state_of(), callbacks=callback).run_event("init")

    def test_a_trainer_that_could_not_be_made_leaves_its_callbacks_closed(self):
        callback = Plain()
        for _ in range(2):  # the traceback keeps the trainer alive
            with pytest.raises(ValueError, match="load_path") as caught:
                trainer_of(callbacks=callback, load_weights_only=True)
        with trainer_of(callbacks=callback) as trainer:
            assert not trainer.engine.closed
        assert caught.value is not None

    def test_unhashable_callbacks(self):
        class Equal(Callback):
            __hash__ = None

            def __eq__(self, other):
                raise TypeError("odd")

        with trainer_of(callbacks=[Equal(), Equal()], max_duration="1ba") as trainer:
            trainer.fit()

    def test_an_engine_is_freed_without_the_garbage_collector(self):
        class Closes(Callback):
            is_open = True

            def close(self, state, logger):
                self.is_open = False

        gc.disable()
        try:
            engine = Engine(state_of(), callbacks=(callback := Closes()))
            with engine.looping():
                engine.run_event("batch_end")
            assert sys.getrefcount(engine) == 2
            del engine
            assert not callback.is_open
        finally:
            gc.enable()


def test_engine_destinations_can_be_inspected(caplog, monkeypatch):
    monkeypatch.setenv("ENGINE_DEBUG", "1")
    state = state_of(callbacks=[Plain()], algorithms=[Mock()])
    state.seen = []
    with caplog.at_level(logging.DEBUG, logger="composer.core.engine"):
        engine = Engine(state, Logger(state))
        engine.run_event("EVAL_BATCH_END")
        engine.run_event("BATCH_END")
        engine.close()
    assert [record.getMessage() for record in caplog.records] == [
        "[ep=0][ba=0][eval_ba=0][event=EVAL_BATCH_END]: Running event",
        "[ep=0][ba=0][eval_ba=0][event=EVAL_BATCH_END]: Running algorithm Mock",
        "[ep=0][ba=0][event=BATCH_END]: Running event",
        "[ep=0][ba=0][event=BATCH_END]: Running algorithm Mock",
        "[ep=0][ba=0][event=BATCH_END]: Running callback Plain",
        "Closing the engine.",
        "Closing callback Plain",
        "Post-closing callback Plain",
        "Engine closed.",
    ]


def test_loggers_that_are_added_to_the_destinations_get_metrics():
    class Keeps(LoggerDestination):
        def __init__(self):
            self.names = []

        def log_metrics(self, metrics, step=None):
            self.names += metrics

    first, second = Keeps(), Keeps()
    logger = Logger(state_of(), [first])
    logger.log_metrics({"a": 1})
    logger.destinations = (*logger.destinations, second)
    logger.log_metrics({"b": 1})
    assert (first.names, second.names) == (["a", "b"], ["b"])
