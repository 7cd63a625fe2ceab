"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.core.run_event import RunEvent
from composer.history.builder import HistoryBuilder
from composer.history.downsample import downsample
from composer.history.history import History, LoggedArray, LoggedTable
from composer.history.live import LiveHistory
from composer.history.series import TIMES, Series

__all__ = [
    "TIMES",
    "History",
    "HistoryBuilder",
    "LiveHistory",
    "LoggedArray",
    "LoggedTable",
    "RunEvent",
    "Series",
    "downsample",
]
