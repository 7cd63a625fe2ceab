"""Keep metrics in a table, a row for each step."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from composer._text import positive
from composer.core.logger import LoggerDestination
from composer.core.time import TimeUnit
from composer.core.timestamp import Timestamp
from composer.loggers._run_file import RunFile
from composer.loggers._table_file import TableFile
from composer.loggers._values import to_json

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["CSVLogger"]

# Every row has them.
_TIME: Final = ("step", "epoch", "seconds")


class CSVLogger(LoggerDestination):
    """Writes metrics to a CSV file, for spreadsheets and ``pandas.read_csv``.

    The columns are ``step`` (batches trained), ``epoch``, ``seconds`` (trained) and one for each metric, in the order
    in which they first came; a metric that is named like one of the three is ``metrics/step``, and so on. What is
    logged at one step shares a row, unless a metric comes twice: no value is lost. Cells of metrics that were not
    logged are empty. Numbers are written so that reading gives the same number.

    A file that an earlier run of the same name left is moved to ``name.1.csv``. A resumed run goes on with its file
    where the checkpoint was saved; if there is more in it, the whole is kept as ``name.1.csv`` first.

    Hyperparameters, tables and traces have no place in such a file; :class:`.JSONLinesLogger` keeps them.

    Args:
        filename: Path of the file; may contain ``{run_name}``, ``{rank}``, ``{local_rank}``, ``{node_rank}``,
            ``{world_size}`` and ``{local_world_size}``. Where it does not tell the processes apart, the first writes.
        remote_file_name: Name, with the same placeholders, under which the loggers that keep files get it; None is
            not at all.
        flush_interval: Number of batches between two times that metrics are fetched and written; that happens after
            each epoch and evaluation as well.
        overwrite: Whether a file of an earlier run is replaced instead of moved.

    Raises:
        TypeError: A name is no string, or ``flush_interval`` no number.
        ValueError: A name has an unknown placeholder, or ``flush_interval`` is not positive.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from composer import Engine, Logger, State
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = CSVLogger(folder + "/{run_name}.csv")
    ...     state = State(torch.nn.Linear(1, 1), run_name="night", callbacks=[table])
    ...     logger = Logger(state, table)
    ...     engine = Engine(state, logger)
    ...     logger.log_metrics({"loss": 0.5})
    ...     logger.log_metrics({"loss": 0.25, "accuracy": 1}, step=1)
    ...     engine.close()
    ...     print(Path(folder, "night.csv").read_text(), end="")
    step,epoch,seconds,loss,accuracy
    0,0,0.0,0.5,
    1,0,0.0,0.25,1
    """

    def __init__(
        self,
        filename: str = "{run_name}/metrics.csv",
        remote_file_name: str | None = None,
        *,
        flush_interval: int = 100,
        overwrite: bool = False,
    ) -> None:
        self._run_file = RunFile(filename, remote_file_name, overwrite)
        self.flush_interval = positive("flush_interval", flush_interval)
        self._rows: list[dict[str, str]] = []
        self._written = False  # whether the first of the rows stands in the file already, maybe with fewer cells
        self._changed = False  # whether the file lacks anything
        self._table: TableFile | None = None
        self._state: State | None = None
        self._logger: Logger | None = None

    @property
    def filename(self) -> str:
        """Path of the file; with its placeholders as long as the run is unknown."""
        return self._run_file.filename if self._run_file.path is None else str(self._run_file.path)

    @property
    def location(self) -> str | None:
        """Path of the file that was written, if there is one."""
        return None if self._run_file.path is None else str(self._run_file.path)

    def receive(self, metrics: dict[str, Any], step: int, timestamp: Timestamp) -> None:
        """Take the metrics of one moment."""
        if not self._run_file.is_ours:
            return
        now = {"step": step, "epoch": timestamp.count(TimeUnit.EPOCH), "seconds": timestamp.count(TimeUnit.SECOND)}
        cells = {f"metrics/{name}" if name in _TIME else name: _cell(value) for name, value in metrics.items()}
        self._add({name: _cell(value) for name, value in now.items()}, cells)
        # Between loops nothing else would come for a while.
        if self._table is not None and self._logger is not None and not self._logger.deferred:
            self._write(self._table)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Take metrics that come without a time of logging; it is now."""
        now = Timestamp() if self._state is None else self._state.timestamp
        self.receive(metrics, now.count(TimeUnit.BATCH) if step is None else step, now)

    def init(self, state: State, logger: Logger) -> None:
        """Remember the run."""
        self._state, self._logger = state, logger

    def after_load(self, state: State, logger: Logger) -> None:
        """Write what came before, now that it is known whether the run goes on with a file."""
        if self._run_file.is_ours:
            self._open(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Write what has come, if it is time."""
        if self._changed and self.due(state):
            self._write_and_upload(state, logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Write what has come."""
        self._write_and_upload(state, logger)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Write what has come."""
        self._write_and_upload(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Write what has come."""
        self._write_and_upload(state, logger)

    def close(self, state: State, logger: Logger) -> None:
        """Write the rest."""
        try:
            self._write_and_upload(state, logger)
        finally:
            self._run_file.close()
            self._rows, self._written, self._changed = [], False, False
            self._table = self._state = self._logger = None

    def state_dict(self) -> dict[str, Any]:
        """Return which file belongs to the run, and how many rows of it."""
        if self._state is None or self._logger is None or not self._run_file.is_ours:
            return {}
        self._logger.flush()
        table = self._open(self._state)
        last = dict(self._rows[-1]) if self._rows else {}
        return self._run_file.state_dict(self._state, rows=table.num_rows, last=last)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the file of the run where it was, unless it has another name now."""
        self._run_file.load_state_dict(state)

    def _write_and_upload(self, state: State, logger: Logger) -> None:
        if self._run_file.is_ours:
            self._open(state)
            self._run_file.upload(state, logger)

    def _add(self, now: dict[str, str], cells: dict[str, str]) -> None:
        """Add cells to the last row if they belong there, or else a row."""
        last = self._rows[-1] if self._rows else {}
        if last.get("step") == now["step"] and last.keys().isdisjoint(cells):
            last.update(cells)
        else:
            self._rows.append(now | cells)
        self._changed = True

    def _open(self, state: State) -> TableFile:
        """Find the file, if that is not done yet, and bring it up to date."""
        table = self._table
        if table is None:
            saved = self._run_file.open(state)
            assert self._run_file.path is not None
            rows = None if saved is None else saved.get("rows")
            table = self._table = TableFile(self._run_file.path, rows)
            if table.num_rows:
                # What comes at the step of the checkpoint belongs to the row that it left, as it was then.
                last = saved["last"] if saved and rows == table.num_rows else table.last()
                early, self._rows, self._written, self._changed = self._rows, [last], True, True
                for row in early:
                    now = {name: row.pop(name) for name in _TIME}
                    self._add(now, row)
        self._write(table)
        return table

    def _write(self, table: TableFile) -> None:
        """Bring the file up to date."""
        if self._changed:
            table.write(self._rows, replace_last=self._written)
            self._rows, self._written, self._changed = self._rows[-1:], True, False


def _cell(value: Any) -> str:
    """Write a value so that it can be read again; None is an empty cell."""
    if isinstance(value, str):
        return value
    if type(value) is int or (type(value) is float and math.isfinite(value)):  # nearly always, hence fast
        return repr(value)
    plain = to_json(value)
    return "" if plain is None else plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
