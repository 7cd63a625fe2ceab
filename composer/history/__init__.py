"""The history of a run: its metrics over time, hyperparameters, tables and events, read from logs or live.

The modules, in reading order:

- ``series``: the values of one metric with their steps, epochs and times.
- ``history``: all that one run logged.
- ``builder``: collects log records into a history, and tells values that a resumed run logged again from those it kept.
- ``downsample``: fewer points that draw the same curve.
- ``live``: keeps what the logger of a running trainer delivers.
- ``_read``: the logs in a run folder; ``_json_lines`` and ``_csv_table`` read one file.
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "History": "composer.history.history",
        "HistoryBuilder": "composer.history.builder",
        "LoggedArray": "composer.history.history",
        "LoggedTable": "composer.history.history",
        "LiveHistory": "composer.history.live",
        "RunEvent": "composer.core.run_event",
        "Series": "composer.history.series",
        "downsample": "composer.history.downsample",
        "TIMES": "composer.history.series",
    },
)
