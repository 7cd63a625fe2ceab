"""Plots of plotly.js in an HTML document, drawn by the browser from data and a library in the same file."""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from composer._html.markup import Html, tag
from composer._lazy import import_extra
from composer._secrets.masking import mask_text

__all__ = ["axis_switch", "check_plots", "library", "needs_library", "plot", "plot_text", "search_box"]

# Within a script element these would end it, or begin a comment.
_IN_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
_CLASS = "plot"


def check_plots(purpose: str) -> None:
    """Raise if plots cannot be made, before what they show is measured.

    Args:
        purpose: The feature that needs them; the error message starts with this.

    Raises:
        MissingConditionalImportError: plotly is not installed.

    >>> check_plots("composer doctor --html")
    """
    import_extra("plotly", "report", purpose)


def plot(
    label: str,
    traces: Sequence[Mapping[str, Any]],
    layout: Mapping[str, Any],
    height: int = 420,
    axes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Html:
    """Return the element that a browser draws a figure into; colors of text, lines and background follow its theme.

    Args:
        label: What the figure shows, for screen readers and below it.
        traces: The ``data`` of a figure of plotly.js. Names and texts must come from :func:`plot_text`.
        layout: Its ``layout``.
        height: Its height in CSS pixels.
        axes: Other x axes, for :func:`axis_switch`, by name: ``x``, one for each trace, or the index of a trace that
            has the same; ``y`` likewise, if it differs; the layout of the ``xaxis``; and ``shapes``.

    Raises:
        ValueError: A number is not finite: write None where a value is missing.

    >>> plot("Loss", [{"y": [1, 2]}], {}).count("<script")
    1
    """
    figure = {"data": list(traces), "layout": dict(layout), **({"axes": axes} if axes else {})}
    data = json.dumps(figure, allow_nan=False).translate(_IN_SCRIPT)
    return tag(
        "figure",
        tag("script", Html(data), type="application/json"),
        tag("div", class_="canvas", style=f"height:{height}px", role="img", aria_label=label),
        tag("figcaption", label),
        class_=_CLASS,
    )


def axis_switch(axes: Sequence[str]) -> Html | None:
    """Return buttons that choose the x axis of all plots that have it; None if there is nothing to choose.

    Args:
        axes: The axes that the plots have, the one that is shown first.

    >>> axis_switch(["step"]) is None, axis_switch(["step", "seconds"]).count("<button")
    (True, 2)
    """
    if len(axes) < 2:
        return None
    buttons = [
        tag("button", name, type="button", data_axis=name, aria_pressed="true" if name == axes[0] else "false")
        for name in axes
    ]
    return tag("p", "x axis: ", *buttons, class_="axes", role="group", aria_label="x axis")


def search_box(label: str, packed: str, layout: Mapping[str, Any], told: str = "") -> Html:
    """Return a search box with the plot of the curves whose names have all its words, ten at a time.

    Args:
        label: What is searched, such as "Find metrics".
        packed: The curves, a list of ``{"name": ..., "x": [...], "y": [...]}`` as JSON, compressed by gzip, in base64.
            The names are text, not that of :func:`plot_text`.
        layout: The layout of the plot.
        told: What stands below the box.

    >>> search_box("Find metrics", "", {}).count("<input")
    1
    """
    field = tag("input", type="search", placeholder="words of a name", autocomplete="off", spellcheck="false")
    return tag(
        "div",
        tag("script", Html(packed), type="text/plain", class_="packed"),
        tag("p", tag("label", f"{label}: ", field), " ", tag("span", role="status")),
        tag("p", told, class_="note") if told else None,
        plot("Curves that match", [], layout, 400),
        tag("p", class_="names"),
        class_="search",
    )


def plot_text(value: object) -> str:
    """Return a text that plotly.js shows as it is: it reads tags such as ``<b>`` in names, labels and hover texts.

    Args:
        value: Any object that can be converted to text. Secrets are masked.

    >>> plot_text("callback <a>")
    'callback &lt;a&gt;'
    """
    # Not html.escape's &quot;, which plotly.js does not know; no line break, which it would draw; and no "$", since it
    # takes what is between two of them for TeX.
    return html.escape(" ".join(mask_text(str(value)).split()), quote=False).replace("$", "&#36;")


def needs_library(content: str) -> bool:
    """Return whether a document has plots.

    Args:
        content: Its markup.

    >>> needs_library(plot("Loss", [], {})), needs_library("<p>&lt;figure&gt;</p>")
    (True, False)
    """
    return f'<figure class="{_CLASS}">' in content


def library() -> Html:
    """Return the element with plotly.js, compressed to 40 % of its size; browsers unpack it since 2023.

    Raises:
        MissingConditionalImportError: plotly is not installed.

    >>> len(library()) < 2_500_000
    True
    """
    code: str = import_extra("plotly.offline", "report", "A page with plots").get_plotlyjs()
    packed = gzip.compress(code.encode(), mtime=0)
    return tag("script", Html(base64.b64encode(packed).decode()), type="text/plain", id="plotly")
