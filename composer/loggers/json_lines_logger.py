"""JSONLinesLogger: write everything that is logged to a JSON Lines file, one JSON object per line."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.core.hooks import replaces
from composer.core.run_files import line_end, set_aside
from composer.core.time import TimeUnit
from composer.environment import collect_env
from composer.loggers._run_file_logger import RunFileLogger
from composer.loggers._values import to_json
from composer.model_summary import model_summary
from composer.program_version import program_version

if TYPE_CHECKING:
    from composer.core.array_axes import ArrayAxes
    from composer.core.run_event import RunEvent
    from composer.core.state import State
    from composer.core.timestamp import Timestamp

__all__ = ["JSONLinesLogger"]

# Kinds of events that training again brings about again.
_OF_TRAINING = ("evaluation", "nan", "spike")


class JSONLinesLogger(RunFileLogger):
    """Writes metrics, hyperparameters, tables, events and traces to a text file with one JSON object per line.

    =================== ====================================================================================
    ``kind``            further keys
    =================== ====================================================================================
    ``metrics``         ``step`` (batches trained), ``epoch``, ``sample``, ``token``, ``seconds`` (trained), ``values``
    ``hyperparameters`` ``values``
    ``table``           ``step``, ``name``, ``columns``, ``rows``
    ``traces``          ``step``, ``values``
    ``axes``            ``metric``, ``classes``, ``rows``, ``columns``: what the axes of an array metric stand for
    ``event``           ``event`` (such as "checkpoint"), ``step``, ``seconds``, ``time`` (Unix), ``text``, ``details``
    ``environment``     ``values``: versions, hardware, script and commit, when the file is created
    ``model``           ``name``, ``columns``, ``rows``, ``notes``: the table of the model's layers, likewise
    =================== ====================================================================================

    Every line is strict JSON: NaN and the infinities are the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
    Read the metrics with ``pandas.json_normalize``, or line by line with ``json.loads``.

    An existing file of an earlier run with the same name is moved to ``name.1.jsonl``. A resumed run continues its
    file from where the checkpoint was saved; if the file contains more, all of it is kept as ``name.1.jsonl`` first.
    That of a complete run, which does not train on, keeps its lines.

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
    ...     lines = JSONLinesLogger(folder + "/{run_name}.jsonl")
    ...     state = State(torch.nn.Linear(1, 1), run_name="night", callbacks=[lines])
    ...     logger = Logger(state, lines)
    ...     engine = Engine(state, logger)
    ...     logger.log_hyperparameters({"lr": 0.1})
    ...     engine.close()
    ...     print(Path(folder, "night.jsonl").read_text().splitlines()[-1])
    {"kind": "hyperparameters", "values": {"lr": 0.1}}
    """

    def __init__(
        self,
        filename: str = "{run_name}/log.jsonl",
        remote_file_name: str | None = None,
        *,
        flush_interval: int = 100,
        overwrite: bool = False,
    ) -> None:
        super().__init__(filename, remote_file_name, flush_interval, overwrite)
        self._lines: list[str] = []
        self._size = 0  # of the file, in bytes

    @property
    def __keeps_traces__(self) -> bool:
        """Whether a subclass overrides ``log_traces`` and so always receives algorithm traces."""
        return replaces(self, JSONLinesLogger, "log_traces")

    def __receive__(self, metrics: dict[str, Any], step: int, timestamp: Timestamp) -> None:
        """Write the metrics of one log record."""
        self._add(
            "metrics",
            step=step,
            epoch=timestamp.count(TimeUnit.EPOCH),
            sample=timestamp.count(TimeUnit.SAMPLE),
            token=timestamp.count(TimeUnit.TOKEN),
            seconds=timestamp.count(TimeUnit.SECOND),
            values=metrics,
        )

    def __describe_array__(self, name: str, axes: ArrayAxes) -> None:
        """Write what the rows and columns of a metric stand for."""
        self._add("axes", metric=name, **axes._asdict())

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Write hyperparameters."""
        self._add("hyperparameters", values=hyperparameters)

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Write a table."""
        self._add("table", step=step, name=name, columns=columns, rows=rows)

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Write algorithm traces."""
        step = None if self._state is None else self._state.timestamp.count(TimeUnit.BATCH)
        self._add("traces", step=step, values=traces)

    def __receive_event__(self, event: RunEvent) -> None:
        """Write an event of the run."""
        about = {name: value for name, value in dataclasses.asdict(event).items() if name != "kind" and value != {}}
        self._add("event", event=event.kind, **about)

    @property
    def _has_unwritten(self) -> bool:
        return bool(self._lines)

    def _position(self) -> dict[str, Any]:
        return {"bytes": self._size}

    def _add(self, record_type: str, **values: Any) -> None:
        if self._run_file.is_active:
            self._lines.append(_line(record_type, values))
            self._write_now()

    def _write(self, state: State) -> None:
        """Append new lines to the file."""
        if self._run_file.path is None:
            self._open(state)
        if self._lines:
            assert self._run_file.path is not None
            # File names that are not UTF-8 contain surrogates: written as JSON escapes.
            text = "".join(self._lines).encode(errors="backslashreplace")
            with self._run_file.path.open("ab") as file:
                file.truncate(self._size)  # a failed write may have left an incomplete line
                file.write(text)
            self._size += len(text)
            self._lines.clear()

    def _open(self, state: State) -> None:
        """Open the file; a resumed one is truncated to its size when the checkpoint was saved."""
        saved = self._run_file.open(state)
        path = self._run_file.path
        assert path is not None
        self._size = 0
        if saved is not None:
            # A crash of the host may have cut off the file before the end that it had at the checkpoint.
            with path.open("rb") as file:
                self._size = line_end(file)
        else:
            environment = collect_env(extras=False) | {"program": program_version()}
            facts = {"environment": {"values": environment}, "model": model_summary(state.model).table()}
            self._lines[:0] = [_line(record_type, values) for record_type, values in facts.items()]
        if saved and saved["bytes"] < self._size:
            # That the checkpoint was saved is logged after its state was collected.
            kept = _end_of_events(path, saved["bytes"])
            if kept < self._size:
                set_aside(path, copy=True)
                self._size = kept
                os.truncate(path, kept)


def _line(record_type: str, values: dict[str, Any]) -> str:
    record = {"kind": record_type, **to_json(values)}
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _end_of_events(path: Path, start: int) -> int:
    """Return the end of the events that follow an offset, in bytes, without those that a resumed run logs again."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not (line.startswith(b'{"kind": "event"') and line.endswith(b"\n")):
                break
            if json.loads(line)["event"] in _OF_TRAINING:
                break
            start += len(line)
    return start
