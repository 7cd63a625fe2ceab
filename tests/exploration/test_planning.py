from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from composer.exploration.budgeted_runner import BudgetedRunner
from composer.exploration.goal import Goal
from composer.exploration.planning import BaselineError, Plan, baseline_runs, final_quality, make_plan
from composer.exploration.runner import Failure, Request
from composer.exploration.trajectory import Evaluation, Trajectory
from composer.exploration.variant import BASELINE
from tests.exploration.simulation import GOAL, Simulation


def planned(simulation: Simulation, budget: float = math.inf, pairs: int = 8) -> Plan:
    runner = BudgetedRunner(simulation, simulation.goal, budget)
    return make_plan(runner, baseline_runs(runner), 20, pairs)


def test_equal_runs_say_how_much_runs_spread_and_what_that_can_tell() -> None:
    close, wide = planned(Simulation(learning_noise=0.01)), planned(Simulation(learning_noise=0.2, seed_noise=0.2))
    assert len(close.times) == 3
    assert close.seconds == pytest.approx(Simulation().time, rel=0.1)
    assert close.spread < wide.spread
    assert close.prospect is not None
    assert wide.prospect is not None
    assert close.prospect.smallest_gain < wide.prospect.smallest_gain
    assert close.search == pytest.approx(15 * close.cost)
    assert "can tell gains of at least" in str(close)


def test_runs_that_are_equal_to_the_last_digit_are_not_taken_for_certain() -> None:
    plan = planned(Simulation(time_noise=0, seed_noise=0, learning_noise=0, value_noise=0))
    assert plan.spread > 0
    assert plan.prospect is not None


@pytest.mark.parametrize(("trainings", "pairs"), [(10, 0), (17, 0), (19, 6), (23, 8), (60, 8)])
def test_the_plan_keeps_within_the_budget(trainings: float, pairs: int) -> None:
    simulation = Simulation(time_noise=0, seed_noise=0, learning_noise=0, value_noise=0)
    cost = planned(simulation).cost
    plan = planned(replace(simulation, records={}), budget=trainings * cost)
    assert plan.pairs == pairs
    assert plan.total <= trainings * cost * (1 + 1e-9)
    assert ("does not suffice to confirm" in str(plan)) == (pairs == 0)


def test_more_pairs_are_on_request_and_fewer_than_six_are_an_error() -> None:
    assert planned(Simulation(), pairs=12).pairs == 12
    with pytest.raises(ValueError, match="at least 6, but got 4"):
        planned(Simulation(), pairs=4)


def test_a_target_that_is_not_reached_says_what_was_and_what_to_write_after_one_run() -> None:
    goal = replace(GOAL, target=0.99)
    simulation = Simulation(goal=goal, value_noise=0)
    with pytest.raises(BaselineError, match=r"did not reach accuracy>=0\.99 in 299 s") as caught:
        planned(simulation)
    text = str(caught.value)
    written = Goal.parse(text.partition("--target '")[2].partition("'")[0])
    assert simulation.runs == 1
    # The value that is recommended is reached.
    assert planned(Simulation(goal=written, value_noise=0)).times


def test_the_value_to_write_for_a_loss_is_above_what_was_reached() -> None:
    class Falling(Simulation):
        def train(self, requests: list[Request]) -> list:  # type: ignore[override]
            outcomes = super().train(requests)
            for one in outcomes:
                assert isinstance(one, Trajectory)
            return [
                replace(one, evaluations=tuple(replace(each, value=1 - each.value) for each in one.evaluations))
                for one in outcomes
                if isinstance(one, Trajectory)
            ]

    goal = Goal("loss", maximize=False, target=0.001)
    with pytest.raises(BaselineError, match=r"--target 'loss<=0\.0[12]") as caught:
        planned(Falling(goal=goal))
    assert Goal.parse(str(caught.value).partition("--target '")[2].partition("'")[0]).is_reached(0.0165)


