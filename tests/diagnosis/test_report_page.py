"""The page of a report: what it shows, hostile names as text, and the same in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from composer.diagnosis.remedies import Remedy
from composer.diagnosis.report import Report, Tried
from composer.diagnosis.report_page import report_page
from composer.diagnosis.step_trace import StepTrace
from composer.diagnosis.verdict import Verdict
from composer.statistics.paired import Ratio
from tests.browser import SCREENS, open_page

pytest.importorskip("plotly")
HOSTILE = "</script><img src=x onerror=alert(1)> \"q\" 'é' <b>%{x}</b> & ${y} $a$"


def report(text: str = "Slow", **others: Any) -> Report:
    """A report with everything, in which a text is wherever a program names something."""
    parts = {"data": 0.004, "forward": 0.002, f"callback {text}": 0.003, "rest": 0.001}
    line = {"part": "data", "file": f"{text}.py", "line": 7, "in": text}
    tried = [
        Tried(Remedy("workers-2", lines="num_workers=2"), Ratio(1.4, 1.3, 1.5), pays=True),
        Tried(Remedy("fused", lines=text), Ratio(1.1, 1.05, 1.2), pays=True),
        Tried(Remedy("prefetch-8", lines=text), Ratio(1.0, 0.96, 1.03)),
        Tried(Remedy("bf16", lines=text, exact=False), Ratio(1.2, 1.1, 1.3), pays=True),
        Tried(Remedy("compile", lines=text), None, error=text),
    ]
    given = {
        "noise": Ratio(1.0, 0.98, 1.02),
        "tried": tried,
        "combined": Tried(Remedy("workers-2+fused", lines="both"), Ratio(1.5, 1.4, 1.6), pays=True),
        "would_save": {f"callback {text}": 0.4},
        "waits": [{**line, "why": "reads a number", "count": 2}],
        "facts": {"device": "cpu", "torch": "2.13.0", "threads": 2, "loggers": [text], "data": {"dataset": text}},
        "seconds": 31.0,
        "steps": [parts, {**parts, "evaluation": 0.02}],
        "lines": [{**line, "share": 0.4}],
        "errors": [{**line, "source": text, "call": "log_images", "error": f"OSError: {text}", "count": 3}],
        "command": f"composer doctor {text}",
        "trace": StepTrace("page.trace.json"),
        **others,
    }
    return Report(
        Verdict("data", text, 0.4, text, (text,)), 0.01, {part: s * 100 for part, s in parts.items()}, **given
    )


def figures(page: str) -> list[str]:
    return re.findall(r'<figure class="plot"><script type="application/json">(.*?)</script>', page, re.DOTALL)


def test_everything_is_on_the_page(tmp_path: Path) -> None:
    page = report_page(report(), tmp_path)
    for text in (
        "callback Slow",
        "40.0%",
        "+40% [+30%, +50%]",
        "num_workers=2",
        "does not run: Slow",
        "Slow.log_images, Slow.py:7",
    ):
        assert text in page
    for text in ("Slow.py:7 (Slow)", "reads a number", "page.trace.json", "2.13.0", "composer doctor Slow", "31 s"):
        assert text in page
    timeline, gains = figures(page)
    assert timeline.count('"type": "bar"') == 5
    assert '"x": [-0.0' in gains or "[0.0" in gains
    assert "together" in gains


def test_a_remedy_that_pays_without_a_bottleneck_is_told_beside_the_verdict() -> None:
    fused = Tried(Remedy("fused"), Ratio(1.3, 1.2, 1.4), pays=True)
    page = report_page(Report(Verdict("none", "No bottleneck."), 0.1, {"forward": 1.0}, tried=[fused]))
    verdict = page.partition('class="verdict good"')[2].partition("<h2>")[0]
    assert "No bottleneck." in verdict
    assert "A remedy pays nevertheless: fused makes it faster by +30% [+20%, +40%]." in verdict


def test_long_times_have_no_exponent() -> None:
    page = report_page(report(steps=[{"data": 12.3456, "rest": 0.0}]))
    assert '<td class="number">12,346</td>' in page
    assert '<td class="number">0</td>' in page
    assert "e+" not in page.partition("<script")[0]


def test_a_report_without_steps_and_remedies_has_no_plot() -> None:
    page = report_page(Report(Verdict("none", "No bottleneck."), 0.1, {"forward": 1.0}))
    assert "No bottleneck." in page
    assert "plotly.js" not in page
    assert not figures(page)


def test_names_and_secrets_of_the_program_are_text(tmp_path: Path) -> None:
    page = report_page(report(HOSTILE), tmp_path)
    assert "<img" not in page
    assert page.count("<script") == 4
    page = report_page(report("sftp://me:hunter2@host/x"), tmp_path)
    assert "hunter2" not in page


def test_the_trace_is_linked_relative_to_the_page(tmp_path: Path) -> None:
    trace = StepTrace(str(tmp_path / "out" / "a <b>#?.trace.json"))
    page = report_page(report(trace=trace), tmp_path)
    assert 'href="./out/a%20%3Cb%3E%23%3F.trace.json"' in page
    assert 'href="file://' in report_page(report(trace=trace))
    failed = report_page(report(trace=StepTrace("", error="no space left")), tmp_path)
    assert "could not be recorded: no space left" in failed
    assert "Trace" not in report_page(report(trace=None), tmp_path)


def test_the_page_is_written_beside_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "doctor.html"
    report().write_html(path)
    report(trace=StepTrace(str(tmp_path / "doctor.trace.json"))).write_html(path)
    assert 'href="./doctor.trace.json"' in path.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height", "scheme"), SCREENS)
def test_the_page_in_a_browser(tmp_path: Path, width: int, height: int, scheme: str) -> None:
    path = tmp_path / "doctor.html"
    report(HOSTILE).write_html(path)
    with open_page(path, width, height, scheme) as page:
        assert page.evaluate("document.documentElement.dataset.plots") == "drawn"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("img, b").count() == 0
        assert page.locator(".verdict > p").first.inner_text() == HOSTILE
        page.evaluate("Plotly.Fx.hover(document.querySelector('.canvas'), [{curveNumber: 2, pointNumber: 0}])")
        assert page.locator(".hoverlayer").first.text_content() == f"callback {HOSTILE}3 ms, 30.0 % of step 1"
