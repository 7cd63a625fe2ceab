from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.exploration.budgeted_runner import BudgetedRunner
from composer.exploration.curves import Reference
from composer.exploration.halving import Heat, HeatResult, Rung, RungResult, Standing, rungs_within, with_kept
from composer.exploration.planning import baseline_runs
from composer.exploration.variant import Variant
from tests.exploration.simulation import GOAL, Effect, Simulation, method, placebos


def heat(simulation: Simulation) -> Heat:
    runner = BudgetedRunner(simulation, GOAL)
    return Heat(runner, Reference(GOAL, tuple(baseline_runs(runner))), lambda seconds: 0.05, range(3))


@given(
    number=st.integers(0, 60),
    longest=st.floats(1, 1000),
    share=st.floats(0, 1),
    trainings=st.floats(0, 30),
    start=st.floats(0, 20),
)
@settings(max_examples=200, deadline=None)
def test_rungs_fit_into_the_allowance_and_grow(
    number: int, longest: float, share: float, trainings: float, start: float
) -> None:
    def cost_of(seconds: float) -> float:
        return start + 1.1 * seconds

    allowance = trainings * longest
    rungs = rungs_within(number, longest, share * longest, allowance, cost_of)
    done = [0.0, *(rung.seconds for rung in rungs)]
    cost = sum(rung.number * cost_of(rung.seconds - before) for rung, before in zip(rungs, done, strict=False))
    assert cost <= allowance * (1 + 1e-9) or not rungs
    assert done == sorted(set(done))
    assert all(one.number >= two.number > 0 for one, two in itertools.pairwise(rungs))
    if rungs:
        assert rungs[-1].seconds == longest
        assert rungs[0].number <= number
        assert rungs[0].seconds >= share * longest * (1 - 1e-9)
    elif number:
        assert allowance < cost_of(longest)


def test_the_better_ones_go_on_and_failures_are_kept_with_their_error() -> None:
    effects = {"Good": Effect(1.5), "Bad": Effect(0.4), "Lost": Effect(fails="out of memory")}
    simulation = Simulation(effects, time_noise=0.01, learning_noise=0.01)
    race = heat(simulation)
    variants = [method("Bad"), *placebos(4), method("Lost"), method("Good")]
    found = race.halve("methods", variants, [Rung(20.0, 7), Rung(40.0, 3), Rung(70.0, 2)])
    assert found[0].variant.name == "Good"
    assert {one.variant.name for one in found} == {one.name for one in variants}
    assert found[0].seconds == 70.0
    assert found[0].gain == pytest.approx(math.log(1.5), abs=0.12)
    (lost,) = (one for one in found if one.variant.name == "Lost")
    assert (lost.gain, lost.error, lost.seconds) == (-math.inf, "out of memory", 20.0)
    (result,) = race.take_results()
    assert [(rung.seconds, len(rung.standings)) for rung in result.rungs] == [(20.0, 7), (40.0, 3), (70.0, 2)]
    assert {"Lost", "Bad"} <= {*result.rungs[0].dropped}
    assert result.to_json()["rungs"][0]["gains"]["Lost"] is None
    assert result.rungs[2].dropped == []
    assert race.take_results() == []
    assert race.at(found[0].variant, 20.0).seconds == 20.0
    assert race.standings[found[0].variant].seconds == 70.0


def test_what_is_far_behind_does_not_go_on_even_if_there_is_room() -> None:
    race = heat(Simulation({f"Bad{n}": Effect(0.4) for n in range(3)}))
    found = race.halve("methods", [method(f"Bad{n}") for n in range(3)], [Rung(20.0, 3), Rung(70.0, 3)])
    assert {one.seconds for one in found} == {20.0}


def test_a_variant_that_was_not_evaluated_says_so() -> None:
    race = heat(Simulation({"Slow": Effect(1.0, step=30.0)}))
    (found,) = race.measure("methods", [method("Slow")], 20.0)
    assert found.error == "was not evaluated within 20 s of training"


def test_no_rung_begins_without_the_time_for_it() -> None:
    race = heat(Simulation())
    race.runner.up_to(race.runner.spent + 100.0)
    found = race.halve("methods", placebos(4), [Rung(10.0, 4), Rung(100.0, 4)])
    assert {one.seconds for one in found} == {10.0}
    assert race.runner.left > 0


def test_what_was_trained_for_longer_or_is_proposed_was_not_dropped() -> None:
    names = [Variant(name) for name in ("longer", "proposed", "left")]
    rung = RungResult(10.0, tuple(Standing(one, 0.1, 10.0, 1) for one in names), ())
    halved = HeatResult("combinations", (rung, RungResult(20.0, rung.standings[:1], (names[0],))))
    last = {one: Standing(one, 0.1, 30.0 if one.name == "longer" else 10.0, 1) for one in names}
    tuned, same = with_kept([HeatResult("tuning", (rung,)), halved], last, [names[1], None])
    assert tuned.to_json()["rungs"][0]["dropped"] == ["left"]
    assert same == halved
