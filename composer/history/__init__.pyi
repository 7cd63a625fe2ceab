"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.history.builder import HistoryBuilder
from composer.history.history import History, LoggedArray, LoggedTable, RunEvent
from composer.history.series import TIMES, Series

__all__ = [
    "TIMES",
    "History",
    "HistoryBuilder",
    "LoggedArray",
    "LoggedTable",
    "RunEvent",
    "Series",
]
