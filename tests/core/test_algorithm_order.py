from __future__ import annotations

import re
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.core import Algorithm, Callback, Claim, Engine, Event, Slot, State, sort_to_back, sort_to_front
from composer.core.algorithm_order import arrange, warn_of_conflicts
from composer.core.traits import Traits
from composer.warnings import NotIntendedUseWarning


class Named(Algorithm):
    def __init__(self, name, slot=None):
        self.name, self.__traits__ = name, Traits(slot=slot)

    def __repr__(self):
        return self.name


class Special(Named):
    pass


class Mixes(Algorithm):
    __traits__ = Traits(claims=frozenset({Claim.LOSS_MIX}))


class MixesToo(Mixes):
    pass


def names(algorithms):
    return "".join(algorithm.name for algorithm in algorithms)


A, B, C = Named("a"), Named("b"), Named("c")
FORWARD = [event for event in Event if not event.runs_last_to_first]
REVERSE = [event for event in Event if event.runs_last_to_first]


class TestArrange:
    @pytest.mark.parametrize("event", FORWARD)
    def test_the_users_order(self, event):
        assert names(arrange([B, A, C], event, [])) == "bac"

    @pytest.mark.parametrize("event", REVERSE)
    def test_undo_events_run_last_to_first(self, event):
        assert names(arrange([B, A, C], event, [])) == "cab"

    @given(st.permutations(list(Slot)))
    def test_slots_take_precedence_over_user_order(self, slots):
        algorithms = [Named(str(int(slot)), slot) for slot in slots]
        assert names(arrange(algorithms, Event.INIT, [])) == "01234"
        assert names(arrange(algorithms, Event.AFTER_LOSS, [])) == "43210"

    def test_default_slot_is_augmentation(self):
        late, early, augment = Named("p", Slot.PRECISION), Named("s", Slot.SELECT), Named("u", Slot.AUGMENT)
        assert names(arrange([late, A, augment, B, early], Event.INIT, [])) == "saubp"

    def test_passes_run_last_in_their_order(self):
        seen = []

        def back(algorithms, event):
            seen.append((names(algorithms), event))
            return algorithms[::-1]

        def first_to_the_end(algorithms, event):
            seen.append((names(algorithms), event))
            return (*algorithms[1:], algorithms[0])

        after = Event.AFTER_LOSS
        assert names(arrange([A, B, C], after, [back, first_to_the_end])) == "bca"
        assert seen == [("cba", after), ("abc", after)]

    def test_pass_receives_a_separate_list(self):
        algorithms = [A, B]

        def in_place(given, event):
            given.reverse()
            return given

        assert names(arrange(algorithms, Event.INIT, [in_place, lambda given, event: iter(given)])) == "ba"
        assert algorithms == [A, B]

    @pytest.mark.parametrize(
        ("returned", "shown"),
        [(None, "None"), ([A, 3], "[a, 3]"), (["a"], "['a']"), (3, "3")],
    )
    def test_a_pass_that_returns_something_else(self, returned, shown):
        def bad(algorithms, event):
            return returned

        message = (
            "algorithm_passes: bad must return a list of algorithms, such as its input in another order; at "
            f"init it received [a, b] and returned {shown}."
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            arrange([A, B], Event.INIT, [bad])

    @pytest.mark.parametrize("given", [[], [A], [A, B]])
    @pytest.mark.parametrize("returned", [[], [A], [C], [A, B, C], [B, A, B]])
    def test_pass_may_remove_and_add(self, given, returned):
        assert arrange(given, Event.INIT, [lambda algorithms, event: iter(returned)]) == returned

    def test_a_pass_without_a_name(self):
        class Pass:
            def __call__(self, algorithms, event):
                return None

            def __repr__(self):
                return "<my pass>"

        with pytest.raises(ValueError, match="algorithm_passes: <my pass> must"):
            arrange([A], Event.INIT, [Pass()])


class TestSort:
    def test_to_front_and_back_are_stable(self):
        x, y = Special("x"), Special("y")
        assert names(sort_to_front([A, x, B, y], Special)) == "xyab"
        assert names(sort_to_back([x, A, y, B], Special)) == "abxy"

    def test_as_a_pass(self):
        x = Special("x")
        assert names(arrange([A, B, x], Event.INIT, [lambda given, event: sort_to_front(given, Special)])) == "xab"


class TestClaims:
    def test_the_warning_names_both_and_the_remedy(self):
        message = (
            "Mixes and MixesToo both claim 'loss_mix': their effects would mix. Pass interpolate_loss=True to one of "
            "them only."
        )
        with pytest.warns(NotIntendedUseWarning, match=f"^{re.escape(message)}$"):
            warn_of_conflicts([Mixes(), A, MixesToo()])

    def test_three(self):
        with pytest.warns(NotIntendedUseWarning, match="^Mixes and Mixes and MixesToo all claim"):
            warn_of_conflicts([Mixes(), Mixes(), MixesToo()])

    def test_none_for_one(self):
        warn_of_conflicts([Mixes(), A, B])

    def test_warning_is_given_once_per_algorithm(self):
        engine = Engine(State(model=torch.nn.Linear(1, 1)), algorithms=Mixes())
        with pytest.warns(NotIntendedUseWarning):
            engine.state.algorithms.append(MixesToo())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            engine.run_event("init")
            engine.state.callbacks.append(Callback())
            engine.state.algorithms.pop()

    def test_declared_pair_warns_once(self):
        class Averages(Algorithm):
            __traits__ = Traits(conflicts_with={"AveragesToo": "both do it. Take one."})

        class AveragesToo(Algorithm):
            __traits__ = Traits(conflicts_with={"Averages": "both do it. Take one."})

        for order in ([Averages(), A, AveragesToo()], [AveragesToo(), Averages()], [Averages(), AveragesToo()] * 2):
            with pytest.warns(NotIntendedUseWarning, match="conflicts with Averages.*: both do it. Take") as found:
                Engine(State(model=torch.nn.Linear(1, 1)), algorithms=order)
            assert len(found) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of_conflicts([Averages(), A, Averages()])

    def test_every_claim_has_a_remedy(self):
        from composer.core.algorithm_order import _REMEDY

        assert set(_REMEDY) == set(Claim)
