"""Pages: well-formed, without anything from elsewhere, and readable in a browser at every size."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path

import pytest

from composer._html import document, is_page, plot, plot_text, save_document, section, table, tag
from composer._html.page import asset
from tests.browser import SCREENS, open_page

_VOID = {"meta", "br", "hr", "img", "link"}


class Checked(HTMLParser):
    """The open elements, and every address in a document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_document_is_well_formed_and_loads_nothing() -> None:
    made = document("<t>", section("s", table("l", ["a", "b"], [["<x>", 1]], right=[1])), command="composer test")
    checked = Checked(made)
    assert (checked.open, checked.addresses) == ([], [])
    assert "default-src 'none'" in made.replace("&#x27;", "'")
    assert "<title>&lt;t&gt;</title>" in made
    assert "<td>&lt;x&gt;</td>" in made
    assert '<td class="number">1</td>' in made
    assert "<footer>Made by composer test.</footer>" in made


def test_only_a_page_is_replaced(tmp_path: Path) -> None:
    path, text = tmp_path / "page.html", document("Page")
    for _ in range(2):
        save_document(text, path)
        assert is_page(path)
    for other in ("log", "<!doctype html>\n<p>Made by composer", f"# {text}", b"\xff\x00".decode("latin1")):
        path.write_text(other)
        with pytest.raises(FileExistsError, match=r"page\.html' exists, and is not a page of composer"):
            save_document(text, path)
        assert path.read_text() == other
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_a_page_is_written_through_a_link(tmp_path: Path) -> None:
    link, target = tmp_path / "link.html", tmp_path / "target.html"
    link.symlink_to(target)
    save_document(document("Page"), link)
    assert link.is_symlink()
    assert is_page(target)


def test_what_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=r"page\.html' cannot be written: No space left on device\.$"):
        save_document(document("Page"), tmp_path / "page.html")


@pytest.mark.parametrize("name", ["page.css", "page.js"])
def test_styles_and_scripts_load_nothing_and_cannot_end_their_element(name: str) -> None:
    assert not any(text in asset(name) for text in ("http", "url(", "@import", "</"))


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height", "scheme"), SCREENS)
def test_a_page_in_a_browser(tmp_path: Path, width: int, height: int, scheme: str) -> None:
    pytest.importorskip("plotly")
    path = tmp_path / "page <é>?#.html"
    traces = [{"type": "bar", "name": f"part {number}", "y": [1, 2, number]} for number in range(8)]
    cells = ["long" * 60, "x"]
    content = (
        plot("Parts", traces, {"barmode": "stack"}, 300),
        table("Wide", ["a", "b"], [cells]),
        tag("p", "x" * 500),
    )
    path.write_text(document("Page", section("Plot", *content)), encoding="utf-8")
    with open_page(path, width, height, scheme) as page:
        assert page.evaluate("document.documentElement.dataset.plots") == "drawn"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 26)")
        assert page.locator(".bars .point").count() == 24
        # The legend covers neither the plot nor its title.
        legend, bars = page.locator(".legend").bounding_box(), page.locator(".gridlayer").first.bounding_box()
        below = legend["y"] >= bars["y"] + bars["height"]
        assert below if width < 600 else legend["x"] >= bars["x"] + bars["width"]
        assert not [one for one in page.locator(".modebar-btn").all() if "Share" in one.get_attribute("data-title")]


@pytest.mark.slow
def test_plots_follow_the_theme_and_keep_their_zoom(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    path = tmp_path / "page.html"
    path.write_text(document("Page", plot("Parts", [{"y": [1, 2, 3]}], {})), encoding="utf-8")
    title = "getComputedStyle(document.querySelector('.xtick text')).fill"
    with open_page(path) as page:
        before = page.evaluate(title)
        page.evaluate("Plotly.relayout(document.querySelector('.canvas'), {'xaxis.range': [0.5, 1.5]})")
        page.emulate_media(color_scheme="dark")
        changed = f"{title} === '{before}' ? requestAnimationFrame(look) : done()"
        page.evaluate(f"new Promise((done) => {{ const look = () => {changed}; look(); }})")
        assert page.evaluate("document.querySelector('.canvas').layout.xaxis.range") == [0.5, 1.5]


@pytest.mark.slow
def test_a_page_without_its_library_says_so(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    path = tmp_path / "page.html"
    made = document("Page", plot("Parts", [{"y": [1]}], {}))
    start = made.index('id="plotly"')
    path.write_text(made[: start + 12] + made[made.index("</script>", start) :], encoding="utf-8")
    with pytest.raises(AssertionError, match="Error"), open_page(path) as page:
        assert page.evaluate("document.documentElement.dataset.plots") == "failed"
        assert "the tables have the same numbers" in page.inner_text(".canvas")


def test_names_that_are_not_utf8_can_be_written(tmp_path: Path) -> None:
    name = os.fsdecode(b"runs/\xff")
    page = document(name, section(name, tag("p", name)), plot(name, [{"name": plot_text(name)}], {}))
    assert page.encode().decode().count(r"runs/\udcff") == 6
