"""Figures in a page: hostile texts, numbers that are not finite, and a library that is not installed."""

from __future__ import annotations

import json
import re
import sys

import pytest

from composer._html import check_plots, document, plot, plot_text, section
from composer._lazy import MissingConditionalImportError

HOSTILE = "</script><script>alert(1)</script><!-- \u2028 é \"q\" 'q' & <b>%{x}"


def test_data_cannot_end_the_script() -> None:
    made = plot("Loss", [{"name": HOSTILE, "y": [1, None]}], {})
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', made, re.DOTALL)
    assert not set("<>&\u2028").intersection(data)
    assert json.loads(data)["data"] == [{"name": HOSTILE, "y": [1, None]}]


def test_numbers_must_be_finite() -> None:
    with pytest.raises(ValueError, match="JSON"):
        plot("Loss", [{"y": [float("nan")]}], {})


def test_texts_of_plots_are_escaped_and_masked() -> None:
    assert plot_text("a <b>\n'c' & sftp://me:hunter2@host") == "a &lt;b&gt; 'c' &amp; sftp://me:***@host"


def test_the_library_is_in_the_file_only_if_there_is_a_plot() -> None:
    pytest.importorskip("plotly")
    assert "plotly" not in document("t", section("s", '<figure class="plot">'))
    page = document("t", section("s", plot("Loss", [], {})))
    assert page.count('id="plotly"') == 1
    assert len(page) < 2_500_000


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingConditionalImportError, match=r"composer doctor --html needs .*composer-torch\[report\]"):
        check_plots("composer doctor --html")
    with pytest.raises(MissingConditionalImportError, match=r"composer-torch\[report\]"):
        document("t", plot("Loss", [], {}))
