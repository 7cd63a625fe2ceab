"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer._html.forests import ForestRow, ForestStyle, forest
from composer._html.markup import Html, tag
from composer._html.page import document, is_page, page_file, save_document, section, table
from composer._html.plots import axis_switch, check_plots, plot, plot_text, search_box
from composer._html.tables import escaped, facts, grid

__all__ = [
    "ForestRow",
    "ForestStyle",
    "Html",
    "axis_switch",
    "check_plots",
    "document",
    "escaped",
    "facts",
    "forest",
    "grid",
    "is_page",
    "page_file",
    "plot",
    "plot_text",
    "save_document",
    "search_box",
    "section",
    "table",
    "tag",
]
