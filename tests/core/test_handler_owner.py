from __future__ import annotations

import itertools

import pytest

from composer.core import Algorithm, Callback, Engine, Event, LoggerDestination
from composer.core.handler_owner import owned, owner_of
from tests.core.test_engine import listener, state_of


class Wrapper(Callback):
    """Notes when the handlers of an event begin and end, and how often it was asked to wrap them."""

    def __init__(self, name, seen):
        self.name, self.seen, self.asked = name, seen, []

    def __wrap_handlers__(self, event, handlers):
        self.asked.append((event, [type(owner_of(handler)).__name__ for handler in handlers]))
        return tuple(map(self.wrapped, handlers))

    def wrapped(self, handler):
        def call(state, logger):
            self.seen.append((self.name, "begin"))
            handler(state, logger)
            self.seen.append((self.name, "end"))

        return owned(call, owner_of(handler))


class Broken(Callback):
    def batch_end(self, state, logger):
        raise ValueError("broken")


def test_the_owner_of_each_type_of_handler():
    seen = []

    class ByEvent(Callback):
        def run_event(self, event, state, logger):
            seen.append(event)

    class Applies(Algorithm):
        def match(self, event, state):
            return True

        def apply(self, event, state):
            seen.append(event)

    wrapper = Wrapper("w", [])
    engine = Engine(
        state_of(),
        algorithms=[listener(Algorithm, "Method", seen), Applies()],
        callbacks=[listener(LoggerDestination, "Destination", seen), ByEvent(), wrapper],
    )
    engine.run_event("batch_end")
    # Between callbacks and loggers stands the delivery of metrics, which is nobody's.
    assert wrapper.asked == [(Event.BATCH_END, ["Method", "Applies", "ByEvent", "NoneType", "Destination"])]
    assert len(seen) == 4


def test_handlers_are_collected_again_when_lists_change():
    wrapper = Wrapper("w", seen := [])
    engine = Engine(state_of(), callbacks=[wrapper, listener(Callback, "c", seen, "batch_end")])
    with engine.looping():
        for _ in range(3):
            engine.run_event("batch_end")
        assert wrapper.asked == [(Event.BATCH_END, ["c"])]
        assert seen == [("w", "begin"), ("c", "batch_end"), ("w", "end")] * 3
        engine.state.callbacks.append(listener(Callback, "d", seen, "batch_end"))
        engine.run_event("batch_end")
    assert wrapper.asked[1:] == [(Event.BATCH_END, ["c", "d"])]


def test_an_event_without_listeners_stays_so():
    wrapper = Wrapper("w", [])
    engine = Engine(state_of(), callbacks=wrapper)
    for event in Event:
        engine.run_event(event)
        assert not engine.listens(event)
    assert wrapper.asked == []


@pytest.mark.parametrize("order", list(itertools.permutations("ab")))
def test_first_wrapper_is_outermost(order):
    seen = []
    callbacks = [*(Wrapper(name, seen) for name in order), listener(Callback, "c", seen, "batch_end")]
    Engine(state_of(), callbacks=callbacks).run_event("batch_end")
    first, second = order
    expected = [(first, "begin"), (second, "begin"), ("c", "batch_end"), (second, "end"), (first, "end")]
    assert seen == expected


def test_handlers_may_be_added_and_removed():
    class Replace(Callback):
        def __wrap_handlers__(self, event, handlers):
            return [lambda state, logger: seen.append("instead")]

    engine = Engine(state_of(), callbacks=[Replace(), listener(Callback, "c", seen := [])])
    engine.run_event("batch_end")
    assert seen == ["instead"]


def test_error_note_still_names_the_owner():
    engine = Engine(state_of(), callbacks=[Wrapper("w", []), Broken()])
    with pytest.raises(ValueError, match="broken") as caught:
        engine.run_event("batch_end")
    assert caught.value.__notes__ == ["Raised by Broken at the event 'batch_end'."]


def test_a_failing_destination_stays_guarded():
    class Fails(LoggerDestination):
        def batch_end(self, state, logger):
            raise ValueError("full")

    engine = Engine(state_of(), callbacks=[Wrapper("w", []), Fails()])
    with pytest.warns(UserWarning, match="Fails failed"):
        engine.run_event("batch_end")


def test_functions_have_no_owner():
    assert owner_of(lambda state, logger: None) is None
    assert owner_of(None) is None
    assert owner_of(owned(lambda state, logger: None, None)) is None
