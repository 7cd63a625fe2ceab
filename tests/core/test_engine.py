from __future__ import annotations

import itertools
import re

import pytest
import torch

from composer.core import Algorithm, Callback, Engine, Event, Logger, LoggerDestination, Slot, State
from composer.core.traits import Traits


def state_of(**arguments) -> State:
    return State(model=torch.nn.Linear(1, 1), **arguments)


def listener(base, name, seen, *events):
    """An object of a new class that says its name at some events, at all of them by default."""
    methods = {
        event.value: lambda self, state, logger, event=event: seen.append((name, event.value))
        for event in (map(Event, events) if events else Event)
    }
    return type(name, (base,), methods)()


class TestRunEvent:
    @pytest.mark.parametrize("event", list(Event))
    def test_by_member_value_and_name(self, event):
        seen = []
        engine = Engine(state_of(), callbacks=listener(Callback, "c", seen))
        for given in (event, event.value, event.name, event.name.title()):
            assert engine.run_event(given) == {}
        assert seen == [("c", event.value)] * 4

    def test_old_names(self):
        seen = []
        engine = Engine(state_of(), algorithms=listener(Algorithm, "a", seen, "fit_start", "fit_end"))
        for name in ("training_start", "TRAINING_END"):
            engine.run_event(name)
        assert seen == [("a", "fit_start"), ("a", "fit_end")]

    def test_an_unknown_name(self):
        with pytest.raises(ValueError, match=r"^Unknown event 'batch_ends'\. Did you mean 'batch_end'\?$"):
            Engine(state_of()).run_event("batch_ends")
        with pytest.raises(ValueError, match="Unknown event"):
            Engine(state_of()).run_marker_only_event("batch_ends")
        with pytest.raises(TypeError, match="An event must be an Event or a str, not NoneType: None"):
            Engine(state_of()).run_event(None)

    def test_markers_call_no_handlers(self):
        engine = Engine(state_of(), callbacks=listener(Callback, "c", seen := []))
        assert engine.run_marker_only_event("BATCH_END") is None
        engine.close()
        with pytest.raises(RuntimeError, match="The engine is closed"):
            engine.run_marker_only_event("BATCH_END")
        assert seen == []

    def test_has_listeners(self):
        engine = Engine(state_of(), callbacks=listener(Callback, "c", [], "batch_end"))
        assert [event for event in Event if engine.listens(event)] == [Event.BATCH_END]

    def test_custom_loop(self):
        class Halve(Algorithm):
            def after_dataloader(self, state, logger):
                state.batch = state.batch / 2

        state = State(model=torch.nn.Linear(1, 1), max_duration="10ep", rank_zero_seed=0)
        engine = Engine(state=state, algorithms=[Halve()])
        state.batch = torch.ones(2)
        engine.run_event("after_dataloader")
        assert torch.equal(state.batch, torch.full((2,), 0.5))


class TestOrder:
    @pytest.mark.parametrize("event", list(Event))
    def test_order_of_algorithms_callbacks_and_loggers(self, event):
        seen = []
        state = state_of()
        make = {"a": Algorithm, "b": Algorithm, "c": Callback, "d": Callback, "l": LoggerDestination}
        made = {name: listener(kind, name, seen) for name, kind in make.items()}
        engine = Engine(state, algorithms=[made["a"], made["b"]], callbacks=[made["l"], made["c"], made["d"]])
        engine.run_event(event)
        order = "".join(name for name, _ in seen)
        assert order == "lcdab" if event is Event.INIT else "bacdl" if event.runs_last_to_first else "abcdl"

    def test_slots(self):
        seen = []
        first, second = listener(Algorithm, "first", seen), listener(Algorithm, "second", seen)
        first.__traits__, second.__traits__ = Traits(slot=Slot.PRECISION), Traits(slot=Slot.SELECT)
        engine = Engine(state_of(), algorithms=[first, second])
        engine.run_event("after_dataloader")
        engine.run_event("after_loss")
        assert [name for name, _ in seen] == ["second", "first", "first", "second"]

    def test_slots_take_precedence_over_user_order(self):
        seen = []
        made = [listener(Callback, "c", seen), listener(LoggerDestination, "l", seen)]
        for callbacks in itertools.permutations(made):
            seen.clear()
            Engine(state_of(), callbacks=callbacks).run_event("epoch_end")
            assert [name for name, _ in seen] == ["c", "l"]


