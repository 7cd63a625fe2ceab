"""The screening of an exploration, within its share of the time."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from composer.exploration import screening_stage
from composer.exploration.budgeted_runner import BudgetedRunner
from composer.exploration.planning import baseline_runs, make_plan
from composer.exploration.program_facts import ProgramFacts
from composer.exploration.screening import Screened
from composer.exploration.screening_stage import ScreeningStage
from composer.exploration.variant import Variant
from composer.statistics.paired import Ratio
from composer.trials import Target
from composer.trials.workspace import Workspace
from tests.exploration.simulation import GOAL, Simulation, placebos

PRECISION = Variant("amp_bf16", ("precision=amp_bf16",), "precision", group="precision", speed_only=True)
COMPILE = Variant("compile", ("compile_config={}",), "compile", group="compile")


def screened(
    folder: Path,
    number: int,
    cpu_seconds: float,
    monkeypatch: pytest.MonkeyPatch,
    budget: float = math.inf,
    sizes: list[tuple[object, ...]] | None = None,
    start: float = 2.0,
) -> screening_stage.Screening:
    """The screening of placebos, a precision and compilation, of which each takes some time."""

    def measured(target: Target, variants: list[Variant], *others: object, **options: object) -> list[Screened]:
        if sizes is not None:
            sizes.append((len(variants), options["rounds"], options["steps"]))
        return [Screened(one, Ratio(1.0, 0.9, 1.1), cpu_seconds=cpu_seconds) for one in variants]

    monkeypatch.setattr(screening_stage, "screen", measured)
    runner = BudgetedRunner(Simulation(start=start), GOAL, budget)
    runs = baseline_runs(runner)
    plan = make_plan(runner, runs, number + 2)
    stage = ScreeningStage(Target("script", "train.py"), ProgramFacts(), Workspace(folder, None), clock="cpu")
    return stage(plan, runs, [*placebos(number), PRECISION, COMPILE])


def test_what_there_is_no_time_for_is_usable_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = screened(tmp_path, 12, 50.0, monkeypatch)
    assert len(found.screened) == 12  # two groups of six
    assert not found.refused
    names = {f"Placebo{number}" for number in range(12)}
    assert {one.name for one in found.variants} == {"amp_bf16", "compile", *names}
    assert found.notes == ("There was no time to measure the steps of 2 methods before the race: Placebo11, compile.",)
    # What a precision does is known from its steps; a method has the race.
    assert found.screened[0].variant == PRECISION
    assert COMPILE not in [one.variant for one in found.screened]


def test_all_is_tried_where_there_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = screened(tmp_path, 12, 1.0, monkeypatch)
    assert len(found.screened) == len(found.variants) == 14
    assert not found.refused
    assert not found.notes


@pytest.mark.parametrize(("budget", "number"), [(1900.0, 0), (2200.0, 1), (2650.0, 4), (math.inf, 6)])
def test_a_part_begins_only_if_it_is_expected_to_end_within_the_budget(
    budget: float, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The start takes most of the time, as of small programs: a variant takes 160 s and a run 280 s.
    sizes: list[tuple[object, ...]] = []
    found = screened(tmp_path, 12, 200.0, monkeypatch, budget, sizes, start=150.0)
    assert len(found.screened) == number
    assert len(found.variants) == 14
    assert "compile" in found.notes[0]
    if number and not math.isinf(budget):
        assert sizes == [(number, 2, 4)]  # as short as can be
