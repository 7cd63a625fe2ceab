"""History: what one run logged: metrics over time, hyperparameters, tables, arrays and events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from composer._lazy import import_extra
from composer._text import did_you_mean, one_of, plural
from composer.core.array_axes import ArrayAxes
from composer.core.run_event import RunEvent
from composer.history.series import TIMES, UNITS, Series

if TYPE_CHECKING:
    import pandas

__all__ = ["NOTHING_LOGGED", "History", "LoggedArray", "LoggedTable"]

NOTHING_LOGGED: Final = (
    "Logged: nothing. A trainer keeps what it logs only with a logger or a progress bar: pass loggers=InMemoryLogger() "
    "before training."
)


@dataclass(frozen=True)
class LoggedTable:
    """The newest table of a name.

    Attributes:
        columns: The column names.
        rows: One list for each row.
        step: Number of batches trained before.

    >>> LoggedTable(["text"], [["once"]]).step
    0
    """

    columns: list[str]
    rows: list[list[Any]]
    step: int = 0


@dataclass(frozen=True, eq=False)
class LoggedArray:
    """The newest value of a metric that is an array rather than a number, such as a confusion matrix.

    Attributes:
        values: The values, float64.
        step: Number of batches trained before.
        axes: What its rows and columns stand for.

    >>> LoggedArray(np.eye(2), step=10).values.shape
    (2, 2)
    """

    values: np.ndarray
    step: int
    axes: ArrayAxes = field(default_factory=ArrayAxes)


@dataclass(eq=False)
class History(Mapping[str, Series]):
    """What one run logged, from its start and over all resumptions: a mapping of the names of its metrics to series.

    A resumed run trains again what it had trained after the checkpoint. The values that count are those logged later;
    the others are in ``replaced``.

    Two histories are equal only if they are the same object, and one without metrics is true.

    Attributes:
        name: Name of the run.
        series: The metrics by name, in the order of their first values. A boolean counts as 0 or 1. The counters
            ``time/*`` of the trainer are left out: they are the times of each value.
        replaced: Values that were logged again after a resumption, by name.
        hyperparameters: The hyperparameters by name.
        events: The events, oldest first.
        tables: The newest table of each name.
        arrays: The newest value of each metric that is an array.
        texts: The newest value of each metric that is text.
        environment: Versions and hardware, as from :func:`composer.environment.collect_env`; empty if unknown.
        model: The table of the model's layers, as from :meth:`.ModelSummary.table`; empty if unknown.
        files: The files that were read.
        remarks: What a reader should know about the files, such as an incomplete last line.
        latest: The times of the newest records by unit ("step", "epoch", "sample", "token", "seconds"), as far as they
            are known. They may be later than those of all values, as the last epoch may end without logging any.

    >>> History("night", {"loss": Series("loss", np.array([0, 1]), np.array([0.9, 0.5]))})
    History('night', 1 metric, 2 values, steps 0 to 1)
    >>> {name: series.last for name, series in _.items()}
    {'loss': 0.5}
    """

    name: str
    series: dict[str, Series] = field(default_factory=dict)
    replaced: dict[str, Series] = field(default_factory=dict)
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    events: list[RunEvent] = field(default_factory=list)
    tables: dict[str, LoggedTable] = field(default_factory=dict)
    arrays: dict[str, LoggedArray] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    remarks: list[str] = field(default_factory=list)
    latest: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> History:
        """Read the history of a run from its folder, or from one of its logs.

        The logs are those of :class:`.JSONLinesLogger` and :class:`.CSVLogger`; of both, the former is read, which has
        more. Hyperparameters and tables of a CSV log are those of the text file of a :class:`.FileLogger` beside it.
        Copies that were kept when the run resumed (``log.1.jsonl``) provide the replaced values. Links that lead out of
        the folder are not followed.

        Args:
            path: The folder, or the file.

        Raises:
            FileNotFoundError: The path does not exist, or the folder has no log.
            ValueError: The folder has logs of several runs, a file is not a log, or the path is a remote URI.

        >>> History.read("no_such_run")
        Traceback (most recent call last):
        ...
        FileNotFoundError: There is no run 'no_such_run'.
        """
        from composer.history._read import local_run, read_history

        return read_history(local_run(path))

    def until(self, seconds: float) -> History:
        """Return the history with the values up to a time, and all events.

        Args:
            seconds: Time trained in seconds. Values of unknown time stay.
        """
        series = {
            name: one if one.seconds is None else one[~(one.seconds > seconds)] for name, one in self.series.items()
        }
        return replace(self, series={name: one for name, one in series.items() if len(one)}, latest={})

    def followed_by(self, later: History) -> History:
        """Return the history of a run that was resumed: this one, continued by a later one.

        A metric that both have at the same step is that of the later one.

        Args:
            later: What was logged after the resumption.
        """
        series = dict(self.series)
        for name, one in later.series.items():
            before = self.series.get(name)
            if before is not None:
                before = before[~np.isin(before.step, one.step)]
            series[name] = one if before is None else before.followed_by(one)
        lists = {
            part: getattr(self, part) | getattr(later, part)
            for part in ("hyperparameters", "tables", "arrays", "texts")
        }
        times = {(event.kind, event.time) for event in later.events}
        events = [event for event in self.events if (event.kind, event.time) not in times] + later.events
        replaced = {**later.replaced, **self.replaced}
        latest = {**self.latest, **later.latest}
        return replace(later, series=series, replaced=replaced, events=events, files=self.files, latest=latest, **lists)

    def __getitem__(self, name: str) -> Series:
        """Return the series of a metric; the prefix "metrics/" may be omitted.

        Args:
            name: Name of the metric.

        Raises:
            KeyError: The metric was not logged, or is an array or text, which are in ``arrays`` and ``texts``.
            TypeError: The name is not a string.
        """
        if not isinstance(name, str):
            raise TypeError(
                f"history[{name!r}]: the metrics of a run are found by name, such as history['loss/train/total']; "
                f"list(history) has the names."
            )
        for known in (name, f"metrics/{name}"):
            if known in self.series:
                return self.series[known]
        for part in ("arrays", "texts"):
            for known in (name, f"metrics/{name}"):
                if known in getattr(self, part):
                    kind = "an array" if part == "arrays" else "text"
                    raise KeyError(
                        f"{name!r} of the run {self.name!r} is {kind}, not a number. Its newest value is "
                        f"history.{part}[{known!r}]."
                    )
        known = f"Logged: {', '.join(map(repr, self.series))}." if self.series else NOTHING_LOGGED
        hint = did_you_mean(name, self.series) or f" {known}"
        raise KeyError(f"The run {self.name!r} has no metric {name!r}.{hint}")

    def __contains__(self, name: object) -> bool:
        """Return whether a metric was logged; the prefix "metrics/" may be omitted.

        Args:
            name: Name of the metric.
        """
        return name in self.series or f"metrics/{name}" in self.series

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the metrics, in the order of their first values."""
        return iter(self.series)

    def __len__(self) -> int:
        """Return the number of metrics."""
        return len(self.series)

    def __bool__(self) -> bool:
        """Return True, also before anything was logged."""
        return True

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same object; arrays are not compared."""
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        count = sum(map(len, self.series.values()))
        steps = f", steps {self.first_step} to {self.last_step}" if count else ""
        return f"History({self.name!r}, {plural(len(self.series), 'metric')}, {plural(count, 'value')}{steps})"

    @property
    def first_step(self) -> int:
        """The smallest step of a value; 0 without values."""
        return min((int(one.step.min()) for one in self.series.values() if len(one)), default=0)

    @property
    def last_step(self) -> int:
        """The largest step of a value; 0 without values."""
        return max((int(one.step.max()) for one in self.series.values() if len(one)), default=0)

    @property
    def seconds(self) -> float | None:
        """The time trained until the last value, in seconds, without evaluations; None if unknown."""
        clocks = [one.seconds for one in self.series.values() if one.seconds is not None and len(one)]
        latest = [float(np.fmax.reduce(one)) for one in clocks]  # NaN only if all are
        return max((one for one in latest if one == one), default=None)

    def plot(self, *names: str, over: str = "step", ax: Any = None) -> Any:
        """Plot curves of what was logged with matplotlib: a panel for the losses, each metric and the learning rates.

        Curves of the same metric on different data share a panel. Curves of more than 4000 values are downsampled so
        that minima and maxima stay. Resumptions are vertical dotted lines.

        Args:
            names: Names of metrics, or patterns with ``*`` and ``?``, such as ``"l2_norm/*"``; the prefix "metrics/"
                may be omitted. A metric that is a matrix is drawn as a heat map. Default: losses, metrics and learning
                rates, up to 24 panels.
            over: The horizontal axis: "step" (batches), "epoch", "sample", "token" or "seconds".
            ax: The axes to draw on, for one panel. Default: those of a new figure.

        Returns:
            The :class:`matplotlib.figure.Figure`; the last expression of a notebook cell shows it.

        Raises:
            MissingConditionalImportError: matplotlib is not installed.
            ValueError: Nothing was logged under a name, ``ax`` is given for several panels, or ``over`` was not logged.

        >>> loss = Series("loss/train/total", np.array([0, 1]), np.array([0.9, 0.5]))
        >>> figure = History("night", {loss.name: loss}).plot()
        >>> figure.axes[0].get_title()
        'loss'
        """
        from composer.history._plot import draw_history

        return draw_history(self, names, one_of("over", over, UNITS), ax)

    def to_dataframe(self) -> pandas.DataFrame:
        """Return the metrics as a table of pandas: a row for each step, a column for each metric and unit of time.

        A step has several rows if a metric was logged more than once in it, or an epoch ended. Cells without a value
        are NaN.

        Raises:
            MissingConditionalImportError: pandas is not installed.

        >>> loss = Series("loss", np.array([0, 1]), np.array([0.9, 0.5]))
        >>> History("night", {"loss": loss}).to_dataframe()
           step  loss
        0     0   0.9
        1     1   0.5
        """
        pd: Any = import_extra("pandas", "", "History.to_dataframe", install="pandas")
        parts = [_keyed(pd, one) for one in self.series.values()]
        if not parts:
            return pd.DataFrame({"step": np.array([], dtype=np.int64)})
        names = _columns(self.series)
        values = pd.concat([part["value"].rename(name) for name, part in zip(names, parts, strict=True)], axis=1)
        times = pd.concat([part.drop(columns="value") for part in parts])
        times = times.groupby(level=[0, 1, 2]).first().dropna(axis=1, how="all")
        # Without the numbers of the rows of a step, which a metric may be named like.
        return times.join(values.sort_index()).reset_index(level=[1, 2], drop=True).reset_index()


def _columns(names: Iterable[str]) -> list[str]:
    """Return a name for the column of each metric; one may have that of a unit of time, or of such a column."""
    columns: list[str] = []
    taken: set[str] = set(UNITS)
    for name in names:
        column = name
        while column in taken:
            column = f"metrics/{column}"
        taken.add(column)
        columns.append(column)
    return columns


def _keyed(pd: Any, series: Series) -> Any:
    """Return a series as a table whose index is the step, the epoch, and the number of the value within both."""
    times = {unit: array for unit in TIMES if (array := getattr(series, unit)) is not None}
    table = pd.DataFrame({"step": series.step, **times, "value": series.values})
    table["finished"] = -1.0 if series.epoch is None else np.nan_to_num(series.epoch, nan=-1.0)
    table["number"] = table.groupby(["step", "finished"]).cumcount()
    return table.set_index(["step", "finished", "number"])
