"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer._html.forests import ForestRow, ForestStyle, forest
from composer._html.markup import Html, tag
from composer._html.page import document, section, table
from composer._html.plots import check_plots, plot, plot_text
from composer._html.tables import escaped, facts, grid

__all__ = [
    "ForestRow",
    "ForestStyle",
    "Html",
    "check_plots",
    "document",
    "escaped",
    "facts",
    "forest",
    "grid",
    "plot",
    "plot_text",
    "section",
    "table",
    "tag",
]
