"""Comparison of runs: grouping, differences with and without intervals, other lengths and metrics, hostile names."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from composer.history import History, Series
from composer.reports import compare_runs
from composer.reports.differences import censored_row, row
from composer.reports.run_groups import group_runs
from composer.statistics import mean_difference
from composer.statistics.crossing import Crossing
from tests.browser import SCREENS, open_page, wait_until
from tests.reports.group_runs import seeded_run
from tests.reports.runs import HOSTILE

pytest.importorskip("scipy")


def both(*seeds: int, **settings: Any) -> list[History]:
    return [seeded_run(f"lr{lr}-seed{seed}", lr, seed, **settings) for lr in (0.1, 0.4) for seed in seeds]


def measure(found: Any, name: str) -> Any:
    return next(row for row in found.rows if row.name == name)


def test_groups_of_seeds() -> None:
    found = compare_runs(*both(1, 2, 3, 4), target="Accuracy>=0.95")
    assert found.names == ["lr0.1", "lr0.4"]
    assert found.metric == "metrics/eval/Accuracy"
    last = measure(found, "eval/Accuracy, last").differences[0]
    assert last.estimate.low > 0
    assert last.p_value == pytest.approx(2 / 70)
    assert measure(found, "eval/Accuracy, last").better(last) is True
    time = measure(found, "time to eval/Accuracy >= 0.95").differences[0]
    assert time.note == "4 pairs of the same seed"
    assert time.ratio.high < 1
    assert time.estimate.high < 0
    assert found.settings == {"lr": ["0.1", "0.4"]}
    assert found.facts == {}
    assert found.front == ["lr0.4"]
    assert found.dominated == {"lr0.1": "lr0.4"}
    same = measure(found, "throughput")
    assert same.values == [[pytest.approx(3200)] * 4] * 2
    assert same.better(same.differences[0]) is None


def test_a_target_in_the_wrong_direction_is_refused() -> None:
    with pytest.raises(ValueError, match=r"larger values of Accuracy are better. Write Accuracy>=0.95."):
        compare_runs(*both(1, 2), target="Accuracy<=0.95")


def test_the_order_of_the_groups_only_changes_signs() -> None:
    runs = both(1, 2, 3)
    one, two = (
        measure(compare_runs(*some), "eval/Accuracy, last").differences[0] for some in (runs, runs[3:] + runs[:3])
    )
    assert one.estimate.value == pytest.approx(-two.estimate.value)
    assert one.p_value == two.p_value


def test_single_runs_have_no_interval() -> None:
    found = compare_runs(*both(1))
    difference = found.rows[0].differences[0]
    assert not difference.estimate.has_interval
    assert difference.p_value is None
    assert found.rows[0].better(difference) is None
    assert any("single run" in remark for remark in found.remarks)
    assert "no interval: that takes 2 runs on each side" in " ".join(str(found).split())


def test_what_keeps_runs_apart() -> None:
    first, second = seeded_run("a1", 0.1, 1), seeded_run("a2", 0.1, 2)
    assert [len(group) for group in group_runs([first, second])] == [2]
    newer = dataclasses.replace(second, environment={"versions": {"torch": "2.14.0"}})
    other = seeded_run("a2", 0.1, 2, algorithms=[{"class": "EMA", "half_life": "5ba"}])
    silent = dataclasses.replace(second, hyperparameters={"rank_zero_seed": 2, "composer_version": "1.0"})
    for changed in (newer, other, silent, dataclasses.replace(silent, hyperparameters={})):
        assert [len(group) for group in group_runs([first, changed])] == [1, 1]
    # A run may be called as the value of a setting is written.
    numbers = [History(name, hyperparameters={"lr": int(name), "seed": 1}) for name in "12"]
    words = [History(name, hyperparameters={"method": name, "seed": 1}) for name in ("adam", "sgd")]
    assert [len(group) for group in group_runs(numbers + words)] == [1, 1, 1, 1]
    assert compare_runs(first, newer).facts == {"versions.torch": ["2.13.0", "2.14.0"]}
    assert compare_runs(first, other).settings["algorithms.0.class"] == ["(not logged)", "EMA"]


def test_repetitions_of_one_seed_are_said() -> None:
    found = compare_runs(seeded_run("a1", 0.1, 1), seeded_run("a2", 0.1, 1))
    assert any("have the same seed" in remark for remark in found.remarks)
    assert any("nothing to compare" in remark for remark in found.remarks)


def test_runs_that_miss_the_target_are_not_dropped() -> None:
    runs = both(1, 2, 3)
    found = measure(compare_runs(*runs, target="Accuracy>=0.989"), "time to eval/Accuracy >= 0.989")
    assert found.values[0] == [None] * 3
    assert all(found.values[1])
    paired = found.differences[0]
    assert "3 of 6 runs did not reach it and count with their length" in paired.note
    assert paired.estimate is None
    assert paired.ratio.high < 1
    assert found.better(paired) is True
    unpaired = compare_runs(*runs[:3], *runs[3:5], target="Accuracy>=0.989")
    difference = measure(unpaired, "time to eval/Accuracy >= 0.989").differences[0]
    assert (difference.estimate, difference.note) == (None, "not reached by all runs")


def test_a_run_that_diverged_has_no_difference_but_counts() -> None:
    runs = both(1, 2)
    series = runs[0].series["metrics/eval/Accuracy"]
    values = series.values.copy()
    values[-1] = math.nan
    runs[0].series["metrics/eval/Accuracy"] = dataclasses.replace(series, values=values)
    found = compare_runs(*runs)
    difference = measure(found, "eval/Accuracy, last").differences[0]
    assert difference.estimate is None
    assert "no finite value" in difference.note
    assert "the last value of lr0.1-seed1 is nan" in found.remarks
    assert measure(found, "eval/Accuracy, best").differences[0].estimate.has_interval
    assert found.front is None
    json.dumps(found.to_json(), allow_nan=False)


def test_other_lengths_and_metrics() -> None:
    short, long = seeded_run("short", 0.1, 1, steps=100), seeded_run("long", 0.4, 1)
    long.series["metrics/eval/F1"] = dataclasses.replace(long.series["metrics/eval/Accuracy"], name="metrics/eval/F1")
    found = compare_runs(short, long)
    assert any("100 to 200 steps" in remark for remark in found.remarks)
    assert "1 metric of some runs only is left out" in found.remarks
    with pytest.raises(ValueError, match="The run 'short' did not log 'metrics/eval/F1'"):
        compare_runs(short, long, metric="F1")
    alone = History("alone", {"mine": Series("mine", np.array([0]), np.array([1.0]))})
    with pytest.raises(ValueError, match=r"no metric in common: 'short' has .*; 'alone' has mine"):
        compare_runs(short, alone)


def test_logs_without_times_and_settings() -> None:
    plain = [History(name, {"val_acc": Series("val_acc", np.arange(3), np.arange(3) + 0.5)}) for name in "ab"]
    found = compare_runs(*plain, target="val_acc>=1")
    assert [row.name for row in found.rows] == ["val_acc, last", "val_acc, best", "time to val_acc >= 1", "steps"]
    assert found.rows[2].values == [[None], [None]]
    assert "logs without times have no time to the target" in found.remarks
    assert found.front is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "Accuracy"}, "target must be METRIC>=VALUE"),
        ({"target": "Accuracy>=nan"}, "target must be METRIC>=VALUE"),
        ({"target": "Accuracy>=0.9", "metric": "CrossEntropy"}, "name different metrics"),
        ({"groups": {"x": []}}, "The group 'x' has no runs"),
    ],
)
def test_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare_runs(*both(1), **arguments)
    with pytest.raises(TypeError, match=r"groups must have lists of runs, but 'x' has 'y'; write \['y'\]"):
        compare_runs(groups={"x": "y"})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("number", "better"), [(2, None), (3, None), (4, True)])
def test_a_verdict_of_groups_without_spread_is_that_of_the_permutations(number: int, better: bool | None) -> None:
    found = row("accuracy", "", True, [[286 / 297] * number, [287 / 297] * number])
    difference = found.differences[0]
    assert found.better(difference) is better
    assert difference.verdict_p_value == difference.p_value == pytest.approx(2 / math.comb(2 * number, number))
    assert not difference.has_interval
    assert difference.note == "no interval: the values of each group are all the same"
    found = row("accuracy", "", True, [[0.1 + 0.2] * number, [0.3] * number])
    assert found.better(found.differences[0]) is None


def test_numbers_of_which_the_ratio_is_infinite() -> None:
    found = row("loss", "", False, [[1e-300, 2e-300], [1e300, 2e300]])
    json.dumps(found.to_json(["a", "b"]), allow_nan=False)


def hostile() -> list[History]:
    runs = both(1, 2, 3, **{f"depth {HOSTILE}": HOSTILE})
    for run in runs:
        run.name = f"{HOSTILE} {run.name}"
        run.series[f"metrics/eval/{HOSTILE}"] = run.series["metrics/eval/Accuracy"]
        run.remarks.append(HOSTILE)
    runs[0].hyperparameters[f"other {HOSTILE}"] = "[bold]x\x1b[2J"
    return runs


def test_names_are_text_on_the_terminal_and_the_page() -> None:
    pytest.importorskip("plotly")
    runs = hostile()
    found = compare_runs(groups={HOSTILE: runs[:3], "other": runs[3:]}, metric=HOSTILE)
    shown = str(found)
    assert "\x1b" not in shown
    assert "[bold]x\\x1b[2J" in shown.replace("\n", "")
    page = found.to_html()
    assert "<img" not in page
    assert "<b>" not in page
    figures = re.findall(r'<figure class="plot"><script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert page.count("<script") == len(figures) + 2
    names = {trace["name"] for figure in figures for trace in json.loads(figure)["data"] if "name" in trace}
    assert all("<" not in name for name in names)


def test_curves_have_the_x_axes_that_all_runs_have() -> None:
    pytest.importorskip("plotly")
    runs = [seeded_run(f"run {seed}", 0.1, seed) for seed in range(3)]
    page = compare_runs(*runs, metric="Accuracy").to_html()
    assert re.findall(r'data-axis="(\w+)"', page) == ["step", "sample", "seconds"]
    figures = re.findall(r'<figure class="plot"><script type="application/json">(.*?)</script>', page, re.DOTALL)
    first = next(json.loads(figure) for figure in figures if '"axes"' in figure)
    mean = next(at for at, trace in enumerate(first["data"]) if "mean of 3" in trace.get("meta", ""))
    x, y = (np.frombuffer(base64.b64decode(first["axes"]["sample"][key][mean]["bdata"]), "f4") for key in ("x", "y"))
    assert x.tolist() == [32 * step for step in range(20, 201, 20)]
    on_steps = np.frombuffer(base64.b64decode(first["data"][mean]["y"]["bdata"]), "f4")
    np.testing.assert_array_equal(y, on_steps)
    without = dataclasses.replace(runs[0].series["metrics/eval/Accuracy"], sample=None, seconds=None)
    runs[0].series["metrics/eval/Accuracy"] = without
    assert "data-axis" not in compare_runs(*runs, metric="Accuracy").to_html()


def test_a_page_of_many_runs_is_under_6_mb() -> None:
    pytest.importorskip("plotly")
    steps = np.arange(2000)
    runs = [
        History(
            f"run {number}",
            {
                name: Series(name, steps, np.random.default_rng(number).normal(size=2000))
                for name in map(str, range(30))
            },
            hyperparameters={"lr": number // 5, "seed": number},
        )
        for number in range(50)
    ]
    found = compare_runs(*runs)
    assert [len(group) for group in found.groups] == [5] * 10
    assert len(found.to_html()) < 6_000_000


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height", "scheme"), SCREENS)
def test_the_page_in_a_browser(tmp_path: Path, width: int, height: int, scheme: str) -> None:
    runs = hostile()
    path = tmp_path / "compare.html"
    groups = {HOSTILE: runs[:3], "other": runs[3:]}
    compare_runs(groups=groups, metric="Accuracy", target="Accuracy>=0.95").write_html(path)
    with open_page(path, width, height, scheme) as page:
        assert page.evaluate("document.documentElement.dataset.plots") == "drawn"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("h1").inner_text() == f"Comparison of {HOSTILE} and other"
        assert page.locator("img").count() == 0
        assert page.locator("b").count() == 0
        curves = "document.querySelectorAll('.canvas')[1]"
        # Range, interval, mean, and three runs of each group.
        shown = f"{curves}.data.map((one) => one.visible !== false)"
        plain = ([True, True, False, False, True] + [False] * 3) * 2
        assert page.evaluate(shown) == plain
        buttons = page.locator("figure").nth(1).locator(".updatemenu-button")
        buttons.nth(0).click()
        assert page.evaluate(shown) == ([False, False, True, True, True] + [False] * 3) * 2
        buttons.nth(0).click()
        buttons.nth(1).click()
        assert page.evaluate(shown) == ([True, True, False, False, True] + [True] * 3) * 2
        buttons.nth(2).click()
        assert page.evaluate(f"{curves}.layout.yaxis.type") == "log"
        page.evaluate(f"Plotly.Fx.hover({curves}, [{{curveNumber: 4, pointNumber: 1}}])")
        assert f"{HOSTILE}, mean of 3" in page.locator(".hoverlayer").nth(1).text_content()
        # Another x axis, also of what is folded away; what was switched on stays.
        page.locator(".axes button", has_text="sample").click()
        wait_until(page, f"{curves}.layout.xaxis.title.text === 'sample'")
        assert page.evaluate(f"{curves}._fullData[4].x[0]") == 640
        assert page.evaluate(shown) == ([True, True, False, False, True] + [True] * 3) * 2
        page.evaluate(f"Plotly.Fx.hover({curves}, [{{curveNumber: 4, pointNumber: 1}}])")
        wait_until(page, f"{curves}.querySelector('.hoverlayer').textContent.includes('sample 1,280: ')")
        page.locator("details:has(figure) summary").click()
        wait_until(page, "document.querySelectorAll('details .js-plotly-plot').length > 0")
        assert page.evaluate("document.querySelector('details .canvas').layout.xaxis.title.text") == "sample"
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def placebo_verdicts(number: int, groups: int) -> float:
    """Return in how many of 100 comparisons of groups without any difference one is called better or worse."""
    noise = np.random.default_rng(number)
    rows = [row("accuracy", "", True, noise.normal(size=(groups, number)).tolist()) for _ in range(100)]
    return sum(any(one.better(each) is not None for each in one.differences) for one in rows) / 100


@pytest.mark.parametrize(("number", "groups"), [(3, 10), (5, 8)])
def test_many_groups_of_few_runs_do_not_make_placebos_better(
    number: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = functools.partial(mean_difference, resamples=500)
    monkeypatch.setattr("composer.reports.differences.mean_difference", few)
    assert placebo_verdicts(number, groups) <= 0.08


@pytest.mark.parametrize("number", range(3, 9))
def test_any_number_of_pairs_can_show_a_large_difference(number: int) -> None:
    noise = np.random.default_rng(number)
    times = [mean + noise.normal(size=number) for mean in (100, 50)]
    runs = [[Crossing(time, time - 1, time + 1, False, 200.0) for time in some] for some in times]
    for seeds in (list(range(number)), [None] * number):
        found = censored_row("time", runs, [seeds, seeds])
        assert found.better(found.differences[0]) is True
        back = censored_row("time", runs[::-1], [seeds, seeds])
        assert back.better(back.differences[0]) is False


def test_pairs_in_which_no_run_reached_the_target_decide_nothing() -> None:
    reached = [[Crossing(time, time, time, False, 200.0) for time in some] for some in ((100, 101, 102), (50, 51, 52))]
    missed = Crossing(None, 200.0, math.inf, False, 200.0)
    late = Crossing(180.0, 180.0, 180.0, False, 200.0), Crossing(None, 150.0, math.inf, False, 150.0)
    few = censored_row("time", reached, [[1, 2, 3]] * 2).differences[0]
    more = [[*reached[0], missed, late[0]], [*reached[1], missed, late[1]]]
    some = censored_row("time", more, [[1, 2, 3, 4, 5]] * 2).differences[0]
    assert some.verdict_p_value == few.verdict_p_value != few.p_value == some.p_value == 0.25


def many_groups() -> list[History]:
    return [seeded_run(f"run{number}-{'x' * 80}", 0.01 + number / 40, seed=1, width=number) for number in range(40)]


def test_of_many_groups_the_first_are_shown_at_once() -> None:
    page = compare_runs(*many_groups()).to_html()
    assert "<summary>27 more</summary>" in page
    assert re.search(r"<summary>\d+ differences of other measures</summary>", page)
    heads = re.findall(r'<th scope="col"[^>]*><span title="(.*?)">(.*?)</span></th>', page)
    assert {len(text) for _, text in heads} == {28}
    assert heads[0][0] == f"run0-{'x' * 80}"


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height", "scheme"), SCREENS)
def test_many_groups_in_a_browser(tmp_path: Path, width: int, height: int, scheme: str) -> None:
    """On a phone, a legend of 40 lines left no room for the curves, which plotly.js could not draw."""
    path = tmp_path / "compare.html"
    compare_runs(*many_groups()).write_html(path)
    with open_page(path, width, height, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelector('.canvas')._fullLayout._size.h") > 150
