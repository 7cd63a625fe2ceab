"""The page of one run: what came out, curves with events, where the time went, and the facts of the run."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from composer._html import Html, axis_switch, document, section, table, tag
from composer._text import plural, shortened
from composer.core.metric_direction import larger_is_better
from composer.history.history import History
from composer.reports.checkpoints import Checkpoint, checkpoints, load_lines
from composer.reports.curves import curve_figure, event_marks
from composer.reports.formatting import duration, flat, number
from composer.reports.groups import Group, groups
from composer.reports.logged import ReportImage, image_section, matrix_section, table_section
from composer.reports.metric_search import metric_search
from composer.reports.run_clock import RunClock
from composer.reports.time_shares import time_shares

__all__ = ["run_report"]

# A page stays under 6 MB: 2 MB of plotly.js, and up to 38 bytes a point, which has a smooth one and four x axes. Where
# figures cannot show all metrics, half of it is for the search in them.
_MOST_POINTS: Final = 90_000
_BYTES_OF_POINT: Final = 38
_POINTS_OF_ONE: Final = 5_000
_MOST_SERIES: Final = 400
_MOST_FIGURES: Final = 120
# A browser draws some 30 figures a second.
_MOST_MAIN: Final = 30
_MOST_EVENTS: Final = 200
_ENDS: Final = {"end": "Finished", "interruption": "Interrupted", "error": "Failed", "stop": "Stopped early"}


def run_report(
    history: History,
    *,
    time_by_category: Mapping[str, float] | None = None,
    goodput: str = "",
    images: Sequence[ReportImage] = (),
    folder: Path | None = None,
) -> str:
    """Return the page of a run, an HTML document that needs no network.

    Curves have up to 5,000 points each, chosen so that minima and maxima stay, and fewer if there are more than 18.

    Args:
        history: The run.
        time_by_category: Seconds by category, such as "training" and "waiting for data"; None if unknown.
        goodput: The goodput in one line; empty if unknown.
        images: The images that it logged, oldest first.
        folder: Folder of the run, in which to look for checkpoints that the log does not name.

    Raises:
        MissingConditionalImportError: There are curves, and plotly is not installed.

    >>> "<h1>night</h1>" in run_report(History("night"))
    True
    """
    parts = [
        tag("h1", history.name),
        _outcome(history),
        _values(history),
        *_curves(history, _MOST_POINTS - round(4 / 3 * sum(len(one.png) for one in images) / _BYTES_OF_POINT)),
        _time(time_by_category, goodput),
        _events(history),
        _checkpoints(history, folder),
        matrix_section(history.arrays),
        table_section(history.tables),
        image_section(images),
        *_facts(history),
    ]
    return document(history.name, *(part for part in parts if part is not None), command="composer report")


def _outcome(history: History) -> Html:
    """Return how the run ended, and how long it took."""
    ends = [event for event in history.events if event.kind in _ENDS or event.kind == "start"]
    last = ends[-1] if ends else None
    if last is not None and last.kind == "end" and len(ends) > 1 and ends[-2].kind == "stop":
        last = ends[-2]
    word = "Logged" if last is None else _ENDS.get(last.kind, "Not finished:")
    done = [f"{_count(history, 'step'):,} steps"]
    epochs = _count(history, "epoch")
    done += [plural(epochs, "epoch")] if epochs else []
    seconds = history.seconds
    done += [f"{duration(seconds)} of training"] if seconds else []
    resumed = sum(event.kind == "resumption" for event in history.events)
    done += [f"resumed {plural(resumed, 'time')}"] if resumed else []
    lost = max((len(one) for one in history.replaced.values()), default=0)
    told = [tag("p", last.text)] if last is not None and last.kind != "end" and last.text else []
    if lost:
        told.append(
            tag("p", f"{plural(lost, 'logged step')} trained again after resumptions; the later values are shown.")
        )
    told += [tag("p", f"Note: {remark}.") for remark in history.remarks]
    is_good = last is None or last.kind in ("end", "stop")
    return tag(
        "div", tag("p", f"{word} after {', '.join(done)}"), *told, class_="verdict good" if is_good else "verdict"
    )


def _count(history: History, unit: str) -> int:
    """Return the largest time of a value or event."""
    times = [getattr(one, unit) for one in history.series.values()]
    found = [float(np.fmax.reduce(one)) for one in times if one is not None and len(one)]
    found = [one for one in found if one == one]  # NaN if all are
    found += [history.latest[unit]] if unit in history.latest else []
    if unit == "step":
        found += [event.step for event in history.events]
    return int(max(found, default=0))


def _values(history: History) -> Html | None:
    """Return the last and the best value of losses and metrics."""
    rows: list[tuple[object, ...]] = []
    for name, series in history.series.items():
        if not name.startswith(("loss/", "metrics/")) or not len(series):
            continue
        finite = series.finite()
        larger = larger_is_better(name) if len(finite) else None
        best: tuple[object, object] = ("", "")
        if larger is not None and not name.startswith("loss/"):
            at = int(finite.values.argmax() if larger else finite.values.argmin())
            best = (number(float(finite.values[at])), f"{int(finite.step[at]):,}")
        rows.append((name.removeprefix("metrics/"), number(series.last), *best))
    if not rows:
        return None
    return section(
        "Results", table("Last and best values", ["metric", "last", "best", "at step"], rows[:60], right=(1, 2, 3))
    )


def _curves(history: History, room: int) -> Iterator[Html]:
    """Yield the sections of curves, of so many points: the main ones, and others on request."""
    known = {name: one for name, one in history.series.items() if np.isfinite(one.values).any()}
    empty = [name for name, one in history.series.items() if len(one) and name not in known]
    found = _shown(groups(known))
    number = sum(len(group.names) for group in found)
    if not found:
        yield section("Curves", _empty(empty) if empty else tag("p", "No metrics were logged."))
        return
    marks = event_marks(history.events)
    points = min(_POINTS_OF_ONE, (room if number == len(known) else room - _MOST_POINTS // 2) // number)
    first = found[0]
    clock = RunClock(history)
    main = [
        curve_figure(history, group, marks, points, clock, shows_events=group is first)
        for group in found
        if group.is_main
    ]
    others = [curve_figure(history, group, [], points, clock) for group in found if not group.is_main]
    switch = axis_switch(["step", *clock.units])
    if main:
        usage = "Drag to zoom, in all curves at once; double-click to zoom out. Click a name to hide a curve."
        yield section("Curves", tag("p", usage, class_="note"), switch, *main, _empty(empty) if empty else None)
    if others:
        titles = tag(
            "summary", f"{plural(len(others), 'more figure')}: {_listed([g.title for g in found if not g.is_main])}"
        )
        told = _empty(empty) if empty and not main else None
        yield section("Other metrics", None if main else switch, told, tag("details", titles, *others, open=not main))
    if number < len(known):
        yield section("All metrics", metric_search(known))


def _empty(names: Sequence[str]) -> Html:
    """Return a line about metrics of which there is nothing to draw."""
    return tag("p", f"Without a finite value: {_listed(names)}.", class_="note")


def _shown(found: Sequence[Group]) -> list[Group]:
    """Return the figures that a page has room for, the main ones first; of many main ones, the later are folded."""
    shown: list[Group] = []
    number = 0
    for group in sorted(found, key=lambda group: not group.is_main)[:_MOST_FIGURES]:
        number += len(group.names)
        if number > _MOST_SERIES:
            break
        shown.append(group if len(shown) < _MOST_MAIN else replace(group, is_main=False))
    return shown


def _time(seconds: Mapping[str, float] | None, goodput: str) -> Html | None:
    """Return the goodput, and where the time went, as a bar and a table."""
    shares = time_shares(seconds or {}, "Seconds of the run by category", "category")
    if shares is None:
        return None
    return section("Where the time went", *([tag("p", goodput)] if goodput else []), shares)


def _events(history: History) -> Html | None:
    """Return the list of events, the newest of many."""
    shown = history.events[-_MOST_EVENTS:]
    if not shown:
        return None
    rows = [(f"{one.step:,}", _clock(one.time), one.kind, one.text) for one in shown]
    cells = table("Events", ["step", "time (UTC)", "event", ""], rows, right=(0,))
    count = plural(len(history.events), "event")
    told = count if len(shown) == len(history.events) else f"{count}, the last {len(shown)} of them"
    return section("Events", tag("details", tag("summary", told), cells))


def _checkpoints(history: History, folder: Path | None) -> Html | None:
    """Return the best and the newest checkpoint, and how to load one."""
    best, newest = checkpoints(history, folder)
    if newest is None:
        return None
    rows = [_checkpoint(label, one) for label, one in (("best", best), ("newest", newest)) if one is not None]
    chosen = best or newest
    return section(
        "Checkpoints",
        table("Checkpoints", ["", "step", "metric", "path"], rows, right=(1,)),
        tag("p", f"To load the {'best' if best else 'newest'} weights into a model of the same class:"),
        tag("pre", tag("code", load_lines(chosen.path))),
    )


def _checkpoint(label: str, one: Checkpoint) -> tuple[object, ...]:
    metric = "" if one.score is None else f"{one.monitor} {number(one.score)}"
    return label, f"{one.step:,}", metric, tag("code", one.path, class_="place")


def _facts(history: History) -> Iterator[Html]:
    """Yield the sections of the model, the hyperparameters, the environment and the files."""
    model = history.model
    columns, rows = model.get("columns"), model.get("rows")
    if isinstance(columns, list) and isinstance(rows, list) and all(len(row) == len(columns) for row in rows):
        notes = [tag("p", note) for note in model.get("notes") or ()]
        layers = tag(
            "details", tag("summary", plural(len(rows), "layer")), table("Layers", columns, rows, right=(2, 3, 4))
        )
        yield section("Model", *notes, layers)
    if history.hyperparameters:
        settings = [(name, shortened(text, 500)) for name, text in flat(history.hyperparameters)]
        yield section("Hyperparameters", table("Hyperparameters", ["name", "value"], settings[:500]))
    facts = [(name, shortened(text, 500)) for name, text in flat(history.environment)]
    if facts:
        yield section("Environment", table("Environment", ["fact", "value"], facts[:200]))
    if history.files or history.texts:
        files = [("log", str(path)) for path in history.files]
        texts = [(name, text[:500]) for name, text in history.texts.items()]
        yield section("Other", table("Other", ["", ""], [*texts, *files]))


def _listed(titles: Sequence[str]) -> str:
    return ", ".join(titles[:6]) + (", …" if len(titles) > 6 else "")


def _clock(time: float | None) -> str:
    if time is None:
        return ""
    try:
        return datetime.datetime.fromtimestamp(time, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return ""
