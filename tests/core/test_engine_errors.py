"""Engine: failing handlers, traces and closing."""

from __future__ import annotations

import gc
import logging
import textwrap
import weakref

import pytest
import torch

from composer.core import Algorithm, Callback, Engine, Event, Logger, LoggerDestination, Trace
from tests import after_torch
from tests.core.test_engine import listener, state_of


class Broken(Callback):
    def batch_end(self, state, logger):
        raise ValueError("broken")


class BrokenAlgorithm(Algorithm):
    def batch_end(self, state, logger):
        raise ValueError("broken")


class BrokenByEvent(Callback):
    def run_event(self, event, state, logger):
        raise ValueError("broken")


class BrokenApply(Algorithm):
    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        raise ValueError("broken")


class Empty(Broken):
    def __len__(self):
        return 0


class TestErrors:
    @pytest.mark.parametrize("kind", [Broken, BrokenByEvent, BrokenAlgorithm, BrokenApply, Empty])
    @pytest.mark.parametrize("given", [Event.BATCH_END, "batch_end", "BATCH_END"])
    def test_note_names_the_failing_handler(self, kind, given):
        target = "algorithms" if issubclass(kind, Algorithm) else "callbacks"
        engine = Engine(state_of(), **{target: [kind()]})
        for _ in range(2):
            with pytest.raises(ValueError, match="broken") as caught:
                engine.run_event(given)
            assert caught.value.__notes__ == [f"Raised by {kind.__name__} at the event 'batch_end'."]

    def test_note_names_an_instance_method(self):
        for base, target in ((Callback, "callbacks"), (Algorithm, "algorithms")):
            mine = base()
            mine.batch_end = lambda state, logger: 1 / 0
            with pytest.raises(ZeroDivisionError) as caught:
                Engine(state_of(), **{target: [mine]}).run_event("batch_end")
            assert caught.value.__notes__ == [f"Raised by {base.__name__} at the event 'batch_end'."]

    def test_note_names_the_keys_that_the_batch_lacks(self):
        from composer.algorithms import LabelSmoothing, MixUp

        batch = {"image": torch.ones(2, 3), "label": torch.zeros(2)}
        for algorithm, event, keys in (
            (MixUp(), "before_forward", "input_key=0, target_key=1"),
            (LabelSmoothing(), "before_loss", "target_key=1"),
        ):
            engine = Engine(state_of(), algorithms=[algorithm])
            engine.state.batch = batch
            with pytest.raises(KeyError, match="Its keys: image, label") as caught:
                engine.run_event(event)
            assert caught.value.__notes__ == [
                f"Raised by {type(algorithm).__name__} at the event {event!r}. Its keys of the batch are {keys}: pass "
                "those of your batches."
            ]

    def test_note_on_interrupt(self):
        class Stop(Callback):
            def batch_end(self, state, logger):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) as caught:
            Engine(state_of(), callbacks=Stop()).run_event("batch_end")
        assert caught.value.__notes__ == ["Raised by Stop at the event 'batch_end'."]

    def test_later_handlers_are_not_called(self):
        engine = Engine(state_of(), callbacks=[Broken(), listener(Callback, "c", seen := [])])
        with pytest.raises(ValueError, match="broken"):
            engine.run_event("batch_end")
        assert seen == []


class TestTraces:
    def test_one_trace_per_algorithm(self):
        class Second(Algorithm):
            def match(self, event, state):
                return state.batch is not None

            def apply(self, event, state, logger):
                return 7

        logged = []

        class Destination(LoggerDestination):
            def log_traces(self, traces):
                logged.append(traces)

        first = listener(Algorithm, "First", [], "batch_end")
        engine = Engine(state_of(), algorithms=[first, Second()], callbacks=Destination(), record_traces=True)
        assert engine.run_event("batch_end") == {
            "0.First/batch_end": Trace("First", Event.BATCH_END, None, 0, True),
            "1.Second/batch_end": Trace("Second", Event.BATCH_END, None, 1, False),
        }
        assert logged == [{"algorithm_traces/First/batch_end": 1}, {"algorithm_traces/Second/batch_end": 0}]
        engine.state.batch = 1
        traces = engine.run_event("after_loss")
        assert traces == {"0.Second/after_loss": Trace("Second", Event.AFTER_LOSS, 7, 0, True)}

    def test_two_instances_of_one_class_have_separate_traces(self):
        algorithms = [listener(Algorithm, "Same", [], "init") for _ in range(2)]
        traces = Engine(state_of(), algorithms=algorithms, record_traces=True).run_event("init")
        assert list(traces) == ["0.Same/init", "1.Same/init"]

    def test_no_traces_in_custom_loops_by_default(self):
        engine = Engine(state_of(), algorithms=BrokenApply())
        engine.state.algorithms[0] = listener(Algorithm, "a", [])
        assert [trace.name for trace in engine.run_event("batch_end").values()] == ["a"]
        with engine.looping():
            assert engine.run_event("batch_end") == {}

    def test_nested_event_has_separate_traces(self):
        inner = []

        class Outer(Algorithm):
            def batch_start(self, state, logger):
                inner.append(engine.run_event("batch_end"))

        engine = Engine(state_of(), record_traces=True)
        engine.state.algorithms = [listener(Algorithm, "a", []), Outer()]
        assert list(engine.run_event("batch_start")) == ["0.a/batch_start", "1.Outer/batch_start"]
        assert [list(traces) for traces in inner] == [["0.a/batch_end"]]

    def test_traces_are_cleared_after_an_error(self):
        engine = Engine(state_of(), record_traces=True)
        engine.state.algorithms = [listener(Algorithm, "a", []), BrokenAlgorithm()]
        with pytest.raises(ValueError, match="broken"):
            engine.run_event("batch_end")
        assert list(engine.run_event("batch_start")) == ["0.a/batch_start"]


