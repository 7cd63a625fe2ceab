"""The page of a comparison: verdicts, differences, curves with bands, time against quality, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from composer._html import Html, axis_switch, document, section, table, tag
from composer._html.markup import markup
from composer._text import plural, shortened
from composer.reports.comparison_text import difference_cells, group_text, mean_text, pareto_text, verdicts
from composer.reports.differences import Row
from composer.reports.formatting import duration
from composer.reports.group_curves import common_axes, group_figure, pareto_figure
from composer.reports.groups import groups as figures_of
from composer.reports.pareto import pareto_points
from composer.reports.targets import common_metrics

if TYPE_CHECKING:
    from composer.reports.comparison import RunComparison

__all__ = ["comparison_page"]

# A page stays under 6 MB: 2 MB of plotly.js, and up to 43 bytes a point on four x axes.
_MOST_POINTS = 80_000
_POINTS_OF_ONE = 500
_MOST_FIGURES = 20
_MOST_SETTINGS = 500
# Of more groups or differences, the others are folded away.
_MOST_LINES = 12
_NAME_LENGTH = 28
_WORDS = {"better": "yes", "worse": "no", "undecided": "no"}


def comparison_page(comparison: RunComparison) -> str:
    """Return a comparison as an HTML document that needs no network.

    Args:
        comparison: The comparison.

    Raises:
        MissingConditionalImportError: plotly is not installed.

    >>> import numpy as np
    >>> from composer.history import History, Series
    >>> from composer.reports import compare_runs
    >>> losses = [Series("loss", np.array([0, 1]), np.array([0.9, last])) for last in (0.5, 0.4)]
    >>> found = compare_runs(*(History(name, {"loss": loss}) for name, loss in zip("ab", losses)))
    >>> "<h1>Comparison of a and b</h1>" in comparison_page(found)
    True
    """
    title = " and ".join(shortened(name, 3 * _NAME_LENGTH) for name in comparison.names[:3]) + (
        " and others" if len(comparison.names) > 3 else ""
    )
    parts = [
        tag("h1", f"Comparison of {title}"),
        _verdict(comparison),
        _groups(comparison),
        _results(comparison),
        _differences(comparison),
        _pareto(comparison),
        *_curves(comparison),
        _differing("Settings that differ", comparison.names, comparison.settings),
        _differing("Versions and hardware that differ", comparison.names, comparison.facts),
        _files(comparison),
    ]
    return document(title, *(part for part in parts if part is not None), command="composer compare")


def _verdict(comparison: RunComparison) -> Html:
    title = f"{plural(len(comparison.groups), 'group')} by {comparison.metric.removeprefix('metrics/')}"
    lines = [tag("li", line) for line in verdicts(comparison)]
    more = (
        [_folded(f"{len(lines) - _MOST_LINES} more", tag("ul", *lines[_MOST_LINES:]))]
        if len(lines) > _MOST_LINES
        else []
    )
    notes = [tag("p", f"Note: {remark}.", class_="note") for remark in comparison.remarks]
    return tag("div", tag("p", title), tag("ul", *lines[:_MOST_LINES]), *more, *notes, class_="verdict good")


def _groups(comparison: RunComparison) -> Html:
    rows = [
        (
            group.name,
            group_text(group),
            _span([float(run.last_step) for run in group.runs], lambda steps: f"{steps:,.0f}"),
            _span([run.seconds for run in group.runs], duration),
        )
        for group in comparison.groups
    ]
    return section("Runs", table("Runs", ["group", "runs", "steps", "training"], rows, right=(2, 3)))


def _span(values: Sequence[float | None], shown: Callable[[float], str]) -> str:
    """Return the smallest and the largest of some values."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    ends = [shown(min(known)), shown(max(known))]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _results(comparison: RunComparison) -> Html:
    rows = [(_measure(one), *map(mean_text, one.values)) for one in comparison.rows]
    columns = ["measure", *_heads(comparison.names)]
    told = tag("p", "The mean of each group, and the range of its runs.", class_="note")
    return section("Results", told, table("Results", columns, rows, right=range(1, len(columns))))


