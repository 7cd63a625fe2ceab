"""HTML: tables for notebooks, and pages with plots that open offline from a single file.

- ``tables``: tables for notebook cells, which have no style sheet.
- ``markup``: elements whose text is escaped and whose secrets are masked.
- ``page``: a whole document with its style sheet, for light and dark mode and for phones.
- ``forests``: effects with their intervals, a row each.
- ``plots``: figures of plotly.js in a page, with the library in the file.

What a user's program names (scripts, classes, labels) may be any text: it goes through ``tag`` or ``plot_text``, never
into a string of HTML.
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ForestRow": "composer._html.forests",
        "ForestStyle": "composer._html.forests",
        "Html": "composer._html.markup",
        "axis_switch": "composer._html.plots",
        "check_plots": "composer._html.plots",
        "document": "composer._html.page",
        "escaped": "composer._html.tables",
        "facts": "composer._html.tables",
        "forest": "composer._html.forests",
        "grid": "composer._html.tables",
        "is_page": "composer._html.page",
        "page_file": "composer._html.page",
        "plot": "composer._html.plots",
        "plot_text": "composer._html.plots",
        "save_document": "composer._html.page",
        "search_box": "composer._html.plots",
        "section": "composer._html.page",
        "table": "composer._html.page",
        "tag": "composer._html.markup",
    },
)
