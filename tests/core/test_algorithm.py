from __future__ import annotations

import pytest
import torch

from composer.core import Algorithm, Engine, Event, Sharding, State
from composer.core.serializable import Serializable


class Scale(Algorithm):
    def __init__(self, factor, power=2, *, name="scale"):
        self.factor = factor
        self._power = power
        self.name = name

    def after_loss(self, state, logger):
        state.loss = state.loss * self.factor


def test_repr_shows_the_arguments_kept_under_their_names():
    assert repr(Scale(0.5)) == "Scale(factor=0.5, name='scale')"
    assert repr(Algorithm()) == "Algorithm()"


def test_state_dict_describes_the_constructor_arguments():
    assert Scale(0.5).state_dict() == {"repr": "Scale(factor=0.5, name='scale')"}
    assert Scale(0.5).load_state_dict({"repr": "anything"}) is None


def test_neutral_defaults():
    algorithm = Algorithm()
    assert algorithm.__traits__.slot is None
    assert algorithm.__traits__.claims == algorithm.__traits__.may_claim == frozenset()
    assert not algorithm.__traits__.conflicts_with
    assert algorithm.__traits__.sharding is Sharding.SAFE
    assert not Algorithm.required_on_load()
    assert not (
        algorithm.__traits__.changes_shapes or algorithm.find_unused_parameters or algorithm.backwards_create_graph
    )


def test_match_and_apply_dispatch_to_the_methods():
    algorithm, state = Scale(0.5), State(model=torch.nn.Linear(1, 1))
    state.loss = 8.0
    assert algorithm.match(Event.AFTER_LOSS, state)
    assert not algorithm.match(Event.BEFORE_LOSS, state)
    assert algorithm.apply(Event.AFTER_LOSS, state, None) is None
    assert state.loss == 4.0


def test_overridden_match_restricts_the_methods():
    class Sometimes(Scale):
        def match(self, event, state):
            return event is Event.AFTER_LOSS and state.loss > 1

    state = State(model=torch.nn.Linear(1, 1))
    state.loss = 2.0
    engine = Engine(state, algorithms=Sometimes(0.5))
    for _ in range(3):
        engine.run_event("after_loss")
    assert state.loss == 1.0


def test_overridden_apply_wraps_the_methods():
    class Counting(Scale):
        applied = 0

        def apply(self, event, state, logger):
            self.applied += 1
            return super().apply(event, state, logger)

    state = State(model=torch.nn.Linear(1, 1))
    state.loss = 2.0
    engine = Engine(state, algorithms=(counting := Counting(0.5)))
    engine.run_event("after_loss")
    engine.run_event("before_loss")
    assert (state.loss, counting.applied) == (1.0, 1)


def test_serializable_state_is_empty_by_default():
    nothing = Serializable()
    assert nothing.state_dict() == {}
    assert nothing.load_state_dict({"x": 1}) is None


@pytest.mark.parametrize("event", list(Event))
def test_base_class_matches_no_event(event):
    assert not Algorithm().match(event, None)
