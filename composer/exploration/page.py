"""The HTML page of ``composer explore``: one file that opens offline."""

from __future__ import annotations

import math
from collections.abc import Iterator

from composer._html import Html, document, section, table, tag
from composer._text import plural
from composer.exploration.exploration import Exploration, MethodVerdict
from composer.exploration.halving import HeatResult
from composer.exploration.page_figures import curves_figure, effects_figure, parts_figure, race_figure, shown_runs
from composer.exploration.paired_runs import PairedRuns
from composer.exploration.planning import clock
from composer.exploration.variant import BASELINE
from composer.reports.time_shares import time_shares
from composer.statistics.bootstrap import Estimate
from composer.statistics.holm import Decision

__all__ = ["exploration_page"]

_WORDS = {Decision.PAYS: "pays", Decision.UNDECIDED: "undecided", Decision.DOES_NOT: "does not pay"}
_KINDS = {"wall": "Wall seconds", "cpu": "CPU seconds"}
_STAGES = {
    "noise": "A/A runs of the baseline",
    "screening": "screening of all methods",
    "tuning": "tuning of the baseline",
    "methods": "race of the methods",
    "combinations": "combinations",
    "confirmation": "confirmation",
    "attribution": "attribution",
}


def exploration_page(exploration: Exploration) -> str:
    """Return an exploration as an HTML document that needs no network.

    Args:
        exploration: The exploration.

    Raises:
        MissingConditionalImportError: plotly is not installed.

    >>> from composer.exploration.goal import Goal
    >>> from composer.exploration.planning import Plan
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> plan = Plan(goal, (10.0, 11.0), (0.9, 0.9), 12.0, 0.1, 8, 180.0, 192.0, 96.0, 1e9, 5, 20)
    >>> "Keep what you have" in exploration_page(Exploration(plan, BASELINE))
    True
    """
    parts = [
        tag("h1", "Which methods pay?"),
        tag("p", f"Goal: {_goal(exploration)}.", class_="note"),
        _verdict(exploration),
        _lines(exploration),
        _methods(exploration),
        _curves(exploration),
        _costs(exploration),
        _race(exploration),
        _attribution(exploration),
        _steps(exploration),
        _not_tried(exploration),
        _noise(exploration),
        _notes(exploration),
    ]
    title = f"Exploration: {exploration.plan.goal}"
    return document(title, *(part for part in parts if part is not None), command="composer explore")


def _goal(exploration: Exploration) -> str:
    goal = exploration.plan.goal
    better = "as large as possible" if goal.maximize else "as small as possible"
    if goal.target is None:
        return f"{goal.metric} {better} after {clock(goal.seconds or exploration.plan.seconds)} of training"
    return f"{goal} after as little time of training as possible"


def _verdict(exploration: Exploration) -> Html:
    """Return what to do, and what is known of it."""
    compared = list(_comparisons(exploration))
    lines = [f"{one.after.name} was not confirmed: {one}." for one in exploration.rejected]
    if compared:
        gains = [_gain(exploration, one, what) for what, one in compared]
        first = f"{exploration.recipe.name}: {gains[0]}, by {plural(compared[0][1].num_pairs, 'pair')} of runs."
        lines = [f"And {gain}." for gain in gains[1:]] + lines
    else:
        first, *lines = exploration.headline
    if exploration.saving:
        took = f"{clock(sum(exploration.costs.values()))}{_of_cpu_time(exploration)}"
        lines.append(f"The exploration took {took}. {exploration.saving}")
    columns = ["compared with", _effect_name(exploration), "p", "pairs", *_more_columns(exploration)]
    rows = [_pairs_row(what, one) for what, one in compared]
    return tag(
        "div",
        tag("p", first),
        tag("ul", *(tag("li", line) for line in lines)) if lines else None,
        table("The recipe compared", columns, rows, right=(1, 2, 3)) if rows else None,
        class_="verdict good" if exploration.found else "verdict neutral",
    )


def _gain(exploration: Exploration, one: PairedRuns, what: str) -> str:
    """How much better the recipe is than something, in words."""
    goal = exploration.plan.goal
    if goal.target is not None:
        return f"{_interval(one.effect)} times as fast as {what}"
    return f"{goal.metric} is better by {_interval(one.effect, signed=True)} than with {what}"


def _comparisons(exploration: Exploration) -> Iterator[tuple[str, PairedRuns]]:
    """Yield what the recipe is compared with, and the result."""
    result, overall = exploration.result, exploration.overall
    if not exploration.found or result is None:
        return
    if result.before == BASELINE:
        yield "the program as it is", result
        return
    yield f"the tuned baseline ({result.before.name})", result
    if overall is not None:
        yield "the program as it is", overall


def _more_columns(exploration: Exploration) -> list[str]:
    has_target = exploration.plan.goal.target is not None
    return ["at the target", "seconds saved", "metric, equal time"] if has_target else ["samples a second"]