def _differences(comparison: RunComparison) -> Html | None:
    names = comparison.names
    if len(names) < 2:
        return None
    rows = [
        (
            _measure(one),
            name,
            absolute,
            relative,
            p_value,
            _word(word),
            tag("span", note, class_="told" if note else None),
        )
        for one in comparison.rows
        for name, difference in zip(names[1:], one.differences, strict=True)
        for absolute, relative, p_value, word, note in [difference_cells(one, difference)]
    ]
    told = (
        f"From {names[0]}, with 95 % intervals over runs. The p-values are of permutation tests, or where groups have "
        f"too few runs for these of the test that the note names, adjusted for the number of groups but not for the "
        f"number of measures."
    )
    columns = ["measure", "group", "difference", "relative", "p", "", "note"]
    # Those of the metric come first.
    first = len(rows) if len(rows) <= 5 * _MOST_LINES else len(names) - 1
    shown, others = (table("Differences", columns, some, right=(2, 3, 4)) for some in (rows[:first], rows[first:]))
    more = [_folded(f"{len(rows) - first} differences of other measures", others)] if len(rows) > first else []
    return section("Differences", tag("p", told, class_="note"), shown, *more)


def _folded(title: str, content: Html) -> Html:
    return tag("details", tag("summary", title), content)


def _heads(names: Sequence[str]) -> list[Html]:
    """Return names for the head of a table, which are not broken into lines."""
    return [tag("span", shortened(name, _NAME_LENGTH), title=name) for name in names]


def _word(word: str) -> Html:
    return tag("span", word, class_=_WORDS.get(word))


def _measure(row: Row) -> str:
    return f"{row.name} ({row.unit})" if row.unit else row.name


def _pareto(comparison: RunComparison) -> Html | None:
    if comparison.front is None:
        return None
    points = pareto_points(comparison.groups, comparison.metric)
    lines = [tag("p", f"{line}.") for line in pareto_text(comparison)]
    figure = pareto_figure(comparison.names, points, comparison.front, comparison.metric)
    more = (
        [_folded(f"{len(lines) - _MOST_LINES} more", markup(*lines[_MOST_LINES:]))] if len(lines) > _MOST_LINES else []
    )
    return section("Time against quality", figure, *lines[:_MOST_LINES], *more)


def _curves(comparison: RunComparison) -> Iterator[Html]:
    """Yield the sections of curves: the metric over steps and time, and others on request."""
    groups, metric = comparison.groups, comparison.metric
    runs = [run for group in groups for run in group.runs]
    found = figures_of(common_metrics(runs))
    others = [name for is_main in (True, False) for one in found if one.is_main is is_main for name in one.names]
    others.remove(metric)
    shown = others[:_MOST_FIGURES]
    # Each group has up to five lines of its own.
    points = _MOST_POINTS // ((len(shown) + 2) * (len(runs) + 5 * len(groups)))
    points = max(10, min(points, _POINTS_OF_ONE))
    label = metric.removeprefix("metrics/")
    axes = common_axes(groups, metric)
    first = [
        group_figure(groups, metric, "step", label if len(axes) > 1 else f"{label} over steps", points, 420),
        group_figure(groups, metric, "seconds", f"{label} over time of training, without evaluations", points, 420),
    ]
    usage = (
        "Lines are means and bands the range of the runs, where all runs of the group have values, or each run if "
        "these are never at the same time; the 95 % interval is that of the mean, at each point. Drag to zoom, "
        "double-click to zoom out; click a name to hide a group."
    )
    timeless = [group.name for group in groups if all(run.series[metric].seconds is None for run in group.runs)]
    told = f"Not drawn over time, as their logs have no times: {', '.join(timeless)}." if timeless else ""
    note = tag("p", told, class_="note") if told and first[1] is not None else None
    yield section("Curves", tag("p", usage, class_="note"), axis_switch(axes), *first, note)
    figures = [group_figure(groups, name, "step", name.removeprefix("metrics/"), points) for name in shown]
    if figures:
        more = [tag("p", f"{len(others) - len(shown)} more are not shown.")] if len(others) > len(shown) else []
        titles = tag("summary", f"{plural(len(shown), 'metric')}: {', '.join(shown[:6])}")
        content = [one for one in figures if one is not None]
        yield section("Other metrics", tag("details", titles, *content, *more))


def _differing(title: str, names: Sequence[str], differing: Mapping[str, Sequence[str]]) -> Html | None:
    if not differing:
        return None
    rows = [(name, *map(_clipped, values)) for name, values in list(differing.items())[:_MOST_SETTINGS]]
    more = len(differing) - len(rows)
    note = [tag("p", f"{more:,} more are not shown; --json has all.", class_="note")] if more else []
    return section(title, table(title, ["name", *_heads(names)], rows), *note)


def _clipped(text: str) -> str:
    return text if len(text) <= 500 else f"{text[:499]}…"


def _files(comparison: RunComparison) -> Html | None:
    rows = [
        (group.name, run.name, str(file)) for group in comparison.groups for run in group.runs for file in run.files
    ]
    if not rows:
        return None
    return section(
        "Files",
        tag("details", tag("summary", plural(len(rows), "file")), table("Files", ["group", "run", "log"], rows)),
    )