class TestPasses:
    def run(self, passes, register=()):
        seen = []
        engine = Engine(state_of(), None, passes, algorithms=[listener(Algorithm, name, seen) for name in "abc"])
        for entry in register:
            engine.register_pass(*entry)
        engine.run_event("batch_end")
        return "".join(name for name, _ in seen)

    @staticmethod
    def reverse(algorithms, event):
        return algorithms[::-1]

    @staticmethod
    def rotate(algorithms, event):
        return [*algorithms[1:], algorithms[0]]

    def test_forms(self):
        assert self.run(None) == self.run([]) == "abc"
        assert self.run(self.reverse) == self.run([self.reverse]) == self.run((self.reverse,)) == "cba"
        assert self.run((self.reverse, 0)) == self.run([(self.reverse, -1)]) == "cba"
        assert self.run([self.reverse, self.rotate]) == self.run((self.reverse, self.rotate)) == "bac"
        assert self.run([self.reverse, (self.rotate, 0)]) == "acb"

    def test_registered_later(self):
        assert self.run(self.reverse, [(self.rotate,)]) == "bac"
        assert self.run(self.reverse, [(self.rotate, 0)]) == "acb"

    def test_registering_makes_new_plans(self):
        seen = []
        engine = Engine(state_of(), algorithms=[listener(Algorithm, name, seen) for name in "ab"])
        engine.run_event("batch_end")
        engine.register_pass(self.reverse)
        engine.run_event("batch_end")
        assert [name for name, _ in seen] == ["a", "b", "b", "a"]

    @pytest.mark.parametrize(
        ("given", "shown"),
        [
            (3, "3"),
            ("x", "'x'"),
            ([3], "3"),
            ([(3, 0)], "(3, 0)"),
            ([(3, -1)], "3"),
            ([(len, "first")], f"({len!r}, 'first')"),
            ([(len, 0, 1)], f"({len!r}, 0, 1)"),
        ],
    )
    def test_invalid_passes(self, given, shown):
        message = (
            "algorithm_passes must be functions (algorithms, event) -> algorithms, each alone or with its index as "
            f"(function, index); got {shown}."
        )
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            Engine(state_of(), algorithm_passes=given)


class TestPlan:
    def test_plan_is_rebuilt_when_lists_change(self):
        seen = []
        engine = Engine(state_of())
        state = engine.state
        a, b = (listener(Algorithm, name, seen) for name in "ab")
        c, d = (listener(Callback, name, seen) for name in "cd")

        def fired():
            seen.clear()
            engine.run_event("batch_end")
            return "".join(name for name, _ in seen)

        assert fired() == ""
        state.algorithms.append(a)
        assert fired() == "a"
        state.callbacks = [c]
        assert fired() == "ac"
        state.algorithms += [b]
        assert fired() == "abc"
        state.algorithms.reverse()
        assert fired() == "bac"
        state.callbacks[0] = d
        assert fired() == "bad"
        state.algorithms.remove(b)
        assert fired() == "ad"
        del state.callbacks[:]
        assert fired() == "a"
        state.algorithms.clear()
        assert fired() == ""

    def test_assigning_keeps_the_list(self):
        state = state_of()
        algorithms, callbacks = state.algorithms, state.callbacks
        state.algorithms, state.callbacks = (Algorithm(),), (Callback(),)
        assert state.algorithms is algorithms
        assert state.callbacks is callbacks
        assert (len(algorithms), len(callbacks)) == (1, 1)

    def test_a_handler_may_change_the_lists(self):
        seen = []
        late = listener(Algorithm, "late", seen)

        class Adds(Algorithm):
            def batch_end(self, state, logger):
                state.algorithms.append(late)

        engine = Engine(state_of(), algorithms=[Adds()])
        engine.run_event("batch_end")
        assert seen == []
        engine.run_event("batch_end")
        assert seen == [("late", "batch_end")]

    def test_methods_not_overridden_are_not_called(self):
        class Quiet(Callback):
            def __getattribute__(self, name):
                assert name != "batch_start", "looked up"
                return super().__getattribute__(name)

        engine = Engine(state_of(), algorithms=Algorithm(), callbacks=[Quiet()])
        assert engine.run_event("batch_start") == {}

    def test_all_engines_of_a_state_are_notified(self):
        seen, state = [], state_of()
        engines = [Engine(state), Engine(state)]
        for engine in engines:
            engine.run_event("batch_end")
        state.callbacks.append(listener(Callback, "c", seen))
        for engine in engines:
            engine.run_event("batch_end")
        assert len(seen) == 2

    def test_match_is_called_each_time(self):
        class EverySecond(Algorithm):
            asked, applied = 0, []

            def match(self, event, state):
                self.asked += 1
                return self.asked % 2 == 0

            def apply(self, event, state, logger):
                self.applied.append(self.asked)

        algorithm = EverySecond()
        engine = Engine(state_of(), algorithms=[algorithm])
        for _ in range(5):
            engine.run_event("batch_end")
        assert (algorithm.asked, algorithm.applied) == (5, [2, 4])


class TestRegistration:
    @pytest.mark.parametrize(("argument", "kind"), [("algorithms", Algorithm), ("callbacks", Callback)])
    def test_invalid_listeners(self, argument, kind):
        message = f"{argument} must be {kind.__name__} objects; got 3."
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            Engine(state_of(), **{argument: [3]})
        engine = Engine(state_of())
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            getattr(engine.state, argument).append(3)
        assert getattr(engine.state, argument) == []

    def test_class_instead_of_instance(self):
        class Mine(Algorithm):
            pass

        message = f"algorithms must be Algorithm objects; got {Mine!r}. Make an object of it: Mine(...)."
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            Engine(state_of(), algorithms=[Mine])

    @pytest.mark.parametrize(("there", "missing"), [("match", "apply"), ("apply", "match")])
    def test_algorithm_with_match_or_apply_only_is_rejected(self, there, missing):
        half = type("Half", (Algorithm,), {there: lambda self, event, state: True})()
        message = (
            f"Half defines {there} but not {missing}, so it would never act. Define both, or write methods named "
            f"after the events instead."
        )
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            Engine(state_of(), algorithms=half)

    def test_logger_is_made_of_the_loggers_among_the_callbacks(self):
        destination = LoggerDestination()
        state = state_of(callbacks=[Callback(), destination])
        assert Engine(state).logger.destinations == (destination,)
        given = Logger(state)
        assert Engine(state, given).logger is given
