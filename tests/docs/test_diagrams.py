"""The diagrams of the guides: each is valid SVG, appears on a page, and shows the events of the loop."""

from __future__ import annotations

import doctest
import re
from xml.etree import ElementTree

import pytest

from docs import diagrams
from docs.event_loop import event_loop, with_event_loop
from tests.docs.blocks import DOCS


def test_each_diagram_is_on_a_page_and_each_mark_has_a_diagram() -> None:
    marks = [name for page in DOCS.rglob("*.md") for name in re.findall(r"<!-- picture: (\w+) -->", page.read_text())]
    assert sorted(marks) == sorted(diagrams.DIAGRAMS)
    with pytest.raises(KeyError, match="unknown"):
        with_event_loop("<!-- picture: unknown -->")
    assert doctest.testmod(diagrams) == (0, 1)


@pytest.mark.parametrize("name", sorted(diagrams.DIAGRAMS))
def test_a_diagram_is_one_line_of_valid_svg_in_the_colors_of_the_page(name: str) -> None:
    shown = with_event_loop(f"Before.\n\n<!-- picture: {name} -->\n\nAfter.")
    before, figure, after = shown.split("\n\n")
    assert (before, after) == ("Before.", "After.")
    (svg,) = ElementTree.fromstring(figure)
    assert svg.get("aria-label")
    width, height = map(float, svg.get("viewBox", "").split()[2:])
    for text in svg.iter("text"):
        assert 0 <= float(text.get("x", "")) <= width
        assert 0 < float(text.get("y", "")) <= height
        assert float(text.get("font-size", "")) >= 10  # readable at a width of 390 pixels
    assert "#000" not in figure
    assert "black" not in figure


def test_the_diagram_of_the_loop_shows_each_event_as_often_as_the_code() -> None:
    words = re.findall(r">([A-Z_]{4,})<", with_event_loop("<!-- picture: loop -->"))
    assert words == re.findall(r"\b[A-Z_]{4,}\b", event_loop()["fit"])