class Closes(Callback):
    def __init__(self, name, seen, broken=""):
        self.name, self.seen, self.broken = name, seen, broken

    def close(self, state, logger):
        self.seen.append(f"{self.name} close")
        if self.broken == "close":
            raise ValueError(self.name)

    def post_close(self):
        self.seen.append(f"{self.name} post_close")
        if self.broken == "post_close":
            raise ValueError(self.name)


class ClosesLogger(Closes, LoggerDestination):
    def log_metrics(self, metrics, step=None):
        self.seen.append(f"{self.name} {metrics}")


class TestClose:
    def test_close_then_post_close_once(self):
        seen = []
        engine = Engine(state_of(), callbacks=[Closes("a", seen), Closes("b", seen)])
        assert not engine.closed
        for _ in range(2):
            engine.close()
            assert engine.closed
        del engine
        gc.collect()
        assert seen == ["a close", "b close", "a post_close", "b post_close"]

    def test_all_are_closed_even_if_one_fails(self, caplog):
        seen = []
        broken = [Closes("a", seen, "close"), Closes("b", seen, "post_close"), Closes("c", seen)]
        with caplog.at_level(logging.ERROR):
            Engine(state_of(), callbacks=broken).close()
        assert seen == ["a close", "b close", "c close", "b post_close", "c post_close"]
        assert [record.getMessage() for record in caplog.records] == [
            "Closes.close failed.",
            "Closes.post_close failed.",
        ]

    def test_loggers_close_last_and_receive_late_metrics(self):
        seen = []

        class LogsWhileClosing(Closes):
            def close(self, state, logger):
                super().close(state, logger)
                logger.log_metrics({"last": 1})

        engine = Engine(state_of(), callbacks=[ClosesLogger("l", seen), LogsWhileClosing("a", seen)])
        engine.logger.deferred = True
        engine.logger.log_metrics({"first": 1})
        assert seen == []
        engine.close()
        assert seen == ["l {'first': 1}", "a close", "l {'last': 1}", "l close", "a post_close", "l post_close"]

    def test_metrics_that_cannot_be_delivered(self, caplog):
        seen = []

        class Full(ClosesLogger):
            def log_metrics(self, metrics, step=None):
                raise OSError("disk full")

        loggers = [Full("f", seen), ClosesLogger("l", seen)]
        state = state_of(callbacks=loggers)
        engine = Engine(state, Logger(state, loggers, on_error="raise"))
        engine.logger.deferred = True
        engine.logger.log_metrics({"m": 1})
        with caplog.at_level(logging.ERROR):
            engine.close()
        assert seen == ["l {'m': 1}", "f close", "l close", "f post_close", "l post_close"]
        assert caplog.records[0].getMessage() == "The last metrics could not be delivered."

    @pytest.mark.parametrize("algorithm", [BrokenAlgorithm, BrokenApply])
    def test_closes_when_the_last_reference_is_dropped(self, algorithm):
        seen = []
        engine = Engine(state_of(), algorithms=algorithm(), callbacks=[Closes("a", seen), ClosesLogger("l", seen)])
        engine.run_event("fit_start") if algorithm is BrokenAlgorithm else engine.listens(Event.FIT_START)
        gc.collect()
        gc.disable()
        try:
            del engine
            assert seen == ["a close", "l close", "a post_close", "l post_close"]
        finally:
            gc.enable()

    def test_the_state_outlives_its_engine_and_can_have_another(self):
        seen = []
        state = state_of(callbacks=[listener(Callback, "c", seen, "batch_end")])
        Engine(state).close()
        gc.collect()
        state.callbacks.append(Callback())
        Engine(state).run_event("batch_end")
        assert seen == [("c", "batch_end")]

    def test_state_is_freed_after_its_engine(self):
        state = state_of(callbacks=[LoggerDestination()])
        engine = Engine(state, algorithms=[BrokenApply()], record_traces=True)
        for event in Event:
            engine.listens(event)
        engine.close()
        dead = weakref.ref(state), weakref.ref(engine), weakref.ref(state.model), weakref.ref(engine.logger)
        del state, engine
        gc.collect()
        assert [ref() for ref in dead] == [None] * 4

    @pytest.mark.parametrize("ending", ["engine.close()", "raise SystemExit(0)"])
    def test_closes_once_at_interpreter_exit(self, ending):
        program = f"""
            import torch
            from composer import Callback, Engine, State

            class Says(Callback):
                def close(self, state, logger):
                    print("close", len(state.callbacks), flush=True)

                def post_close(self):
                    print("post_close", flush=True)

            class Breaks(Callback):
                def close(self, state, logger):
                    raise ValueError("broken")

            state = State(model=torch.nn.Linear(1, 1))
            engine = Engine(state, callbacks=[Breaks(), Says()])
            {ending}
        """
        done = after_torch.run(textwrap.dedent(program), warn="error")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "close 2\npost_close\n"
        assert "Breaks.close failed." in done.stderr
        assert done.stderr.count("Traceback") == 1
