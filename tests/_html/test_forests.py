from __future__ import annotations

import itertools
import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer._html import ForestRow, ForestStyle, forest
from composer._html.forests import log_ticks

STYLES = {"pays": ForestStyle("pays", "#2f9e75", "circle"), "does not": ForestStyle("no", "#e0662c", "x")}


def figure(*rows: ForestRow, is_log: bool = True) -> dict[str, Any]:
    shown = forest("Effects", rows, STYLES, {"title": {"text": "x"}}, reference=1.0 if is_log else 0.0, is_log=is_log)
    found = re.search(r'<script type="application/json">(.*?)</script>', shown)
    assert found is not None
    return json.loads(found[1])


def test_rows_are_in_order_and_styles_are_traces() -> None:
    rows = [ForestRow("B", "does not", 0.5, 0.4, 0.6), ForestRow("A", "pays", 2.0, 1.5, 2.5, "told")]
    drawn = figure(*rows, ForestRow("C", "does not", None, note="<b>fails</b>"))
    assert drawn["layout"]["yaxis"]["ticktext"] == ["B", "A", "C"]
    assert [(trace["name"], trace["y"]) for trace in drawn["data"]] == [("pays", [1]), ("no", [0])]
    assert drawn["data"][0]["customdata"] == [["A", "told"]]
    assert [note["text"] for note in drawn["layout"]["annotations"]] == ["&lt;b&gt;fails&lt;/b&gt;"]
    long = figure(ForestRow("a very long name of a method of which the end differs", "pays", 2.0))
    assert long["layout"]["yaxis"]["ticktext"] == ["a very long n… end differs"]


@given(
    values=st.lists(st.floats(0.2, 5), min_size=1, max_size=5),
    width=st.floats(0, 3),
    low=st.booleans(),
    high=st.booleans(),
    is_log=st.booleans(),
)
def test_all_effects_are_within_the_range_whatever_their_intervals(
    values: list[float], width: float, low: bool, high: bool, is_log: bool
) -> None:
    rows = [
        ForestRow(
            str(at),
            "pays",
            value,
            value / math.exp(width) if low else -math.inf,
            value * math.exp(width) if high else math.inf,
        )
        for at, value in enumerate(values)
    ]
    drawn = figure(*rows, is_log=is_log)
    first, last = (10**end if is_log else end for end in drawn["layout"]["xaxis"]["range"])
    (trace,) = drawn["data"]
    for value, less, more in zip(trace["x"], trace["error_x"]["arrayminus"], trace["error_x"]["array"], strict=True):
        assert first < value < last
        assert less >= 0
        assert more >= 0
        # An interval without an end goes on beyond the edge.
        assert low or value - less < first
        assert high or value + more > last
        assert not is_log or value - less > 0


def test_an_effect_of_nothing_alone_has_a_range() -> None:
    first, last = figure(ForestRow("A", "pays", 1.0, 1.0, 1.0))["layout"]["xaxis"]["range"]
    assert first < 0 < last
    first, last = figure(ForestRow("A", "pays", 0.0, 0.0, 0.0), is_log=False)["layout"]["xaxis"]["range"]
    assert first < 0 < last
    with pytest.raises(ValueError, match="JSON"):
        figure(ForestRow("A", "pays", math.nan))


@pytest.mark.parametrize("low", [0.001, 0.05, 0.27, 0.6, 0.95, 0.999])
@pytest.mark.parametrize("high", [1.001, 1.05, 1.31, 2.4, 6.0, 31.0, 4000.0])
def test_values_at_a_logarithmic_axis_are_few_and_within_it(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 5
    assert all(low <= tick <= high for tick in ticks)
    # A label takes 30 of the 200 pixels of a phone.
    distances = [math.log(after / before) / math.log(high / low) for before, after in itertools.pairwise(ticks)]
    assert min(distances) > 0.1
