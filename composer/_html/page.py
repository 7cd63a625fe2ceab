"""A whole HTML document in one file: no part of it is loaded from elsewhere, and no script may."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from importlib import resources
from pathlib import Path

from composer._html.markup import Html, markup, tag
from composer._html.plots import library, needs_library
from composer._output_file import output_file

__all__ = ["asset", "document", "is_page", "page_file", "save_document", "section", "table"]

# The browser refuses every request, even if a script or style asked for one. Pictures of plots are saved as blobs.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'"
)
_START, _MADE_BY = "<!doctype html>", "<footer>Made by composer"


def document(title: str, *content: Html, command: str = "composer") -> str:
    """Return a document, with the library for its plots if it has any.

    Args:
        title: The title of the window.
        *content: The content, such as sections.
        command: The command that makes it, which the end of the page names.

    Raises:
        MissingConditionalImportError: There are plots, and plotly is not installed.

    >>> document("Report", section("Verdict", tag("p", "Nothing is wrong."))).startswith("<!doctype html>")
    True
    """
    body = markup(*content)
    head = markup(
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Html(asset("page.css"))),
    )
    foot, scripts = f"Made by {command}.", list[Html]()
    if needs_library(body):
        foot += " Plots by plotly.js (MIT license), which is in this file."
        scripts = [library(), tag("script", Html(asset("page.js")))]
    page = tag("html", tag("head", head), tag("body", tag("main", body, tag("footer", foot)), *scripts), lang="en")
    # File names that are not UTF-8 contain surrogates, with which the page could not be written.
    return f"{_START}\n{page}\n".encode(errors="backslashreplace").decode()


def save_document(text: str, path: Path) -> None:
    """Write a document to a file; a page of composer is replaced when the new one is complete.

    Args:
        text: The document.
        path: The file.

    Raises:
        FileExistsError: The file is not a page of composer.
        OSError: The file cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_document(document("Report"), Path(folder, "report.html"))
    ...     [file.name for file in Path(folder).iterdir()]
    ['report.html']
    """
    path = page_file("path", path)
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError as error:
        raise OSError(f"{str(path)!r} cannot be written: {error.strerror}.") from None


def page_file(name: str, path: str | Path) -> Path:
    """Return the path of a page to write, before the work that it is for.

    Args:
        name: Name of the argument.
        path: Its value.

    Raises:
        FileExistsError: The file exists, and is not a page of composer.
        FileNotFoundError: Its folder does not exist.
        ValueError: It is a folder.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as log:
    ...     _ = log.write("{}"), log.flush()
    ...     page_file("--output", log.name)
    Traceback (most recent call last):
    ...
    FileExistsError: --output='...jsonl' exists, and is not a page of composer. Delete the file, or name another.
    """
    return output_file(name, path, is_page, "a page of composer")


def is_page(path: Path) -> bool:
    """Return whether a file is a page that composer has written.

    Args:
        path: The file.

    >>> is_page(Path("no_such_page.html"))
    False
    """
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(len(_START)) == _START and _MADE_BY in file.read()


def section(title: str, *content: object) -> Html:
    """Return a section with a heading.

    Args:
        title: The heading.
        *content: What is in it, see :func:`.markup`.

    >>> section("Noise", tag("p", "3 %"))
    '<section><h2>Noise</h2><p>3 %</p></section>'
    """
    return tag("section", tag("h2", title), *content)


def table(
    label: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Collection[int] = (),
) -> Html:
    """Return a table, which scrolls sideways where it is wider than the screen.

    Args:
        label: What it shows, for screen readers.
        columns: The column names.
        rows: The cells; :class:`.Html` as it is, everything else escaped.
        right: Indices of the right-aligned columns.

    >>> table("Parts", ["part", "ms"], [["forward", 3]], right=[1]).count("<td")
    2
    """
    styles = ["number" if column in right else None for column in range(len(columns))]
    head = [tag("th", text, scope="col", class_=style) for text, style in zip(columns, styles, strict=True)]
    body = [
        tag("tr", *(tag("td", cell, class_=style) for cell, style in zip(row, styles, strict=True))) for row in rows
    ]
    made = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))
    # A region that scrolls must be reachable by the keyboard.
    return tag("div", made, class_="scroll", role="region", aria_label=label, tabindex=0)


def asset(name: str) -> str:
    """Return the text of a style sheet or script of this package.

    Args:
        name: The file name.

    >>> "prefers-color-scheme" in asset("page.css")
    True
    """
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")
