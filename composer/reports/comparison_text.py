"""The tables of a comparison on the terminal, with rich, and the words that its page shares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from composer._secrets.masking import mask_text
from composer._text import plural, printable
from composer.reports.differences import PERMUTATION, Difference, Row
from composer.reports.run_groups import RunGroup, seed_of

if TYPE_CHECKING:
    from composer.reports.comparison import RunComparison

__all__ = ["comparison_text", "difference_cells", "group_text", "mean_text", "pareto_text", "verdicts"]

# Settings in a table of the terminal; the page and JSON have all.
_MOST_SETTINGS = 40


def comparison_text(comparison: RunComparison) -> Iterator[Any]:
    """Yield the parts of a comparison for a console of rich.

    Args:
        comparison: The comparison.

    >>> import numpy as np
    >>> from composer.history import History, Series
    >>> from composer.reports import compare_runs
    >>> losses = [Series("loss", np.array([0, 1]), np.array([0.9, last])) for last in (0.5, 0.4)]
    >>> found = compare_runs(*(History(name, {"loss": loss}) for name, loss in zip("ab", losses)))
    >>> [str(part) for part in comparison_text(found)][0]
    'b against a: loss, last -0.1'
    """
    names = comparison.names
    yield _shown("\n".join(verdicts(comparison)))
    yield _table("Runs", ["group", "runs"], [[group.name, group_text(group)] for group in comparison.groups])
    rows = [[_measure(one), *map(mean_text, one.values)] for one in comparison.rows]
    yield _table("Results", ["measure", *names], rows)
    rows = [
        [_measure(one), name, *difference_cells(one, difference)]
        for one in comparison.rows
        for name, difference in zip(names[1:], one.differences, strict=True)
    ]
    if rows:
        yield _table(
            f"Differences from {names[0]}", ["measure", "group", "difference", "relative", "p", "", "note"], rows
        )
    for title, differing in (
        ("Settings that differ", comparison.settings),
        ("Versions and hardware", comparison.facts),
    ):
        rows = [[name, *values] for name, values in differing.items()]
        if rows:
            yield _table(title, ["name", *names], rows[:_MOST_SETTINGS])
        if len(rows) > _MOST_SETTINGS:
            yield _shown(f"{len(rows) - _MOST_SETTINGS} more are not shown; --json and the page have all.")
    if comparison.front is not None:
        yield _shown("\n".join(pareto_text(comparison)))
    yield _shown("\n".join(f"Note: {remark}." for remark in comparison.remarks))


def verdicts(comparison: RunComparison) -> list[str]:
    """Return a line for each group but the first: whether it is better by the metric and the time to the target.

    Args:
        comparison: The comparison.

    >>> import numpy as np
    >>> from composer.history import History, Series
    >>> from composer.reports import compare_runs
    >>> losses = [Series("loss", np.array([0, 1]), np.array([0.9, last])) for last in (0.5, 0.4)]
    >>> found = compare_runs(*(History(name, {"loss": loss}) for name, loss in zip("ab", losses)))
    >>> verdicts(found)
    ['b against a: loss, last -0.1']
    """
    names = comparison.names
    if len(names) == 1:
        return [f"{names[0]}: {plural(len(comparison.groups[0]), 'run')}"]
    last, *others = comparison.rows
    rows = [last, *(one for one in others if one.unit == "s" and one.name.startswith("time to "))]
    lines: list[str] = []
    for index, name in enumerate(names[1:]):
        parts: list[str] = []
        for one in rows:
            difference = one.differences[index]
            cells = difference_cells(one, difference)
            shown = f"{cells[0]} {one.unit}".strip() if cells[0] else cells[1]
            known = " ".join(cell for cell in (shown, cells[3]) if cell)
            parts.append(f"{one.name} {known or f'unknown ({difference.note})'}")
        lines.append(f"{name} against {names[0]}: {'; '.join(parts)}")
    return lines


def group_text(group: RunGroup) -> str:
    """Return the number of runs of a group, their seeds, and how they were grouped.

    Args:
        group: The group.

    >>> import numpy as np
    >>> from composer.history import History
    >>> group_text(RunGroup("a", (History("a", hyperparameters={"seed": 3}),)))
    '1 run, seed 3'
    """
    seeds = [str(seed) for seed in map(seed_of, group.runs) if seed is not None]
    told = [plural(len(group), "run")]
    told += [f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(seeds)}"] if seeds else []
    if len(group) > 1:
        told.append("grouped as named" if group.is_given else "grouped since only seed and name differ")
    return ", ".join(told)


def mean_text(values: Sequence[float | None]) -> str:
    """Return the mean of a group with its range, or how many of its runs have a finite value.

    Args:
        values: The value of each run.

    >>> mean_text([0.5, 0.7]), mean_text([0.5]), mean_text([0.5, None]), mean_text([float("-inf")])
    ('0.6 (0.5 to 0.7)', '0.5', '0.5 (1 of 2 runs)', '-inf')
    """
    given = [value for value in values if value is not None]
    known = [value for value in given if math.isfinite(value)]
    if not known:
        return str(sum(given)) if given else "none"
    mean = _number(math.fsum(known) / len(known))
    if len(known) < len(values):
        return f"{mean} ({len(known)} of {len(values)} runs)"
    return mean if min(known) == max(known) else f"{mean} ({_number(min(known))} to {_number(max(known))})"


def difference_cells(row: Row, difference: Difference) -> tuple[str, str, str, str, str]:
    """Return a difference as text: absolute and relative with intervals, p-value, better or worse, and the note.

    The p-value is the one that decides; the note names its test if it is no permutation test.

    Args:
        row: Its row.
        difference: The difference.

    >>> from composer.reports.differences import row
    >>> one = row("accuracy", "", True, [[0.5], [0.75]])
    >>> difference_cells(one, one.differences[0])
    ('+0.25', '+50.0%', '', '', 'no interval: that takes 2 runs on each side')
    """
    estimate, ratio = difference.estimate, difference.ratio
    absolute = relative = ""
    if estimate is not None:
        absolute = f"{estimate.value:+.4g}"
        absolute += f" [{estimate.low:+.4g}, {estimate.high:+.4g}]" if estimate.has_interval else ""
    if ratio is not None:
        relative = f"{ratio.gain:+.3g}" if abs(ratio.gain) >= 10 else f"{ratio.gain:+.1%}"
        known = ratio.low > 0 and math.isfinite(ratio.high)
        relative += f" [{ratio.low - 1:+.1%}, {ratio.high - 1:+.1%}]" if known else ""
    p_value = "" if difference.verdict_p_value is None else f"{difference.verdict_p_value:.2g}"
    better = row.better(difference)
    if better is not None:
        word = "better" if better else "worse"
    else:
        word = (
            "undecided"
            if difference.has_interval and row.larger_is_better is not None and difference.verdict_p_value != 1
            else ""
        )
    notes = [difference.note, "" if difference.verdict_test in ("", PERMUTATION) else f"p of {difference.verdict_test}"]
    return absolute, relative, p_value, word, "; ".join(filter(None, notes))


def pareto_text(comparison: RunComparison) -> list[str]:
    """Return the lines about the Pareto front of time of training and last value of the metric.

    Args:
        comparison: The comparison.

    >>> import numpy as np
    >>> from composer.history import History, Series
    >>> from composer.reports import compare_runs
    >>> times = {"seconds": np.array([1.0, 2.0])}
    >>> losses = [Series("loss", np.array([0, 1]), np.array([0.9, last]), **times) for last in (0.5, 0.4)]
    >>> found = compare_runs(*(History(name, {"loss": loss}) for name, loss in zip("ab", losses)))
    >>> pareto_text(found)[0]
    'Not dominated in time of training and last value, fastest first: b'
    """
    front = comparison.front or []
    dominating = list(dict.fromkeys(comparison.dominated.values()))
    lines = [f"Not dominated in time of training and last value, fastest first: {', '.join(front)}"]
    lines += [f"Dominating others: {', '.join(dominating)}"] if dominating else []
    lines += [
        f"{name} is dominated by {other}, which is at least as fast and as good"
        for name, other in comparison.dominated.items()
    ]
    return lines


def _number(value: float) -> str:
    """Return a number with five digits; a count has all."""
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.5g}"


def _measure(row: Row) -> str:
    return f"{row.name} ({row.unit})" if row.unit else row.name


def _shown(text: str) -> Any:
    """Return a text for the console as it is: no markup of rich, no control characters, and no secrets."""
    from rich.text import Text

    return Text("\n".join(printable(line) for line in mask_text(text).split("\n")))


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    from rich.box import SIMPLE
    from rich.table import Table

    # A line break in a name must not look like a line of its own.
    table = Table(title=_shown(title.replace("\n", " ")), title_justify="left", box=SIMPLE)
    for name in columns:
        table.add_column(_shown(name.replace("\n", " ")), overflow="fold")
    for row in rows:
        table.add_row(*(_shown(cell.replace("\n", " ")) for cell in row))
    return table
