"""HistoryBuilder: collect log records in columns, and separate values that a resumed run logged again."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from composer.core.array_axes import ArrayAxes
from composer.core.csv_rows import COUNTERS
from composer.core.run_event import RunEvent
from composer.history.downsample import downsample
from composer.history.history import History, LoggedArray, LoggedTable
from composer.history.series import TIMES, Series

__all__ = ["HistoryBuilder"]

# How JSON logs write what JSON lacks.
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class HistoryBuilder:
    """Collects the records of a log, in the order of logging, in 12 bytes a value and 40 bytes a record.

    If the time trained decreases, the run was resumed from a checkpoint. Values that were logged before, at later
    times, are replaced then, and so are those at the same time whose metric was logged again at that step: an
    evaluation before the checkpoint was saved is not repeated.

    The counters ``time/epoch``, ``time/batch`` and so on of the trainer are no metrics here: they are the times of
    each value.

    Args:
        name: Name of the run.

    Attributes:
        num_values: Number of values.

    >>> builder = HistoryBuilder("night")
    >>> for seconds, loss in [(0.0, 0.9), (1.0, 0.8), (2.0, 0.7), (1.0, 0.75)]:  # resumed after one second
    ...     builder.add(int(seconds), {"loss": loss}, seconds=seconds)
    >>> history = builder.history()
    >>> history["loss"].values, history.replaced["loss"].values
    (array([0.9 , 0.75]), array([0.8, 0.7]))
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.hyperparameters: dict[str, Any] = {}
        self.environment: Mapping[str, Any] = {}
        self.model: Mapping[str, Any] = {}
        self.tables: dict[str, LoggedTable] = {}
        self.events: list[RunEvent] = []
        self.remarks: list[str] = []
        self.axes: dict[str, ArrayAxes] = {}
        self._arrays: dict[str, LoggedArray] = {}
        self._texts: dict[str, str] = {}
        self._step = array("q")
        self._times = array("d")  # of each row, one after the other
        self._series: dict[str, tuple[array[int], array[float]]] = {}
        # The rows at which the run was resumed, and the time trained there.
        self._resumptions: list[tuple[int, float]] = []
        self._seconds = -math.inf
        self.num_values = 0

    def add(
        self,
        step: int,
        values: Mapping[str, Any],
        *,
        epoch: float = math.nan,
        sample: float = math.nan,
        token: float = math.nan,
        seconds: float = math.nan,
    ) -> None:
        """Add a record.

        Args:
            step: Number of batches trained.
            values: Values by name: numbers, or tensors, arrays and lists of numbers, or text.
            epoch: Number of finished epochs; NaN if unknown, like the others.
            sample: Number of samples seen.
            token: Number of tokens seen.
            seconds: Time trained in seconds.

        Raises:
            OverflowError: A number does not fit into 64 bits.
            TypeError: A time is no number.
        """
        row = len(self._step)
        self._step.append(step)
        try:
            self._times.extend((epoch, sample, token, seconds))
        except (OverflowError, TypeError):
            del self._step[row:], self._times[len(TIMES) * row :]
            raise
        if seconds < self._seconds:
            self._resumptions.append((row, seconds))
        if seconds == seconds:  # not NaN
            self._seconds = seconds
        for name, value in values.items():
            if name in COUNTERS:
                continue
            number = value if type(value) is float else _number(value)
            if number is None:
                self._keep(name, value, step)
                continue
            columns = self._series.get(name)
            if columns is None:
                columns = self._series[name] = array("i"), array("d")
            columns[0].append(row)
            columns[1].append(number)
            self.num_values += 1

    def thin(self, limit: int) -> None:
        """Downsample the longest series, so that at most ``limit`` values are left and minima and maxima stay.

        Args:
            limit: The largest number of values of all series.
        """
        share = _share([len(values) for _, values in self._series.values()], limit)
        columns = {name: (np.array(rows), np.array(values)) for name, (rows, values) in self._series.items()}
        kept = {name: downsample(values, max(share, 10)) for name, (_, values) in columns.items()}
        columns = {name: (rows[kept[name]], values[kept[name]]) for name, (rows, values) in columns.items()}
        newest = [len(self._step) - 1]  # its times are the latest
        used = np.unique(np.concatenate([*(rows for rows, _ in columns.values()), newest]))
        self._step = array("q", np.array(self._step)[used].tobytes())
        self._times = array("d", self._columns()[used].tobytes())
        self._resumptions = [(int(np.searchsorted(used, row)), seconds) for row, seconds in self._resumptions]
        for name, (rows, values) in columns.items():
            places = np.searchsorted(used, rows).astype(np.int32)
            self._series[name] = array("i", places.tobytes()), array("d", values.tobytes())
        self.num_values = sum(len(values) for _, values in columns.values())

    def history(self) -> History:
        """Return what was collected; later records do not change it."""
        # Copies, as arrays cannot grow while others refer to their memory.
        step = np.array(self._step, dtype=np.int64)
        times = dict(zip(TIMES, self._columns().T, strict=True))
        times = {unit: column for unit, column in times.items() if not np.isnan(column).all()}
        series: dict[str, Series] = {}
        replaced: dict[str, Series] = {}
        for name, (rows, values) in self._series.items():
            chosen = np.array(rows, dtype=np.intp)
            at = {unit: column[chosen] for unit, column in times.items()}
            whole = Series(name, step[chosen], np.array(values), **at)
            kept = self._kept(chosen, whole)
            series[name] = whole[kept] if not kept.all() else whole
            if not kept.all():
                replaced[name] = whole[~kept]
        return History(
            self.name,
            series,
            replaced,
            dict(self.hyperparameters),
            list(self.events),
            dict(self.tables),
            {name: replace(one, axes=self.axes.get(name, one.axes)) for name, one in self._arrays.items()},
            dict(self._texts),
            self.environment,
            self.model,
            remarks=list(self.remarks),
            latest={
                unit: float(column[~np.isnan(column)][-1])
                for unit, column in {"step": step.astype(np.float64), **times}.items()
                if len(column)
            },
        )

    def _columns(self) -> np.ndarray:
        """Return the times of all rows, (rows, units)."""
        return np.array(self._times).reshape(-1, len(TIMES))

    def _kept(self, rows: np.ndarray, series: Series) -> np.ndarray:
        """Return the mask of the values that were not logged again after a resumption."""
        if not self._resumptions or series.seconds is None:
            return np.ones(len(rows), dtype=bool)
        starts, times = np.array(self._resumptions).T
        number = len(starts)
        # Of each resumption and all later ones: the least time, and the first that has it.
        least = np.minimum.accumulate(times[::-1])[::-1]
        first = np.minimum.accumulate(np.where(times == least, np.arange(number), number)[::-1])[::-1]
        following = np.searchsorted(starts, rows, side="right")
        least, starts = np.append(least, np.inf)[following], np.append(starts, np.inf)[np.append(first, number)]
        steps, places = np.unique(series.step, return_inverse=True)
        newest = np.zeros(len(steps), dtype=np.intp)
        np.maximum.at(newest, places, rows)
        is_again = newest[places] >= starts[following]
        return ~((series.seconds > least) | ((series.seconds == least) & is_again))

    def _keep(self, name: str, value: Any, step: int) -> None:
        """Keep a value that is no number: an array of numbers, or text."""
        if value is None:
            return
        if isinstance(value, str):
            self._texts[name] = value
            return
        try:
            numbers = np.array(value.tolist() if hasattr(value, "tolist") else value, dtype=np.float64)
        except (OverflowError, TypeError, ValueError):
            self._texts[name] = str(value)
        else:
            self._arrays[name] = LoggedArray(numbers, step)


def _share(lengths: list[int], limit: int) -> int:
    """Return the largest length such that series cut to it have at most ``limit`` values."""
    shorter = 0
    for number, length in enumerate(sorted(lengths)):
        share = (limit - shorter) // (len(lengths) - number)
        if length > share:
            return share
        shorter += length
    return max(lengths, default=0)


def _number(value: Any) -> float | None:
    """Return a logged value as a number; None if it is none."""
    # Logs write a tensor of one element as a list, unless it has no dimensions.
    while type(value) in (list, tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        return _SPECIAL.get(value)
    try:
        # A tensor or array of one element is a number, whatever its shape.
        return float(value.item() if hasattr(value, "item") else value)
    except (OverflowError, RuntimeError, TypeError, ValueError):
        return None
