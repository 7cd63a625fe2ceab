"""The history of the current run: what its logger delivered, and before a resumption what its log files have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from composer.core.name_placeholders import format_name
from composer.core.time import TimeUnit
from composer.environment import collect_env
from composer.history.history import History
from composer.history.live import LiveHistory
from composer.loggers.csv_logger import CSVLogger
from composer.loggers.json_lines_logger import JSONLinesLogger
from composer.model_summary import model_summary

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["history_of"]


def history_of(state: State, logger: Logger) -> History:
    """Return what a run logged so far.

    Args:
        state: The state of the run.
        logger: Its logger, with a :class:`.LiveHistory` as recorder; queued records are delivered.

    Raises:
        TypeError: The logger has no such recorder.
    """
    live = logger.recorder
    if not isinstance(live, LiveHistory):
        raise TypeError(f"The logger must have a LiveHistory as its recorder, but has {live!r}.")
    logger.flush()
    history = live.history()
    start = state.timestamp if live.start is None else live.start
    history.name = state.run_name
    history.environment, history.model = collect_env(extras=False), model_summary(state.model).table()
    if start.count(TimeUnit.BATCH) == 0:
        return history
    for logs in (JSONLinesLogger, CSVLogger):
        for destination in logger.destinations:
            if not isinstance(destination, logs):
                continue
            # Not the current path, which is unknown before training and after the close.
            path = Path(format_name(destination._run_file.filename, state.run_name))
            if path.exists():
                before = History.read(path)
                return before.until(start.count(TimeUnit.SECOND)).followed_by(history)
    return history