def _pairs_row(what: str, one: PairedRuns) -> list[str]:
    is_signed = one.times is None
    cells = [what, _interval(one.effect, signed=is_signed), f"{one.p_value:.2g}", str(one.num_pairs)]
    if one.times is None:
        return [*cells, f"{one.throughput:.3g} times as many" if math.isfinite(one.throughput) else ""]
    reached = f"{one.times.reached_before}, then {one.times.reached_after} of {one.num_pairs}"
    return [*cells, reached, _interval(one.times.saved), _interval(one.quality, signed=True)]


def _interval(estimate: Estimate | None, *, signed: bool = False) -> str:
    if estimate is None or not math.isfinite(estimate.value):
        return ""
    ends = (estimate.value, estimate.low, estimate.high)
    value, low, high = (f"{end:+.3g}" if signed else f"{end:.3g}" for end in ends)
    return f"{value} [{low}, {high}]" if estimate.has_interval else f"{value} (no interval)"


def _effect_name(exploration: Exploration) -> str:
    goal = exploration.plan.goal
    return "times as fast" if goal.target is not None else f"{goal.metric}, better by"


def _lines(exploration: Exploration) -> Html | None:
    """Return the recipe to paste, and the command that repeats the exploration."""
    content: list[Html] = []
    if exploration.found:
        content += [
            tag("h3", "Python"),
            tag("pre", tag("code", exploration.python)),
            tag("h3", "Arguments of composer train, after the name of the configuration"),
            tag("pre", tag("code", exploration.train_arguments)),
            tag("h3", "YAML, to merge into a configuration"),
            tag("pre", tag("code", exploration.yaml)),
        ]
    if exploration.command:
        content += [tag("h3", "To repeat the exploration")] if content else []
        content.append(tag("pre", tag("code", exploration.command)))
    if not content:
        return None
    return section("Write" if exploration.found else "To repeat the exploration", *content)


def _methods(exploration: Exploration) -> Html | None:
    """Return the effects of all methods, as a figure and in numbers."""
    if not exploration.verdicts:
        return None
    rows = [
        (one.variant.name, _decision(one), _interval(one.effect), one.evidence, one.reason)
        for one in exploration.ranked
    ]
    numbers = table("Methods", ["method", "verdict", _effect_name(exploration), "from", "note"], rows, right=(2,))
    told = (
        "Only pairs of runs with fresh seeds decide that a method pays. The race compares parts of single runs: it "
        "finds what is much worse, and leaves the rest undecided."
    )
    return section(
        "Methods",
        tag("p", told, class_="note"),
        effects_figure(exploration),
        tag("details", tag("summary", f"{plural(len(rows), 'method')} in numbers"), numbers),
    )


def _decision(one: MethodVerdict) -> Html:
    return tag("span", _WORDS[one.decision], class_="yes" if one.decision is Decision.PAYS else "no")


def _curves(exploration: Exploration) -> Html | None:
    figure = curves_figure(exploration)
    if figure is None:
        return None
    goal = exploration.plan.goal
    shown = [run for runs in shown_runs(exploration).values() for run in runs]
    lines = ["A line is a run; runs of a pair have the same seed."]
    if all(run.stage == "noise" for run in shown):
        lines = ["These are the A/A runs of the unchanged program, which differ by their seed alone."]
    if goal.target is not None:
        lines.append(
            f"A dot is where it reached the target; a cross where it was stopped before that, after "
            f"{clock(exploration.plan.limit)} of training at most (censored). Such runs count with their time."
        )
    failed = [run for run in shown if not run.evaluations]
    if failed:
        lines.append(f"{plural(len(failed), 'run')} failed or were not evaluated, and have no line.")
    lines.append("Drag to zoom, double-click to zoom out; click a name to hide its runs.")
    return section("Quality against time", tag("p", " ".join(lines), class_="note"), figure)


def _costs(exploration: Exploration) -> Html | None:
    """Return what each stage cost."""
    seconds = {_STAGES.get(stage, stage): spent for stage, spent in exploration.costs.items() if spent > 0}
    shares = time_shares(seconds, f"{_KINDS[exploration.counted]} of each stage", "stage", clock)
    if shares is None:
        return None
    plan = exploration.plan
    each = f"{clock(plan.cost)}{_of_cpu_time(exploration)}"
    told = f"The search took {exploration.search_cost:.1f} trainings of the baseline, of {each} each."
    if not math.isinf(plan.budget):
        told += f" The budget was {clock(plan.budget)}."
    return section("What it cost", tag("p", told), shares)


def _of_cpu_time(exploration: Exploration) -> str:
    return " of CPU time" if exploration.counted == "cpu" else ""


def _race(exploration: Exploration) -> Html | None:
    """Return who left each race at which rung."""
    heats = [one for one in exploration.heats if one.rungs]
    if not heats:
        return None
    decisions = {one.variant.name: one.decision for one in exploration.verdicts}
    content: list[Html | None] = []
    for heat in heats:
        content.append(tag("h3", f"{_STAGES.get(heat.stage, heat.stage).capitalize()}"))
        figure = race_figure(heat, exploration.plan.goal, decisions)
        content += [figure, _rungs(heat, exploration)]
    told = (
        "A line search in short runs tunes the learning rate. Then combinations of methods train for as short a time: "
        "a regression estimates from all of them what each method does, and chooses the next ones (Thompson "
        "sampling). What is expected to be best trains for longer; what does not is dropped. All are compared with the "
        "baseline at equal time, and their gain is projected to the target."
    )
    return section("The race", tag("p", told, class_="note"), *content)


