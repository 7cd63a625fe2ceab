"""CSVLogger: write metrics to a CSV file, one row per step."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from composer.core.csv_rows import COUNTERS, TIME_COLUMNS, column_of
from composer.core.time import TimeUnit
from composer.loggers._run_file_logger import RunFileLogger
from composer.loggers._table_file import TableFile
from composer.loggers._values import to_json

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State
    from composer.core.timestamp import Timestamp

__all__ = ["CSVLogger"]


class CSVLogger(RunFileLogger):
    """Writes metrics to a CSV file, for spreadsheets and ``pandas.read_csv``.

    The columns are ``step`` (batches trained), ``epoch``, ``seconds`` (trained) and one per metric, in the order of
    first appearance; a metric with one of these three names becomes ``metrics/step``, and so on, and one called
    ``metrics/step`` becomes ``metrics/metrics/step``; :class:`.History` reads the names that were logged. Metrics
    logged at one step share a row, unless the same metric is logged twice, or others before and after the end of an
    epoch: no value is lost. Cells of metrics that were not logged are empty. Numbers are written so that reading them
    returns the same number.

    An existing file of an earlier run with the same name is moved to ``name.1.csv``. A resumed run continues its file
    from where the checkpoint was saved; if the file contains more, all of it is kept as ``name.1.csv`` first. That of a
    complete run, which does not train on, keeps its rows.

    Hyperparameters, tables and traces do not fit this format; :class:`.JSONLinesLogger` writes them.

    Args:
        filename: Path of the file; may contain ``{run_name}``, ``{rank}``, ``{local_rank}``, ``{node_rank}``,
            ``{world_size}`` and ``{local_world_size}``. If it is the same for all ranks, only rank 0 writes.
        remote_file_name: Name, with the same placeholders, under which loggers that store files receive it; None does
            not upload it.
        flush_interval: Number of batches between two writes; metrics are also written after each epoch and evaluation.
        overwrite: Replace a file of an earlier run instead of moving it.

    Raises:
        TypeError: A name is not a string, or ``flush_interval`` is not an integer.
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
        super().__init__(filename, remote_file_name, flush_interval, overwrite)
        self._rows: list[dict[str, str]] = []
        self._written = False  # whether the first of the rows is in the file already, maybe with fewer cells
        self._changed = False  # whether the file is incomplete
        self._table: TableFile | None = None

    def __receive__(self, metrics: dict[str, Any], step: int, timestamp: Timestamp) -> None:
        """Add the metrics of one log record."""
        if not self._run_file.is_active:
            return
        now = {"step": step, "epoch": timestamp.count(TimeUnit.EPOCH), "seconds": timestamp.count(TimeUnit.SECOND)}
        cells = {column_of(name): _cell(value) for name, value in metrics.items()}
        self._add({name: _cell(value) for name, value in now.items()}, cells)
        self._write_now()

    def close(self, state: State, logger: Logger) -> None:
        """Write the remaining rows."""
        try:
            super().close(state, logger)
        finally:
            self._rows, self._written, self._changed, self._table = [], False, False, None

    @property
    def _has_unwritten(self) -> bool:
        return self._changed

    def _position(self) -> dict[str, Any]:
        last = dict(self._rows[-1]) if self._rows else {}
        return {"rows": 0 if self._table is None else self._table.num_rows, "last": last}

    def _add(self, now: dict[str, str], cells: dict[str, str]) -> None:
        """Add cells to the last row if they belong to the same step and epoch, or else as a new row."""
        last = self._rows[-1] if self._rows else {}
        is_same = last.get("step") == now["step"] and last.keys().isdisjoint(cells)
        # The trainer counts each batch before its epoch ends: these numbers, which say what they count, need no row.
        if is_same and (last["epoch"] == now["epoch"] or last.keys() - now.keys() <= COUNTERS):
            last.update(cells, epoch=now["epoch"])
        else:
            self._rows.append(now | cells)
        self._changed = True

    def _write(self, state: State) -> None:
        """Open the file if needed, and bring it up to date."""
        table = self._table or self._open(state)
        if self._changed:
            table.write(self._rows, replace_last=self._written)
            self._rows, self._written, self._changed = self._rows[-1:], True, False

    def _open(self, state: State) -> TableFile:
        saved = self._run_file.open(state)
        assert self._run_file.path is not None
        rows = None if saved is None else saved.get("rows")
        table = self._table = TableFile(self._run_file.path, rows)
        # Metrics at the step of the checkpoint extend the last row, as it was when the checkpoint was saved. A crash of
        # the host may have cut it off since.
        is_cut = saved is not None and rows is not None and table.num_rows < rows
        if table.num_rows or is_cut:
            last = saved["last"] if saved and rows is not None and table.num_rows <= rows else table.last()
            early, self._rows, self._written, self._changed = self._rows, [last], not is_cut, True
            for row in early:
                now = {name: row.pop(name) for name in TIME_COLUMNS}
                self._add(now, row)
        return table


def _cell(value: Any) -> str:
    """Format a value so that it can be read again; None is an empty cell."""
    if isinstance(value, str):
        return value
    if type(value) is int or (type(value) is float and math.isfinite(value)):  # fast path for nearly all values
        return repr(value)
    plain = to_json(value)
    return "" if plain is None else plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