def test_a_baseline_that_fails_or_is_never_evaluated_is_an_error() -> None:
    class Failing(Simulation):
        def train(self, requests: list[Request]) -> list:  # type: ignore[override]
            from composer.exploration.runner import Failure

            return [Failure("no such \x1b[2Jfile")] * len(requests)

    with pytest.raises(BaselineError, match="fails as it is: no such") as caught:
        planned(Failing())
    assert "\x1b" not in str(caught.value)
    with pytest.raises(BaselineError, match="eval_interval"):
        planned(Simulation(interval=200.0))


def test_rare_evaluations_are_said() -> None:
    assert "a shorter eval_interval" in str(planned(Simulation(interval=25.0)))
    assert "a shorter eval_interval" not in str(planned(Simulation()))


def test_a_metric_that_is_never_finite_is_said_to_be_so() -> None:
    class Nan(Simulation):
        def train(self, requests: Sequence[Request]) -> list[Trajectory | Failure]:
            nan = Evaluation(1.0, 1, 32, math.nan)
            return [Trajectory((nan, replace(nan, seconds=2.0, batch=2)), 2.0, 2, cost=2.0) for _ in requests]

    with pytest.raises(BaselineError, match="finite in 0 of 2 evaluations"):
        planned(Nan())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_not_finite_in_the_end_is_said_to_be_so(value: float) -> None:
    class Late(Simulation):
        def train(self, requests: Sequence[Request]) -> list[Trajectory | Failure]:
            curve = [Evaluation(float(n), n, 32 * n, value if n > 5 else 0.5) for n in range(1, 8)]
            return [Trajectory(tuple(curve), 7.0, 7, cost=7.0) for _ in requests]

    said = rf"accuracy of the baseline is {value} at its last evaluation, after 7 s"
    late = Late(goal=Goal("accuracy", maximize=True, seconds=60.0))
    with pytest.raises(BaselineError, match=said):
        planned(late)
    with pytest.raises(BaselineError, match=said):
        final_quality(BudgetedRunner(late, Goal("accuracy", maximize=True, seconds=math.inf)))


def test_a_goal_of_quality_has_a_spread_of_quality() -> None:
    goal = Goal("accuracy", maximize=True, seconds=60.0)
    plan = planned(Simulation(goal=goal, value_noise=0.01))
    assert plan.seconds == pytest.approx(60.0)
    assert 0 < plan.spread < 0.1
    assert plan.prospect is None
    assert "After 60 s of training, the baseline has accuracy = 0.8" in str(plan)
    assert plan.limit == 60.0


def test_a_hostile_name_of_a_metric_is_safe_to_print() -> None:
    goal = Goal("\x1b[2Jacc", maximize=True, target=0.95)
    plan = planned(Simulation(goal=goal))
    assert "\x1b" not in str(plan)
    assert "\x1b" not in str(replace(plan, goal=Goal(goal.metric, maximize=True, seconds=60.0)))


def test_a_single_run_is_an_error() -> None:
    runner = BudgetedRunner(Simulation(), GOAL)
    (run,) = runner.train("noise", [Request(BASELINE, 0)])
    assert isinstance(run, Trajectory)
    with pytest.raises(ValueError, match="at least 2 A/A runs"):
        make_plan(runner, [run], 3)


def test_a_run_that_is_much_slower_than_the_first_is_trained_to_its_target() -> None:
    class Busy(Simulation):
        def _run(self, request: Request) -> Trajectory | Failure:
            self.tau = 25.0 if request.seed == 0 else 75.0
            return super()._run(request)

    runs = baseline_runs(BudgetedRunner(Busy(duration=900.0), GOAL))
    assert len(runs) == 3
    assert runs[1].seconds > 2 * runs[0].seconds


@pytest.mark.parametrize("methods", [20, 0])
def test_a_budget_that_the_equal_runs_take_says_so_and_how_much_would_do(methods: int) -> None:
    runner = BudgetedRunner(Simulation(), GOAL, budget=200.0)
    text = str(make_plan(runner, baseline_runs(runner), methods))
    assert "at most 200 s" not in text
    assert "The A/A runs took 5 min of the budget of 3 min: " in text
    assert ("of 20 methods, few or none are compared. A search takes 14 min or more. " in text) == (methods > 0)
    assert "The budget of 3 min does not suffice to confirm what it finds; that takes about 41 min in all." in text
