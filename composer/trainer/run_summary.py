"""The summary table printed at the end of training: duration, throughput, last and best metrics, saved files."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import torch

from composer._secrets.masking import mask_text
from composer._text import printable
from composer.core.metric_direction import larger_is_better
from composer.core.time import TimeUnit
from composer.loggers._format import clock, format_log_data_value
from composer.loggers._layout import cell_len, shorten, terminal_width, wrap_fields
from composer.trainer.run import Run

if TYPE_CHECKING:
    from torchmetrics import Metric

    from composer.core.timestamp import Timestamp
    from composer.ledger.ledger import Ledger

__all__ = ["Summary"]


@dataclass
class Summary:
    """Collects the results of a fit for the summary table.

    Attributes:
        timestamp: Timestamp at the start of the fit.
        started: Clock time at the start, in seconds.
        evaluations: Values of evaluation metrics by name, each with the number of batches trained.

    >>> from composer.core.timestamp import Timestamp
    >>> Summary(Timestamp()).evaluations
    {}
    """

    timestamp: Timestamp
    started: float = field(default_factory=time.perf_counter)
    evaluations: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)

    def record(self, batch: int, values: dict[str, Any]) -> None:
        """Record the values of an evaluation, on their device.

        Args:
            batch: Number of batches trained.
            values: Values by name.
        """
        for name, value in values.items():
            if _is_one_number(value):
                self.evaluations.setdefault(name, []).append((batch, value))

    def write(self, run: Run, stream: TextIO) -> None:
        """Write the table to a terminal or file.

        Args:
            run: The run.
            stream: The output stream.
        """
        stream.write(self.text(run, terminal_width(stream)) + "\n")

    def text(self, run: Run, width: int | None = None) -> str:
        """Return the table; its values are read from the device.

        Args:
            run: The run.
            width: Number of columns of the terminal, for which names are shortened; None for no limit.
        """
        work = wrap_fields(self._work(run), width, indent="  ", gap=" ")
        spent = [] if run.ledger is None else [wrap_fields(_spent(run.ledger.ledger()), width, indent="    ", gap=" ")]
        lines = [work, *spent, *(f"  {text}" for text in run.logger.notices.texts)]
        rows = [(printable(name), last, best) for name, last, best in self._values(run)]
        callbacks = run.state.callbacks
        files = [(type(one).__name__, getattr(one, "__location__", None)) for one in callbacks]
        files = [(name, mask_text(path)) for name, path in files if path]
        return "\n".join([*lines, *_table(rows, files, width)])

    def _work(self, run: Run) -> list[str]:
        """Return the amounts trained, the time and the throughput."""
        now, seconds = run.state.timestamp, time.perf_counter() - self.started
        done = {unit: now.count(unit) - self.timestamp.count(unit) for unit in _NOUNS}
        counted = [(amount, names) for unit, names in _NOUNS.items() if (amount := done[unit])]
        amounts = [f"{amount:,} {names[amount != 1]}" for amount, names in counted] or ["nothing"]
        tokens, samples = done[TimeUnit.TOKEN], done[TimeUnit.SAMPLE]
        rate, noun = (tokens, "tokens") if tokens else (samples, "samples")
        amounts[-1] += f" in {_duration(seconds)}"
        amounts[0] = f"trained {amounts[0]}"
        return [*(f"{amount}," for amount in amounts), f"{rate / max(seconds, 1e-9):,.0f} {noun}/s"]

    def _values(self, run: Run) -> list[tuple[str, str, str]]:
        """Return rows of name, last value and best value of the losses and metrics."""
        state = run.state
        rows: list[tuple[str, str, str]] = []
        for name, loss in state.total_loss_dict.items():
            rows.append((name.removesuffix("/total"), _shown(loss), ""))
        for name, value in state.train_values.items():
            if _is_one_number(value):
                rows.append((f"{state.train_phase.label}/{name}", _shown(value), ""))
        evaluated = [name.removeprefix("metrics/") for name in self.evaluations]
        for label, metrics in state.eval_metrics.items():
            for name in metrics:
                short, known = f"{label}/{name}", state.eval_values.get(label, {})
                if any(f"{one}/".startswith(f"{short}/") for one in evaluated) or not state.evaluators:
                    continue
                if name not in known:
                    rows.append((short, "not evaluated", ""))
                elif _is_one_number(known[name]):  # evaluated before this run was resumed
                    rows.append((short, _shown(known[name]), ""))
        for name, values in self.evaluations.items():
            short = name.removeprefix("metrics/")
            rows.append((short, _shown(values[-1][1]), _best(short, values, _find(run, short))))
        return rows


# Minimum width of the names, without and with a limit on the total width.
_WIDTH, _LEAST_WIDTH = 28, 12
_NOUNS = {
    TimeUnit.EPOCH: ("epoch", "epochs"),
    TimeUnit.BATCH: ("batch", "batches"),
    TimeUnit.SAMPLE: ("sample", "samples"),
    TimeUnit.TOKEN: ("token", "tokens"),
}


def _spent(ledger: Ledger) -> list[str]:
    """Return the goodput, and where the wall time went: categories of at least half a percent, the largest first."""
    number = len(ledger.segments)
    over = f" over {number} starts" if number > 1 else ""
    shown = [f"{100 * share:.0f} % {category.label}" for category, share in ledger.shares.items() if share >= 0.005]
    head = f"  wall time {_duration(ledger.total)}{over}, {ledger.of_all_ranks()}:"
    return [head, *(f"{text}," for text in shown[:-1]), *shown[-1:]]


def _table(rows: list[tuple[str, str, str]], files: list[tuple[str, str]], width: int | None) -> list[str]:
    """Format values, and files below them, in aligned columns, each row on one line if possible."""
    if not rows and not files:
        return []
    names = max(_WIDTH, *(cell_len(name) for name, *_ in [*rows, *files]))
    last = max((len(value) for _, value, _ in rows), default=4)
    best = max((len(value) for *_, value in rows), default=0)
    if width is not None:
        names = min(names, width - 2 - 2 - last - (2 + best if best else 0))
        if names < _LEAST_WIDTH:  # drop the batch of the best value first
            rows = [(name, value, top.partition(" ")[0]) for name, value, top in rows]
            best = max((len(value) for *_, value in rows), default=0)
            names = max(width - 2 - 2 - last - (2 + best if best else 0), _LEAST_WIDTH // 2)
    lines = [f"  {_cell('', names)}  {'last':>{last}}{'  best' if best else ''}"] if rows else []
    lines += [f"  {_cell(name, names)}  {value:>{last}}{top and f'  {top}'}" for name, value, top in rows]
    return [*lines, *(f"  {_cell(name, names)}  {path}" for name, path in files)]


def _cell(name: str, width: int) -> str:
    """Pad or shorten a name to a number of terminal columns; wide characters take two."""
    name = shorten(name, width)
    return name + " " * (width - cell_len(name))


def _find(run: Run, name: str) -> Metric | None:
    """Return the metric of a name in the log: ``<label>/<metric>``, with a suffix if it computes multiple values."""
    for label, metrics in run.state.eval_metrics.items():
        for metric in metrics:
            if f"{name}/".startswith(f"{label}/{metric}/"):
                return metrics[metric]
    return None


def _best(name: str, values: Sequence[tuple[int, Any]], metric: Metric | None) -> str:
    """Return the best value and its batch; empty if it is unknown whether higher is better, or all values are NaN."""
    larger = larger_is_better(name, metric)
    numbers = [(batch, float(value)) for batch, value in values]
    numbers = [entry for entry in numbers if not math.isnan(entry[1])]
    if larger is None or len(values) < 2 or not numbers:
        return ""
    batch, value = (max if larger else min)(numbers, key=lambda entry: entry[1])
    return f"{_shown(value)} at batch {batch:,}"


def _is_one_number(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, torch.Tensor) else isinstance(value, (int, float))


def _shown(value: Any) -> str:
    return format_log_data_value(float(value))


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{clock(seconds)} {'h' if round(seconds) >= 3600 else 'min'}"