def _rungs(heat: HeatResult, exploration: Exploration) -> Html:
    has_target = exploration.plan.goal.target is not None
    rows: list[tuple[object, ...]] = []
    for number, rung in enumerate(heat.rungs, 1):
        best = next((one for one in rung.standings if math.isfinite(one.gain)), None)
        gain = "" if best is None else f"{math.exp(best.gain):.3g}" if has_target else f"{best.gain:+.3g}"
        leader = "" if best is None else f"{best.variant.name} ({gain})"
        rows.append((number, clock(rung.seconds), len(rung.standings), leader, ", ".join(rung.dropped) or "none"))
    columns = ["rung", "trained", "variants", "best", "dropped"]
    return table("Rungs", columns, rows, right=(0, 1, 2))


def _attribution(exploration: Exploration) -> Html | None:
    """Return what each part of the winner contributes, and how two of them interact."""
    found, goal = exploration.attribution, exploration.plan.goal
    if found is None or not found.contributions:
        return None
    rows = [
        (one.part.name, "not measured: the budget did not suffice", "", "", "", "")
        if one.effect is None
        else (
            one.part.name,
            _WORDS[one.effect.decision],
            _interval(one.effect.effect),
            f"{one.effect.adjusted:.2g}",
            _interval(one.effect.quality, signed=True),
            f"{one.effect.throughput:.3g}" if math.isfinite(one.effect.throughput) else "",
        )
        for one in found.contributions
    ]
    columns = [
        "part",
        "verdict",
        _effect_name(exploration),
        "p (Holm)",
        f"{goal.metric} after equal time",
        "throughput",
    ]
    told = "The winner is compared with the winner without each part, by pairs of runs with the same seeds."
    return section(
        "What each part contributes",
        tag("p", told, class_="note"),
        parts_figure(found, goal) if len(found.contributions) > 1 else None,
        table("Parts", columns, rows, right=(2, 3, 4, 5)),
        *_interaction(exploration),
    )


def _interaction(exploration: Exploration) -> Iterator[Html]:
    both = None if exploration.attribution is None else exploration.attribution.interaction
    if both is None:
        return
    has_target = exploration.plan.goal.target is not None
    nothing = 1.0 if has_target else 0.0
    names = " and ".join(part.name for part in both.parts)
    told = "times as fast as the product of both alone" if has_target else "beyond the sum of both alone"
    word = "They do not interact by more than noise."
    if both.effect.low > nothing:
        word = "They help each other."
    elif both.effect.high < nothing:
        word = "They do the same in part: together they gain less than both alone."
    effect = _interval(both.effect, signed=not has_target)
    yield tag("p", f"{names} together: {effect} {told}, by {plural(both.num_pairs, 'pair')}. {word}")


def _steps(exploration: Exploration) -> Html | None:
    """Return what a step of each method costs."""
    if not exploration.screened:
        return None
    rows = [
        (
            one.variant.name,
            "" if one.speed is None else str(one.speed),
            f"{one.memory:.2f}" if math.isfinite(one.memory) else "",
            one.error,
        )
        for one in exploration.screened
    ]
    columns = ["method", "speed of a step", "times the memory", "why it cannot be used"]
    told = "Steps of each method, measured in turn with those of the unchanged run; evaluations are left out."
    content = table("Cost of a step", columns, rows, right=(1, 2))
    shown = tag("details", tag("summary", plural(len(rows), "method")), content)
    return section("Cost of a step", tag("p", told, class_="note"), shown)


def _not_tried(exploration: Exploration) -> Html | None:
    if not exploration.refused:
        return None
    rows = list(exploration.refused.items())
    content = table("Not tried", ["variant", "why"], rows)
    shown = content if len(rows) <= 12 else tag("details", tag("summary", plural(len(rows), "variant")), content)
    return section("What was not tried, and why", shown)


def _noise(exploration: Exploration) -> Html:
    """Return what equal runs differ by, and what can be told within the budget."""
    plan = exploration.plan
    rows = [
        (f"run {number}", f"{time:.4g} s", f"{quality:.4g}")
        for number, (time, quality) in enumerate(zip(plan.times, plan.qualities, strict=True), 1)
    ]
    column = "to the target" if plan.goal.target is not None else "trained"
    lines = [tag("p", line) for line in str(plan).splitlines()]
    runs = table("A/A runs", ["", column, "metric at the end"], rows, right=(1, 2))
    return section("Noise, and what can be told within the budget", *lines, runs)


def _notes(exploration: Exploration) -> Html | None:
    if not exploration.notes:
        return None
    return section("Notes", tag("ul", *(tag("li", note) for note in exploration.notes)))
