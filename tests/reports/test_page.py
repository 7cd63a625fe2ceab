"""The page of a run: what it shows, hostile names as text, its size, and the same in a browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from composer.core.array_axes import ArrayAxes
from composer.core.run_event import RunEvent
from composer.history import History, LoggedArray, Series
from composer.loggers import CSVLogger, HTMLReport, JSONLinesLogger
from composer.reports import ReportImage, run_report
from composer.reports.png import png_bytes
from tests.browser import SCREENS, open_page, wait_until
from tests.common import trainer_of
from tests.reports.runs import HOSTILE, history_with

pytest.importorskip("plotly")
TIME = {"training": 300.0, "waiting for data": 50.0}


def figures(page: str) -> list[dict[str, Any]]:
    found = re.findall(r'<figure class="plot"><script type="application/json">(.*?)</script>', page, re.DOTALL)
    return [json.loads(text) for text in found]


def numbers(packed: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"])


def images() -> list[ReportImage]:
    return [ReportImage("inputs", 7, png_bytes(np.zeros((2, 2, 3), np.uint8)))]


def test_everything_is_on_the_page() -> None:
    history = history_with()
    page = run_report(history, time_by_category=TIME, goodput="60.0 % goodput <of> 2 ranks.", images=images())
    assert "<p>60.0 % goodput &lt;of&gt; 2 ranks.</p>" in page
    for text in ("night plain", "Finished after 400 steps, 4 epochs", "resumed 1 time", "Note: about plain.", "14.3%"):
        assert text in page
    for text in ("table plain, step 400", "short row", "depth plain", "s3://runs/plain/ep3.pt", "inputs, step 7"):
        assert text in page
    titles = [figure["layout"].get("yaxis", {}).get("title", {}).get("text") for figure in figures(page)]
    assert titles[:6] == ["loss", "plain", "Accuracy", "learning rate", "samples per second", "gradient norm"]
    loss = figures(page)[0]
    names = [trace["name"] for trace in loss["data"]]
    assert names == [
        "train/total", "train/plain", "train/total, smooth", "train/plain, smooth",
        "evaluations (4)", "checkpoints (4)", "resumptions (1)", "spikes (1)", "NaN losses (1)",
    ]  # fmt: skip
    assert [trace.get("visible", True) for trace in loss["data"][:4]] == [True, True, False, False]
    np.testing.assert_allclose(numbers(loss["data"][0]["y"]), history["loss/train/total"].values, rtol=1e-6)
    assert numbers(loss["data"][0]["x"]).tolist() == list(range(400))


def test_other_x_axes_are_those_that_the_log_has() -> None:
    page = run_report(history_with())
    assert re.findall(r'data-axis="(\w+)"', page) == ["step", "seconds"]
    loss = figures(page)[0]
    seconds = loss["axes"]["seconds"]
    np.testing.assert_allclose(numbers(seconds["x"][0]), 0.1 * np.arange(400), rtol=1e-6)
    # Smooth curves have the positions of theirs.
    assert seconds["x"][2:4] == [0, 1]
    assert len(seconds["x"]) == len(loss["data"])
    np.testing.assert_allclose(numbers(seconds["x"][4]), [10.0, 20.0, 30.0, 40.0], rtol=1e-6)
    assert [round(shape["x0"], 3) for shape in seconds["shapes"]] == [20.0, 20.2]
    steps = np.array([0, 10])
    one = {"a": Series("a", steps, np.zeros(2), sample=32.0 * steps, token=np.zeros(2))}
    assert re.findall(r'data-axis="(\w+)"', run_report(History("a", one))) == ["step", "sample"]
    assert "data-axis" not in run_report(History("a", {"a": Series("a", steps, np.zeros(2))}))


def test_smooth_curves_leave_gaps_out() -> None:
    values = np.ones(1000)
    values[500] = np.nan
    history = History("night", {"loss": Series("loss", np.arange(1000), values)})
    raw, smooth = figures(run_report(history))[0]["data"]
    assert np.isnan(numbers(raw["y"])).sum() == 1
    assert (numbers(smooth["y"]) == 1).all()


@pytest.mark.parametrize("values", [[1e300, 2.0], [1.0, 1.0 + 1e-9], [np.inf, 1.0]])
def test_numbers_beyond_single_precision(values: list[float]) -> None:
    history = History("night", {"x": Series("x", np.array([0, 2**40]), np.array(values))})
    trace = figures(run_report(history))[0]["data"][0]
    expected = [value if np.isfinite(value) else np.nan for value in values]
    np.testing.assert_equal(numbers(trace["y"]), expected)
    assert numbers(trace["x"]).tolist() == [0, 2**40]


def test_an_empty_history_has_a_page_without_plots() -> None:
    page = run_report(History("night"))
    assert "No metrics were logged." in page
    assert not figures(page)


def test_how_a_run_ended() -> None:
    def told(*kinds: str) -> str:
        events = [RunEvent(kind, 5, "the reason") for kind in kinds]
        found = re.search(r'<div class="verdict.*?</div>', run_report(History("night", events=events)))
        assert found is not None
        return found[0]

    assert "Stopped early after 5 steps" in told("start", "stop", "end")
    assert 'class="verdict">' in told("start", "error")
    assert "the reason" in told("start", "interruption")
    assert "Finished" in told("start", "error", "start", "end")
    assert "Not finished: after 5 steps" in told("start", "end", "start")


def test_names_and_texts_of_the_program_are_text() -> None:
    page = run_report(history_with(HOSTILE), time_by_category={HOSTILE: 1.0}, images=images())
    assert page.count("<img") == 1
    assert "<b>" not in page
    assert page.count("<script") == len(figures(page)) + 2


def many_points(count: int) -> History:
    values = np.random.default_rng(0).normal(size=count)
    values[count // 3] = 1000.0
    return History("long", {"loss": Series("loss", np.arange(count), values)})


def test_a_page_is_under_6_mb() -> None:
    page = run_report(many_points(1_000_000))
    assert len(page) < 3_000_000
    assert numbers(figures(page)[0]["data"][0]["y"]).max() == 1000
    step = np.arange(5000)
    many = {f"a/{number}": Series("a", step, np.random.default_rng(number).normal(size=5000)) for number in range(600)}
    page = run_report(History("wide", many))
    assert len(page) < 6_000_000


def test_a_page_with_images_is_under_6_mb() -> None:
    step, image = np.arange(5000), ReportImage("noise", 0, np.random.default_rng(0).bytes(999_000))
    many = {f"a/{number}": Series("a", step, np.random.default_rng(number).normal(size=5000)) for number in range(400)}
    assert len(run_report(History("wide", many), images=[image])) < 6_000_000
    many |= {f"b/{number}": Series("b", step, np.random.default_rng(number).normal(size=5000)) for number in range(200)}
    assert len(run_report(History("wide", many), images=[image])) < 6_000_000


def test_metrics_without_a_finite_value_are_told() -> None:
    steps = np.arange(3)
    series = {"a": Series("a", steps, np.array([np.nan, 1, np.inf])), "b<": Series("b<", steps, np.full(3, -np.inf))}
    page = run_report(History("night", series))
    assert "Without a finite value: b&lt;." in page
    assert len(figures(page)) == 1
    page = run_report(History("night", {"b<": series["b<"]}))
    assert "Without a finite value: b&lt;." in page
    assert not figures(page)


def test_marks_of_one_step_do_not_cover_each_other() -> None:
    events = [RunEvent(kind, 5) for kind in ("evaluation", "checkpoint", "resumption", "error")]
    history = History("night", {"a": Series("a", np.arange(9), np.ones(9))}, events=events)
    history.series["loss"] = history.series["a"]
    marks = [trace for trace in figures(run_report(history))[0]["data"] if trace.get("yaxis") == "y2"]
    assert [mark["y"] for mark in marks] == [[-0.5], [-0.5], [0.5], [0.5]]


def test_matrices_have_the_names_of_their_classes() -> None:
    def heat_map(*classes: str) -> dict[str, Any]:
        axes = ArrayAxes(classes, "truth", "")
        history = History("night", arrays={"Confusion": LoggedArray(np.eye(2), 0, axes)})
        return figures(run_report(history))[0]

    found = heat_map("cat <b>", "dog" + 50 * "o")
    assert found["data"][0]["x"] == found["data"][0]["y"] == ["cat &lt;b&gt;", "dogooooooo…ooooooooo"]
    assert [found["layout"][axis]["title"]["text"] for axis in ("yaxis", "xaxis")] == ["truth", "predicted"]
    found = heat_map("one", "two", "three")
    assert found["data"][0]["x"] == ["0", "1"]
    assert found["layout"]["xaxis"]["type"] == "category"  # ticks at -0.5 and 0.5 were called 0 and 1
    alike = heat_map(*(10 * "a" + middle + 20 * "b" for middle in "xy"))
    assert len(set(alike["data"][0]["x"])) == 2


def searched(page: str) -> list[dict[str, Any]]:
    found = re.search(r'class="packed">(.*?)</script>', page)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def wide(prefix: str, count: int = 20_000) -> History:
    """A run of many metrics, the most important of them logged last."""
    step, values = np.arange(50), np.random.default_rng(0).normal(size=(count, 50))
    values[7, 3], values[8, 4] = 1000, np.nan
    series = {f"{prefix}{number}": Series(f"{prefix}{number}", step, values[number]) for number in range(count)}
    return History("wide", {**series, "metrics/eval/Accuracy": Series("metrics/eval/Accuracy", step, values[0] ** 2)})


@pytest.mark.parametrize("prefix", ["l2_norm/grad/layer", "metrics/eval/class", HOSTILE])
def test_of_20_000_metrics_all_can_be_found(prefix: str) -> None:
    begin = time.process_time()
    page = run_report(wide(prefix))
    assert time.process_time() - begin < 15  # 30 s when each figure looked at all metrics
    assert len(page) < 6_000_000
    assert len(figures(page)) < 130
    curves = searched(page)
    assert len(curves) == 20_001
    spike = curves[7]
    assert spike["y"][spike["x"].index(3)] == 1000
    assert None in curves[8]["y"]
    assert (spike["x"][0], spike["x"][-1]) == (0, 49)
    titles = [figure["layout"].get("yaxis", {}).get("title", {}).get("text") for figure in figures(page)]
    assert prefix.startswith("metrics") or titles[0] == "Accuracy"


def test_names_that_do_not_compress_are_cut() -> None:
    random = np.random.default_rng(0)
    one = np.arange(3)
    names = [random.bytes(80).hex() for _ in range(20_000)]
    page = run_report(History("wide", {name: Series(name, one, random.normal(size=3)) for name in names}))
    assert len(page) < 6_000_000
    assert len(searched(page)) > 5_000
    left_out = 20_000 - len(searched(page))
    assert left_out > 0
    assert f"{left_out:,} more are not on this page" in page


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height", "scheme"), SCREENS)
def test_the_page_in_a_browser(tmp_path: Path, width: int, height: int, scheme: str) -> None:
    path = tmp_path / "report.html"
    path.write_text(run_report(history_with(HOSTILE), time_by_category=TIME, images=images()), encoding="utf-8")
    with open_page(path, width, height, scheme) as page:
        assert page.evaluate("document.documentElement.dataset.plots") == "drawn"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("h1").inner_text() == f"night {HOSTILE}"
        assert page.locator("img").count() == 1
        assert page.locator("b").count() == 0
        page.evaluate("Plotly.Fx.hover(document.querySelector('.canvas'), [{curveNumber: 1, pointNumber: 2}])")
        hover = page.locator(".hoverlayer").first.text_content()
        assert hover == f"train/{HOSTILE}step 2: 1"
        # A zoom of one is that of all, and back.
        page.evaluate("Plotly.relayout(document.querySelector('.canvas'), {'xaxis.range': [100, 200]})")
        page.evaluate(
            "Plotly.relayout(document.querySelector('.canvas'), {'xaxis.range[0]': 110, 'xaxis.range[1]': 190})"
        )
        layouts = "[...document.querySelectorAll('.js-plotly-plot')].map((one) => one.layout)"
        ranges = f"{layouts}.filter((one) => one.meta === 'linked')"
        wait_until(page, f"{ranges}.every((one) => one.xaxis.range[0] === 110 && one.xaxis.range[1] === 190)")
        assert page.evaluate(f"{ranges}.length") == 6
        # Another x axis is that of all, also of the events and of what is folded away.
        page.locator(".axes button", has_text="seconds").click()
        wait_until(page, f"{ranges}.every((one) => one.xaxis.title.text === 'seconds trained')")
        # 400 steps of 0.1 s, and each line of the legend is where it was.
        wait_until(page, f"{ranges}.every((one) => one.xaxis.range[1] < 50 && one.xaxis.range[1] > 39)")
        page.evaluate("Plotly.Fx.hover(document.querySelector('.canvas'), [{curveNumber: 1, pointNumber: 2}])")
        wait_until(page, "document.querySelector('.hoverlayer').textContent.includes('seconds trained 0.2: 1')")
        assert page.evaluate("document.querySelector('.canvas')._fullData[4].x[3]") == pytest.approx(40)
        assert page.evaluate("document.querySelector('.canvas').layout.shapes[0].x0") == pytest.approx(20, abs=0.1)
        page.evaluate("Plotly.relayout(document.querySelector('.canvas'), {'xaxis.range': [10, 20]})")
        page.locator(".axes button", has_text="step").click()
        wait_until(page, f"{ranges}.every((one) => one.xaxis.range[1] > 390)")
        assert page.locator('.axes button[aria-pressed="true"]').inner_text() == "step"
        # The switches.
        page.locator(".updatemenu-button").nth(0).click()
        visible = "document.querySelector('.canvas').data.slice(0, 4).map((one) => one.visible)"
        assert page.evaluate(visible) == [True, True, True, True]
        page.locator(".updatemenu-button").nth(0).click()
        assert page.evaluate(visible) == [True, True, False, False]
        page.locator(".updatemenu-button").nth(1).click()
        assert page.evaluate("document.querySelector('.canvas').layout.yaxis.type") == "log"
        # What is folded away is drawn when it is opened.
        folded = page.locator("details:has(figure)")
        assert folded.locator(".js-plotly-plot").count() == 0
        page.locator(".axes button", has_text="seconds").click()
        folded.locator("summary").click()
        wait_until(page, "document.querySelectorAll('details .js-plotly-plot').length === 3")
        late = "document.querySelector('details .canvas')._fullLayout.xaxis"
        assert page.evaluate(f"{late}.title.text") == "seconds trained"
        assert page.evaluate(f"{late}.range[1]") < 50
        assert folded.locator(".canvas").first.bounding_box()["width"] > 300
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_10_million_points_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(run_report(many_points(10_000_000)), encoding="utf-8")
    with open_page(path) as page:
        spent = page.evaluate(
            """async () => {
                const canvas = document.querySelector(".canvas"), begin = performance.now();
                await Plotly.relayout(canvas, {"xaxis.range[0]": 7e6, "xaxis.range[1]": 8e6});
                Plotly.Fx.hover(canvas, [{curveNumber: 0, pointNumber: 10}]);
                return performance.now() - begin;
            }"""
        )
        assert spent < 10_000  # on a busy machine too


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height", "scheme"), SCREENS)
def test_searching_metrics_in_a_browser(tmp_path: Path, width: int, height: int, scheme: str) -> None:
    path = tmp_path / "report.html"
    path.write_text(run_report(wide(f"{HOSTILE}/layer", 1000)), encoding="utf-8")
    with open_page(path, width, height, scheme) as page:
        field, status = page.locator(".search input"), page.locator(".search [role=status]")
        assert status.inner_text() == "1,001 found, the first 10 of them below"
        field.fill("LAYER99 img")
        wait_until(page, "document.querySelector('.search .canvas').data.length === 10")
        assert status.inner_text() == "11 found, the first 10 of them below"
        page.locator(".names button", has_text="layer995").click()
        wait_until(page, "document.querySelector('.search .canvas').data.length === 1")
        assert status.inner_text() == "1 found"
        page.evaluate("Plotly.Fx.hover(document.querySelector('.search .canvas'), [{curveNumber: 0, pointNumber: 2}])")
        hover = page.locator(".search .hoverlayer").text_content()
        assert hover.startswith(f"{HOSTILE}/layer995step 2: ")
        field.fill("nothing like it")
        wait_until(page, "document.querySelector('.search .canvas').data.length === 0")
        assert status.inner_text() == "0 found"
        assert page.locator("img, b").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("logger", [JSONLinesLogger, CSVLogger])
def test_epochs_are_counted_without_an_evaluation(tmp_path: Path, logger: Any) -> None:
    loggers = [logger(str(tmp_path / "log")), HTMLReport(str(tmp_path / "live.html"))]
    with trainer_of(max_duration="2ep", loggers=loggers) as trainer:
        trainer.fit()
    for page in (run_report(History.read(tmp_path / "log")), (tmp_path / "live.html").read_text(encoding="utf-8")):
        assert "after 8 steps, 2 epochs" in page
