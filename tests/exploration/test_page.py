"""The page of an exploration: what it shows, hostile names as text, its size, and the same in a browser."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from composer.exploration.exploration import Exploration, MethodVerdict
from composer.exploration.goal import Goal
from composer.exploration.kept_runs import KeptRun
from composer.exploration.method_search import search
from composer.exploration.page import exploration_page
from composer.exploration.runner import Failure
from composer.exploration.screening import Screened
from composer.exploration.trajectory import Evaluation, Trajectory
from composer.exploration.variant import Variant
from composer.statistics.bootstrap import Estimate
from composer.statistics.holm import Decision
from composer.statistics.paired import Ratio
from tests.browser import SCREENS, open_page, wait_until
from tests.exploration.simulation import Effect, Simulation, method, placebos, rates, tuning

pytest.importorskip("plotly")
HOSTILE = "</script><img src=x onerror=alert(1)> \"q\" 'é' <b>%{x}</b> & ${y} $a$"


def explored(text: str = "plain", budget: float = math.inf) -> Exploration:
    """A search that finds two methods and a learning rate, with a text wherever a program names something."""
    goal = Goal(f"eval/Accuracy {text}", maximize=True, target=0.95)
    variants = [
        *tuning(),
        Variant(f"Good {text}", ("algorithms+=Good()",)),
        method("Help"),
        *placebos(4),
        Variant(f"Fails {text}", ("algorithms+=Fails()",)),
    ]
    effects = {
        f"Good {text}": Effect(1.5),
        "Help": Effect(1.3),
        **rates(0.7, 1.3, 0.4),
        f"Fails {text}": Effect(fails=f"RuntimeError: {text}"),
    }
    refused = {f"BlurPool {text}": f"no convolution {text}"}
    found = search(
        Simulation(effects, goal=goal),
        goal,
        variants,
        budget=budget,
        refused=refused,
        command=f"composer explore {text}",
    )
    screened = (
        Screened(variants[5], Ratio(0.9, 0.8, 1.0), 1.25),
        Screened(variants[-1], None, error=text),
    )
    return replace(found, screened=screened, notes=(f"Note about {text}",))


@pytest.fixture(scope="module")
def found() -> Exploration:
    return explored()


@pytest.fixture(scope="module")
def hostile() -> Exploration:
    return explored(HOSTILE)


def figures(page: str) -> list[dict[str, Any]]:
    shown = re.findall(r'<figure class="plot"><script type="application/json">(.*?)</script>', page, re.DOTALL)
    return [json.loads(text) for text in shown]


def headings(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def verdict(page: str) -> str:
    return page.partition('<div class="verdict')[2].partition("<h2>")[0]


def test_everything_is_on_the_page_in_the_order_of_a_reader(found: Exploration) -> None:
    page = exploration_page(found)
    assert headings(page) == [
        "Write",
        "Methods",
        "Quality against time",
        "What it cost",
        "The race",
        "What each part contributes",
        "Cost of a step",
        "What was not tried, and why",
        "Noise, and what can be told within the budget",
        "Notes",
    ]
    assert found.result is not None
    assert found.result.effect is not None
    effect = found.result.effect
    gain = f"{effect.value:.3g} [{effect.low:.3g}, {effect.high:.3g}] times as fast as the tuned baseline (lr x2)"
    assert gain in verdict(page)
    assert f"by {found.result.num_pairs} pairs" in verdict(page)
    assert "times as fast as the program as it is" in verdict(page)
    assert "It has saved this time after" in verdict(page)
    for text in ("algorithms=[..., Good(), Help()]", "  - Help", "composer explore plain", "no convolution plain"):
        assert text in page
    for text in ("RuntimeError: plain", "Note about plain", "-10% [-20%, +0%]", "can tell gains of at least", "1.25"):
        assert text in page
    assert "Good plain and Help together: " in page


def test_methods_are_sorted_and_their_verdicts_told_by_shape_and_text(found: Exploration) -> None:
    effects = figures(exploration_page(found))[0]
    names = [one.variant.name for one in found.ranked]
    assert effects["layout"]["yaxis"]["ticktext"] == names
    shown = {name: trace for trace in effects["data"] for name in [trace["name"]]}
    assert {"pays", "undecided (race)", "does not pay (race)"} <= {*shown}
    assert len({trace["marker"]["symbol"] for trace in effects["data"]}) == len(shown)
    assert len({trace["marker"]["color"] for trace in effects["data"]}) == 3
    pays = [one for one in found.ranked if one.decision is Decision.PAYS]
    assert shown["pays"]["y"] == list(range(len(pays)))
    first = found.ranked[0].effect
    assert first is not None
    assert shown["pays"]["x"][0] == pytest.approx(first.value, rel=1e-5)
    assert shown["pays"]["error_x"]["array"][0] == pytest.approx(first.high - first.value, rel=1e-4)
    assert "pays (" in shown["pays"]["customdata"][0][1]
    assert [note["text"] for note in effects["layout"]["annotations"]] == ["fails: RuntimeError: plain"]


def test_curves_are_those_of_the_pairs_with_the_target_and_censored_runs(found: Exploration) -> None:
    assert found.result is not None
    # One run of the winner is stopped early, and one fails.
    runs = list(found.runs)
    own = [at for at, one in enumerate(runs) if one.variant == found.result.after]
    short = Trajectory((Evaluation(3.0, 1, 1, 0.2), Evaluation(6.0, 2, 2, math.nan)), 7.5, 2)
    runs[own[0]] = KeptRun(found.result.after, 1000, "confirmation", short)
    runs[own[1]] = KeptRun(found.result.after, 1001, "confirmation", Failure("out of memory"))
    page = exploration_page(replace(found, runs=tuple(runs)))
    assert "1 run failed or were not evaluated" in page
    curves = figures(page)[1]
    number = found.result.num_pairs
    assert found.overall is not None
    given = found.overall.num_pairs
    entries = [trace["name"] for trace in curves["data"] if trace["mode"] != "markers" and trace["showlegend"]]
    assert entries == [
        f"tuned baseline: lr x2, {number} runs",
        f"lr x2+Good plain+Help, {number - 1} runs",
        f"the program as it is, {given} runs",
    ]
    (crosses,) = (trace for trace in curves["data"] if trace["marker"].get("symbol") == "x")
    assert (crosses["x"], crosses["y"], crosses["name"]) == ([7.5], [None], "not at the target (censored)")
    dots = [trace for trace in curves["data"] if trace["marker"].get("symbol") == "circle"]
    assert [len(trace["x"]) for trace in dots] == [number, number - 2, given]
    assert all(value == 0.95 for trace in dots for value in trace["y"])
    assert curves["layout"]["shapes"][0]["y0"] == 0.95
    assert len({trace["line"]["dash"] for trace in curves["data"] if "line" in trace}) == 3


def test_the_race_says_who_left_at_which_rung(found: Exploration) -> None:
    page = exploration_page(found)
    race = page.partition("<h2>The race</h2>")[2].partition("<h2>")[0]
    assert race.count("<figure") == len(found.heats)
    methods = next(one for one in found.heats if one.stage == "methods")
    assert ", ".join(methods.rungs[0].dropped) in race
    drawn = figures(race)[[one.stage for one in found.heats].index("methods")]
    lost = {one[0] for trace in drawn["data"] if trace["marker"]["symbol"] == "x" for one in trace["customdata"]}
    dropped = {name for rung in methods.rungs for name in rung.dropped}
    assert lost == {name for name in dropped if "Fails" not in name}  # what fails has no place on the axis


def test_a_search_that_found_nothing_says_so() -> None:
    goal = Goal("accuracy", maximize=True, target=0.95)
    page = exploration_page(search(Simulation(), goal, [*tuning(), *placebos(4)]))
    assert "Keep what you have" in verdict(page)
    assert 'class="verdict neutral"' in page
    assert "Write" not in headings(page)
    assert "What each part contributes" not in headings(page)


def test_a_search_without_the_time_for_pairs_shows_the_equal_runs() -> None:
    page = exploration_page(explored(budget=12 * 130.0))
    assert "the budget did not suffice" in verdict(page)
    assert "seemed best in the race" in verdict(page)
    assert "does not suffice to confirm" in page
    assert "the A/A runs of the unchanged program" in page
    assert [trace["name"] for trace in figures(page)[1]["data"] if trace.get("showlegend")] == [
        "the program as it is, 3 runs"
    ]
    tiny = exploration_page(explored(budget=2.5 * 130.0))
    assert "The race" not in headings(tiny)


def test_a_goal_of_quality_has_differences() -> None:
    goal = Goal("accuracy", maximize=True, seconds=100.0)
    simulation = Simulation({"Deep": Effect(ceiling=0.05)}, goal=goal)
    page = exploration_page(search(simulation, goal, [method("Deep"), *placebos(3)]))
    assert "accuracy is better by +0.0" in verdict(page)
    assert "than with the program as it is" in verdict(page)
    assert "accuracy as large as possible after 100 s" in page
    effects, curves = figures(page)[:2]
    assert effects["layout"]["xaxis"].get("type") != "log"
    assert "shapes" not in curves["layout"]
    assert not [trace for trace in curves["data"] if trace["mode"] == "markers"]


def test_effects_without_an_end_or_of_one_run_are_drawn(found: Exploration) -> None:
    verdicts = (
        MethodVerdict(Variant("one"), Decision.UNDECIDED, "attribution", Estimate(1.2, -math.inf, math.inf), 1),
        MethodVerdict(Variant("zero"), Decision.UNDECIDED, "race", Estimate(1.0, 0.0, math.inf), 1),
        MethodVerdict(Variant("none"), Decision.DOES_NOT, "none"),
    )
    page = exploration_page(replace(found, verdicts=verdicts))
    trace = figures(page)[0]["data"][0]
    assert trace["error_x"]["array"][0] > 10
    assert 0 < 1.2 - trace["error_x"]["arrayminus"][0] < 0.1
    assert "1.2 (no interval)" in page


def test_names_errors_and_secrets_of_the_program_are_text(hostile: Exploration) -> None:
    page = exploration_page(hostile)
    assert "<img" not in page
    assert "<b>" not in page
    assert page.count("<script") == len(figures(page)) + 2
    assert "hunter2" not in exploration_page(replace(hostile, command="explore sftp://me:hunter2@host/x"))


def test_a_page_of_many_long_runs_is_under_6_mb(found: Exploration, tmp_path: Path) -> None:
    curve = tuple(Evaluation(n + 1.0, n, n, 1 - 1 / (n + 2)) for n in range(3000))
    long = Trajectory(curve, 3000.0, 3000)
    runs = tuple(replace(one, outcome=long) for one in found.runs)
    verdicts = tuple(
        MethodVerdict(Variant(f"method {n}"), Decision.UNDECIDED, "race", Estimate(1.0, 0.9, 1.1), 1)
        for n in range(200)
    )
    path = tmp_path / "explore.html"
    found.write_html(path)
    replace(found, runs=runs, verdicts=verdicts).write_html(path)
    assert 2_000_000 < path.stat().st_size < 6_000_000
    assert [one.name for one in tmp_path.iterdir()] == ["explore.html"]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height", "scheme"), SCREENS)
def test_the_page_in_a_browser(hostile: Exploration, tmp_path: Path, width: int, height: int, scheme: str) -> None:
    path = tmp_path / "explore.html"
    hostile.write_html(path)
    with open_page(path, width, height, scheme) as page:
        assert page.evaluate("document.documentElement.dataset.plots") == "drawn"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("img, b").count() == 0
        assert f"Good {HOSTILE}" in page.locator(".verdict > p").first.inner_text()
        page.evaluate("Plotly.Fx.hover(document.querySelector('.canvas'), [{curveNumber: 0, pointNumber: 0}])")
        hover = page.locator(".hoverlayer").first.text_content()
        best = hostile.ranked[0]
        assert hover.startswith(" ".join(best.variant.name.split()))
        assert f"{best.effect} times as fast: pays" in hover
        # The intervals are drawn, and a zoom is kept until it is reset.
        assert page.locator(".xerror").count() >= len(hostile.verdicts) - 1
        page.evaluate("Plotly.relayout(document.querySelector('.canvas'), {'xaxis.range': [0, 0.2]})")
        wait_until(page, "document.querySelector('.canvas').layout.xaxis.range[1] === 0.2")
        # The runs of one variant are hidden and shown together.
        curves = "document.querySelectorAll('.canvas')[1]"
        page.locator(".canvas").nth(1).locator(".legendtoggle").first.click()
        wait_until(page, f"{curves}.data.filter((one) => one.visible === 'legendonly').length > 6")
        page.evaluate(f"Plotly.Fx.hover({curves}, [{{curveNumber: {hostile.plan.pairs}, pointNumber: 3}}])")
        wait_until(page, f"{curves}.querySelector('.hoverlayer').textContent.includes('seed ')")


def test_the_tuned_baseline_is_not_said_to_be_dropped(found: Exploration) -> None:
    tuning_heat = next(one for one in found.heats if one.stage == "tuning")
    assert found.tuned.name.startswith("lr")
    assert found.tuned.name not in tuning_heat.rungs[0].dropped
    page = exploration_page(found)
    race = page.partition("<h2>The race</h2>")[2].partition("<h2>")[0]
    assert "Successive halving" not in race
    assert "Thompson sampling" in race
    # Each rung names its best variant.
    assert race.count(f"{tuning_heat.rungs[0].standings[0].variant.name} (") >= 1


def test_cpu_time_is_said_to_be_that(found: Exploration) -> None:
    page, cpu = (exploration_page(one) for one in (found, replace(found, counted="cpu")))
    assert "Wall seconds of each stage" in page
    assert "CPU" not in page.partition("<h1>")[2].partition("<script")[0]
    assert "Wall seconds" not in cpu
    assert "CPU seconds of each stage" in cpu
    assert " of CPU time. It " in verdict(cpu)
    assert "Cost in CPU time: noise" in str(replace(found, counted="cpu"))
    assert "Cost: noise" in str(found)
