"""The figures of the page of an exploration: effects of methods, learning curves to the target, and the race."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from composer._html import ForestRow, ForestStyle, Html, forest, plot, plot_text
from composer._text import plural, shortened
from composer.exploration.attribution import Attribution
from composer.exploration.exploration import Exploration, MethodVerdict
from composer.exploration.goal import Goal
from composer.exploration.halving import HeatResult, RungResult, Standing
from composer.exploration.kept_runs import KeptRun
from composer.exploration.planning import clock
from composer.exploration.trajectory import Trajectory
from composer.exploration.variant import BASELINE, Variant
from composer.reports.curves import switch
from composer.statistics.bootstrap import Estimate
from composer.statistics.holm import Decision

__all__ = ["curves_figure", "effects_figure", "parts_figure", "race_figure", "shown_runs"]

# Bluish green, vermilion and gray, which people tell apart who see no red or no green; the shapes differ as well.
_PAYS, _DOES_NOT, _UNDECIDED = "#2f9e75", "#e0662c", "#8d949c"
_STYLES = {
    "pays": ForestStyle("pays", _PAYS, "circle"),
    "undecided": ForestStyle("undecided", _UNDECIDED, "diamond"),
    "undecided, race": ForestStyle("undecided (race)", _UNDECIDED, "diamond-open", 1.0),
    "does not": ForestStyle("does not pay", _DOES_NOT, "x"),
    "does not, race": ForestStyle("does not pay (race)", _DOES_NOT, "x-thin", 1.0),
}
_COLORS = {"before": "#e67e22", "after": "#3b82f6", "given": "#8d949c", "other": "#8b6fd6"}
_DASHES = {"before": "dash", "after": "solid", "given": "dot", "other": "dashdot"}
_RUNG_STYLES = {
    "kept": ForestStyle("kept", _PAYS, "circle"),
    "dropped": ForestStyle("dropped", _UNDECIDED, "x"),
}
_MOST_ROWS = 20
_NAME_LENGTH = 32
_LABEL_LENGTH = 18
# Gains in the race beyond these tell nothing but that a variant is far behind or ahead.
_MOST_GAIN = math.log(4)


def effects_figure(exploration: Exploration) -> Html | None:
    """Return the forest plot of all methods, in the order of :attr:`.Exploration.ranked`; None without any.

    Args:
        exploration: The exploration.

    >>> from composer.exploration.planning import Plan
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> plan = Plan(goal, (10.0, 11.0), (0.9, 0.9), 12.0, 0.1, 8, 180.0, 192.0, 96.0, 1e9, 5, 20)
    >>> effects_figure(Exploration(plan, BASELINE)) is None
    True
    """
    goal, prospect = exploration.plan.goal, exploration.plan.prospect
    rows = [_verdict_row(one, goal) for one in exploration.ranked]
    if not rows:
        return None
    caption = (
        "Effect of each method with its 95 % interval; thin intervals are those of the race, which are rough; "
        "intervals that meet the edge go on beyond it"
    )
    gain = math.inf if prospect is None else prospect.smallest_gain
    if math.isinf(gain):
        return forest(caption, rows, _STYLES, **_axis(goal))
    caption += "; effects in the gray band are smaller than what the pairs can tell"
    return forest(caption, rows, _STYLES, **_axis(goal), shapes=[_band(gain)])


def parts_figure(attribution: Attribution, goal: Goal) -> Html | None:
    """Return the forest plot of what each part of the winner contributes; None if nothing was measured.

    Args:
        attribution: The attribution.
        goal: The goal.

    >>> parts_figure(Attribution(()), Goal("accuracy", True, target=0.9)) is None
    True
    """
    rows = [
        _row(one.part.name, one.effect.decision, one.effect.effect, goal, f"{plural(one.effect.num_pairs, 'pair')}")
        for one in attribution.contributions
        if one.effect is not None and one.effect.effect is not None
    ]
    caption = "The winner compared with the winner without each part, with 95 % intervals"
    return forest(caption, rows, _STYLES, **_axis(goal)) if rows else None


def shown_runs(exploration: Exploration) -> dict[str, list[KeptRun]]:
    """Return the runs that were compared, by the role of their variant.

    Roles are "before" and "after" a change, "given" for the program as it is, and "other". Without pairs, the A/A runs
    are "given".

    Args:
        exploration: The exploration.

    >>> from composer.exploration.planning import Plan
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> plan = Plan(goal, (10.0, 11.0), (0.9, 0.9), 12.0, 0.1, 8, 180.0, 192.0, 96.0, 1e9, 5, 20)
    >>> shown_runs(Exploration(plan, BASELINE))
    {}
    """
    compared = [one for one in (exploration.result, *exploration.rejected, exploration.overall) if one is not None]
    roles: dict[Variant, str] = {}
    for one in compared:
        for variant, role in ((one.before, "before"), (one.after, "after")):
            role = "other" if role in roles.values() else role
            roles.setdefault(variant, "given" if variant == BASELINE else role)
    found: dict[str, list[KeptRun]] = {}
    for variant, role in roles.items():
        # The attribution may have trained further pairs.
        number = max(one.num_pairs for one in compared if variant in (one.before, one.after))
        found.setdefault(role, []).extend(_runs(exploration, variant, "confirmation")[:number])
    found = {role: runs for role, runs in found.items() if runs} or {"given": _runs(exploration, BASELINE, "noise")}
    return {role: runs for role, runs in found.items() if runs}


def _runs(exploration: Exploration, variant: Variant, stage: str) -> list[KeptRun]:
    return [one for one in exploration.runs if one.variant == variant and one.stage == stage]


def curves_figure(exploration: Exploration) -> Html | None:
    """Return the metric over the time of training, a line for each run of the confirmation; None without runs.

    Without a confirmation, the runs are the A/A runs of the baseline.

    Args:
        exploration: The exploration.

    >>> from composer.exploration.planning import Plan
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> plan = Plan(goal, (10.0, 11.0), (0.9, 0.9), 12.0, 0.1, 8, 180.0, 192.0, 96.0, 1e9, 5, 20)
    >>> curves_figure(Exploration(plan, BASELINE)) is None
    True
    """
    goal = exploration.plan.goal
    traces: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    for role, runs in shown_runs(exploration).items():
        drawn = [one for one in runs if one.evaluations]
        traces += [_curve(run, number, _role_name(role, drawn), role) for number, run in enumerate(drawn)]
        ends += _ends(drawn, role, goal)
    if not traces:
        return None
    label = shortened(goal.metric, 60)
    kind = "CPU seconds" if exploration.counted == "cpu" else "seconds"
    layout: dict[str, Any] = {
        "hovermode": "closest",
        "xaxis": {"title": {"text": f"{kind} of training"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": plot_text(label)}, "automargin": True},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
        "margin": {"l": 65, "r": 10, "t": 72, "b": 50},
        "updatemenus": [
            switch("Log time", "relayout", [{"xaxis.type": "log"}], [{"xaxis.type": "linear"}]),
            switch("Log scale", "relayout", [{"yaxis.type": "log"}], [{"yaxis.type": "linear"}], 90),
        ],
    }
    if goal.target is not None:
        layout["yaxis"]["autorangeoptions"] = {"include": [goal.target]}
        layout["shapes"] = [_target_line(goal)]
    caption = f"{goal.metric} of each run over its time of training, without evaluations and start"
    return plot(caption, [*traces, *ends], layout, 440)


def race_figure(heat: HeatResult, goal: Goal, decisions: Mapping[str, Decision]) -> Html | None:
    """Return how variants stood at each rung of a race; crosses are those that were dropped. A rung has a row for each.

    Args:
        heat: The race.
        goal: The goal.
        decisions: The verdicts, by the name of the variant.

    >>> race_figure(HeatResult("methods", ()), Goal("accuracy", True, target=0.9), {}) is None
    True
    """
    if len(heat.rungs) == 1:
        return _rung_figure(heat.stage, heat.rungs[0], goal)
    points: dict[str, list[tuple[float, float, bool]]] = {}
    for rung in heat.rungs:
        for one in rung.standings:
            if math.isfinite(one.gain):
                is_kept = one.variant in rung.kept
                points.setdefault(one.variant.name, []).append((rung.seconds, _shown_gain(one, goal), is_kept))
    if not points:
        return None
    last = heat.rungs[-1].seconds
    layout = {
        "hovermode": "closest",
        "xaxis": {"title": {"text": "seconds of training"}, "rangemode": "tozero"},
        "yaxis": {
            "title": {"text": "times as fast, as projected" if goal.target is not None else "difference"},
            "automargin": True,
            "nticks": 6,
            **({"type": "log", "tickformat": ".3~g"} if goal.target is not None else {}),
        },
        "showlegend": False,
        "margin": {"l": 65, "r": 20, "t": 35, "b": 50},
    }
    # The best one is labeled at the end of its line; the others would lie on each other.
    best = max(
        (name for name in points if points[name][-1][0] == last), key=lambda name: points[name][-1][1], default=""
    )
    traces = [_race_line(name, found, decisions.get(name), name == best) for name, found in points.items()]
    caption = f"The race ({heat.stage}): how far each variant was ahead when it was compared; a cross: it was dropped"
    return plot(caption, traces, layout, 360)


def _rung_figure(stage: str, rung: RungResult, goal: Goal) -> Html | None:
    """The variants of a rung, a row each: points at one time would lie on each other."""
    rows = [
        ForestRow(one.variant.name, "kept" if one.variant in rung.kept else "dropped", value, value, value, told)
        for one in rung.standings[:_MOST_ROWS]
        if math.isfinite(one.gain)
        for value in [_shown_gain(one, goal)]
        for told in [f"{value:.3g} after {one.seconds:.3g} s"]
    ]
    number = sum(math.isfinite(one.gain) for one in rung.standings)
    what = "each variant" if number == len(rows) else f"the best {len(rows)} of {number} variants"
    caption = f"The race ({stage}): how far {what} was ahead after {clock(rung.seconds)}; a cross: it was dropped"
    return forest(caption, rows, _RUNG_STYLES, **_axis(goal)) if rows else None


def _axis(goal: Goal) -> dict[str, Any]:
    """The axis of effects, and what is no effect."""
    if goal.target is not None:
        axis = {"title": {"text": "times as fast"}, "tickformat": ".3~g"}
        return {"axis": axis, "reference": 1.0, "is_log": True}
    axis = {"title": {"text": plot_text(f"difference of {shortened(goal.metric, 40)}, positive is better")}}
    return {"axis": axis, "reference": 0.0}


def _verdict_row(one: MethodVerdict, goal: Goal) -> ForestRow:
    row = _row(one.variant.name, one.decision, one.effect, goal, one.evidence, is_rough=one.source == "race")
    return row if one.effect is not None else ForestRow(row.label, row.style, None, note=one.reason and _note(one))


def _note(one: MethodVerdict) -> str:
    return f"{'fails: ' if one.source == 'failure' else ''}{shortened(one.reason, 48)}"


def _row(
    name: str, decision: Decision, effect: Estimate | None, goal: Goal, where: str, *, is_rough: bool = False
) -> ForestRow:
    style = f"{decision}, race" if is_rough else str(decision)
    if effect is None or not math.isfinite(effect.value):
        return ForestRow(name, style, None)
    unit = " times as fast" if goal.target is not None else " better"
    told = f"{effect}{unit}: {'does not pay' if decision is Decision.DOES_NOT else decision} ({where})"
    return ForestRow(name, style, effect.value, effect.low, effect.high, told)


def _band(gain: float) -> dict[str, Any]:
    """The effects that the pairs cannot tell from noise."""
    ends = {"x0": 1 / (1 + gain), "x1": 1 + gain, "y0": 0, "y1": 1}
    style = {"fillcolor": _UNDECIDED, "opacity": 0.15, "line": {"width": 0}, "layer": "below"}
    return {"type": "rect", "xref": "x", "yref": "paper", **ends, **style}


def _role_name(role: str, runs: Sequence[KeptRun]) -> str:
    """The name of a role in the legend."""
    names = {
        "given": "the program as it is",
        "before": f"tuned baseline: {shortened(runs[0].variant.name, _NAME_LENGTH)}",
        "after": shortened(runs[0].variant.name, _NAME_LENGTH),
        "other": "others that were compared",
    }
    return f"{names[role]}, {plural(len(runs), 'run')}"


def _curve(run: KeptRun, number: int, name: str, role: str) -> dict[str, Any]:
    """The line of a run; the first one of a variant is its entry in the legend."""
    points = [one for one in run.evaluations if math.isfinite(one.seconds)]
    return {
        "type": "scatter",
        "mode": "lines" if len(points) > 20 else "lines+markers",
        "name": plot_text(name),
        "legendgroup": role,
        "showlegend": number == 0,
        "visible": "legendonly" if role == "other" else True,
        "meta": plot_text(f"{run.variant.name}, seed {run.seed}"),
        "x": [float(f"{one.seconds:.6g}") for one in points],
        "y": [float(f"{one.value:.6g}") if math.isfinite(one.value) else None for one in points],
        "line": {"color": _COLORS[role], "width": 1.5, "dash": _DASHES[role]},
        "marker": {"size": 4},
        "opacity": 0.75,
        "hovertemplate": "%{meta}<br>%{y:.4~g} after %{x:.4~g} s<extra></extra>",
    }


def _ends(runs: Sequence[KeptRun], role: str, goal: Goal) -> list[dict[str, Any]]:
    """Marks where runs reached the target, and where they were censored."""
    if goal.target is None:
        return []
    reached: list[tuple[float, float, KeptRun]] = []
    censored: list[tuple[float, float, KeptRun]] = []
    for run in runs:
        time = run.reached(goal)
        if time is not None:
            reached.append((time, goal.target, run))
        elif isinstance(run.outcome, Trajectory):
            censored.append((run.outcome.seconds, run.evaluations[-1].value, run))
    marks = [_marks(reached, role, "circle", "at the target after")] if reached else []
    return marks + ([_marks(censored, role, "x", "censored, as it did not reach the target in")] if censored else [])


def _marks(ends: Sequence[tuple[float, float, KeptRun]], role: str, symbol: str, told: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "not at the target (censored)",
        "legendgroup": role,
        "showlegend": symbol == "x",
        "visible": "legendonly" if role == "other" else True,
        "x": [float(f"{time:.6g}") for time, _, _ in ends],
        "y": [value if math.isfinite(value) else None for _, value, _ in ends],
        "text": [plot_text(f"{run.variant.name}, seed {run.seed}: {told} {time:.4g} s") for time, _, run in ends],
        "marker": {"symbol": symbol, "size": 8 if symbol == "circle" else 12, "color": _COLORS[role]},
        "hovertemplate": "%{text}<extra></extra>",
    }


def _target_line(goal: Goal) -> dict[str, Any]:
    text = {"text": plot_text(f"target {goal.target:g}"), "textposition": "start", "padding": 8, "font": {"size": 12}}
    at = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": goal.target, "y1": goal.target}
    return {"type": "line", **at, "line": {"color": _UNDECIDED, "width": 1.5, "dash": "dot"}, "label": text}


def _shown_gain(one: Standing, goal: Goal) -> float:
    """The gain of a variant as times as fast, within what can be drawn, or as a difference."""
    if goal.target is None:
        return float(f"{one.gain:.6g}")
    return float(f"{math.exp(min(max(one.gain, -_MOST_GAIN), _MOST_GAIN)):.6g}")


def _race_line(
    name: str, points: Sequence[tuple[float, float, bool]], decision: Decision | None, is_labeled: bool
) -> dict[str, Any]:
    color = {Decision.PAYS: _PAYS, Decision.DOES_NOT: _DOES_NOT}.get(decision or Decision.UNDECIDED, _UNDECIDED)
    symbols = ["circle" if is_kept else "x" for _, _, is_kept in points]
    return {
        "type": "scatter",
        "mode": "lines+markers+text" if is_labeled else "lines+markers",
        "name": plot_text(shortened(name, _LABEL_LENGTH)),
        "meta": plot_text(name),
        "x": [float(f"{seconds:.6g}") for seconds, _, _ in points],
        "y": [gain for _, gain, _ in points],
        "text": [*[""] * (len(points) - 1), plot_text(shortened(name, _LABEL_LENGTH))],
        "textposition": "middle left" if len(points) == 1 else "top left",
        "line": {"color": color, "width": 1.5},
        "marker": {"size": 8, "color": color, "symbol": symbols},
        "hovertemplate": "%{meta}<br>%{y:.3~g} after %{x:.4~g} s<extra></extra>",
    }
