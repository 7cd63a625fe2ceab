"""Compare runs, or groups of runs with different seeds: results, differences, settings and the Pareto front."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.core.metric_target import MetricTarget
from composer.history.history import History
from composer.reports.differences import Row, censored_row, row
from composer.reports.measures import best_value, throughput, throughput_unit, time_to_target
from composer.reports.pareto import pareto_front
from composer.reports.remarks import remarks
from composer.reports.run_groups import Run, RunGroup, facts_of, read_groups, seed_of, settings_of
from composer.reports.targets import choose_metric, common_metrics, direction, is_evaluation

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["RunComparison", "compare_runs"]

# Further metrics whose last values are compared.
_MOST_METRICS = 20


@dataclass(frozen=True, eq=False)
class RunComparison:
    """Groups of runs side by side. The first group is the baseline.

    ``str(comparison)`` and rich show it as tables.

    Attributes:
        groups: The groups.
        metric: Full name of the metric by which they are compared.
        larger_is_better: Whether larger values of it are better; None if unknown.
        target: The value that it is to reach; None if none was given.
        rows: The measures, the most important first.
        settings: Names and values by group of the hyperparameters that differ.
        facts: The same of versions, program and hardware.
        front: Names of the groups that no other group dominates in time and quality; None if that cannot be told.
        dominated: For each other group the name of one that is at least as fast and as good, and better in one.
        remarks: What limits the comparison.

    >>> import numpy as np
    >>> from composer.history import Series
    >>> losses = [Series("loss", np.array([0, 1]), np.array([0.9, last])) for last in (0.5, 0.4)]
    >>> found = compare_runs(*(History(name, {"loss": loss}) for name, loss in zip("ab", losses)))
    >>> found.names, found.metric, found.larger_is_better
    (['a', 'b'], 'loss', False)
    """

    groups: Sequence[RunGroup]
    metric: str
    larger_is_better: bool | None
    target: MetricTarget | None
    rows: Sequence[Row]
    settings: Mapping[str, Sequence[str]]
    facts: Mapping[str, Sequence[str]]
    front: Sequence[str] | None
    dominated: Mapping[str, str]
    remarks: Sequence[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The names of the groups."""
        return [group.name for group in self.groups]

    def to_html(self) -> str:
        """Return the comparison as a page that needs no network.

        Raises:
            MissingConditionalImportError: plotly is not installed.
        """
        from composer.reports.comparison_page import comparison_page

        return comparison_page(self)

    def write_html(self, path: str | Path) -> None:
        """Write the comparison as a page; an existing page is replaced.

        Args:
            path: Path of the file.

        Raises:
            FileExistsError: The file is not a page of composer.
            MissingConditionalImportError: plotly is not installed.
        """
        from composer._html import save_document

        save_document(self.to_html(), Path(path))

    def to_json(self) -> dict[str, Any]:
        """Return the comparison in JSON types."""
        return {
            "metric": self.metric,
            "larger_is_better": self.larger_is_better,
            "target": None if self.target is None else dataclasses.asdict(self.target),
            "groups": {
                group.name: {
                    "runs": [run.name for run in group.runs],
                    "seeds": [seed_of(run) for run in group.runs],
                    "files": [str(file) for run in group.runs for file in run.files],
                    "grouped_by": "name" if group.is_given else "settings",
                }
                for group in self.groups
            },
            "measures": [row.to_json(self.names) for row in self.rows],
            "settings": {name: dict(zip(self.names, values, strict=True)) for name, values in self.settings.items()},
            "facts": {name: dict(zip(self.names, values, strict=True)) for name, values in self.facts.items()},
            "pareto_front": None if self.front is None else list(self.front),
            "dominated_by": dict(self.dominated),
            "remarks": list(self.remarks),
        }

    def __str__(self) -> str:
        """The tables of the terminal as text."""
        from rich.console import Console

        stream = io.StringIO()
        Console(file=stream, width=120, highlight=False).print(self)
        return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).rstrip()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the tables."""
        from composer.reports.comparison_text import comparison_text

        yield from comparison_text(self)


def compare_runs(
    *runs: Run,
    groups: Mapping[str, Sequence[Run]] | None = None,
    metric: str | None = None,
    target: str | None = None,
) -> RunComparison:
    """Compare runs, or groups of runs with different seeds, by their logs.

    Runs that differ only in seed and name are one group, as far as their logs tell; see ``groups`` for others. The
    first group is the baseline. A difference of two groups with at least two runs each has a 95 % interval and a
    p-value, see :func:`composer.statistics.mean_difference`; a single run has none, since nothing is known of how far
    another seed would be. Times are those of training, without evaluations.

    Args:
        *runs: Folders of runs, logs of :class:`.JSONLinesLogger` or :class:`.CSVLogger`, or histories.
        groups: Runs by the name of their group; these groups come first.
        metric: The metric by which they are compared, such as "MulticlassAccuracy" or "eval/MulticlassAccuracy"; by
            default that of ``target``, or the first of an evaluation.
        target: A value that it is to reach, such as "MulticlassAccuracy>=0.96"; the time to it is compared.

    Raises:
        FileNotFoundError: A run does not exist, or has no log.
        MissingConditionalImportError: Groups have several runs, and SciPy is not installed.
        TypeError: A run has another type, or a group is a run rather than a list of runs.
        ValueError: There are fewer than two runs, one is given twice, or has no metrics or not this metric; the target
            asks for worse values of its metric; or an argument is not valid.

    >>> print(composer.compare_runs("runs/adamw", "runs/muon", target="eval/loss<=3.3"))  # doctest: +SKIP
    """
    found = read_groups(runs, groups or {})
    every = [run for group in found for run in group.runs]
    goal = None if target is None else MetricTarget.parse(target)
    name = choose_metric(every, metric if metric is not None or goal is None else goal.metric)
    if goal is not None and choose_metric(every, goal.metric) != name:
        raise ValueError(f"metric={metric!r} and target={target!r} name different metrics. Give one of them.")
    larger = direction(name)
    if goal is not None:
        goal.check_direction(larger)
        larger = goal.mode == "max"
    rows = list(_rows(found, every, name, larger, goal))
    front, dominated = pareto_front(found, name, larger)
    return RunComparison(
        found,
        name,
        larger,
        goal,
        rows,
        _differing(found, settings_of),
        _differing(found, facts_of),
        front,
        dominated,
        list(remarks(found, every, name, larger, goal)),
    )


def _rows(
    groups: Sequence[RunGroup], runs: Sequence[History], metric: str, larger: bool | None, target: MetricTarget | None
) -> list[Row]:
    def measured(value: Callable[[History], float | None]) -> list[list[float | None]]:
        return [[value(run) for run in group.runs] for group in groups]

    label = metric.removeprefix("metrics/")
    rows = [row(f"{label}, last", "", larger, measured(lambda run: run.series[metric].last))]
    if larger is not None:
        mode = "max" if larger else "min"
        rows.append(row(f"{label}, best", "", larger, measured(lambda run: best_value(run.series[metric], mode))))
    if target is not None:
        crossings = [[time_to_target(run.series[metric], target) for run in group.runs] for group in groups]
        seeds = [[seed_of(run) for run in group.runs] for group in groups]
        rows.append(censored_row(f"time to {label} {target.condition}", crossings, seeds))
    unit = throughput_unit(list(runs))
    if unit is not None:
        rows.append(row("throughput", f"{unit}s/s", True, measured(lambda run: throughput(run, unit))))
    if all(run.seconds for run in runs):
        rows.append(row("time of training", "s", False, measured(lambda run: run.seconds)))
    rows.append(row("steps", "", None, measured(lambda run: float(run.last_step))))
    others = [name for name in common_metrics(runs) if name != metric and _is_result(name)]
    for name in others[:_MOST_METRICS]:
        better = direction(name)
        values = measured(lambda run, name=name: run.series[name].last)
        rows.append(row(f"{name.removeprefix('metrics/')}, last", "", better, values))
    return rows


def _is_result(name: str) -> bool:
    return is_evaluation(name) or name == "loss/train/total"


def _differing(groups: Sequence[RunGroup], facts: Callable[[History], Mapping[str, str]]) -> dict[str, list[str]]:
    """Return the facts that differ between any two runs: name, and the values of each group."""
    known = [[facts(run) for run in group.runs] for group in groups]
    names = dict.fromkeys(name for some in known for one in some for name in one)
    found: dict[str, list[str]] = {}
    for name in names:
        values = [list(dict.fromkeys(one.get(name, "(not logged)") for one in some)) for some in known]
        if len({value for some in values for value in some}) > 1:
            found[name] = [" | ".join(some) for some in values]
    return found
