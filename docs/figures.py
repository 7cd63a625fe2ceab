"""Read benchmark results and show them as tables on the pages; a page without results says how to measure them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from docs.text import table

__all__ = ["RESULTS", "costs", "evidence", "load_results", "with_figures"]

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"

_UNKNOWN = "*Not measured yet. Run `make bench`.*"
# What the final metric of a task is.
_FINAL = {"vision": "final accuracy", "language": "final cross entropy"}
# Further columns of the ablation of a recipe, as far as results have them.
_TOLD = ("verdict", "metric after equal time")
_MARK = re.compile(r"^<!-- (figures|results): (\w+) -->$", flags=re.MULTILINE)


def costs(folder: Path = RESULTS) -> dict[str, str]:
    """Return the measured cost of each function or class, by name."""
    found: dict[str, list[str]] = {}
    for label, *values in load_results("methods", folder).get("rows", []):
        # A label such as "batch: mixup_batch, 256 x 3 x 32 x 32", our milliseconds, the predecessor's, and the ratio.
        group, _, what = str(label).rpartition(": ")
        what, _, alternative = what.partition("; beside it ")
        name, _, on = what.partition(", ")
        ours, _, ratio, *_ = (*values, None, None, None)
        if not isinstance(ours, float):
            continue
        line = f"`{name}`, {on}: {ours:.3g} ms" if on else f"`{name}`: {ours:.3g} ms"
        if isinstance(ratio, float):
            # The group "own" compares two of our own ways of doing the same.
            other = alternative if group == "own" else "MosaicML Composer 0.32.1"
            line += f", {ratio:.2f}× the time of {other}"
        found.setdefault(name, []).append(line)
    return {name: "; ".join(lines) + "." for name, lines in found.items()}


def evidence(folder: Path = RESULTS) -> dict[str, list[str]]:
    """Return what each method was measured to do by itself, a line for each task, by the name of the method."""
    found: dict[str, list[str]] = {}
    for task in load_results("evidence", folder).get("samples", {}).values():
        for method, result in task["found"].items():
            found.setdefault(method, []).append(f"{_effect(task, result)}, `{task['methods'][method]}`")
    return found


def _effect(task: dict[str, Any], result: dict[str, Any]) -> str:
    """The effect of a method on a task, in a sentence without its end."""
    about = task["about"][0].upper() + task["about"][1:]
    if result["failures"]:
        return f"{about}: {result['failures']} of {result['pairs']} runs failed"
    verdict = {"pays": "it pays", "does not": "it does not pay", "undecided": "undecided"}[result["decision"]]
    effect = result["effect"]
    if not task["target"]:
        speed = f"{result['throughput']:.2f} times as many samples a second"
        change = f"{task['metric']} better by {_interval(effect, '+.3f')} after as many steps, {speed}"
        return f"{about}: {change}; **{verdict}**"
    missed = result["pairs"] - result["reached_after"]
    missing = f" ({missed} of {result['pairs']} runs did not get there)" if missed else ""
    quality = _interval(result["quality_at_equal_samples"], "+.3f")
    metric = task["target"].split("<")[0].split(">")[0]
    speed = f"{_interval(effect, '.2f')} times as fast to {task['target']}{missing}" if effect else "no run got there"
    return f"{about}: {speed}, {metric} better by {quality} after as many samples; **{verdict}**"


def _interval(found: dict[str, float | None] | None, form: str) -> str:
    """An estimate with its interval, of which an end that is not finite is None."""
    if found is None:
        return "?"
    value, low, high = ("∞" if found[end] is None else format(found[end], form) for end in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def with_figures(markdown: str, folder: Path = RESULTS) -> str:
    """Return a page with each mark replaced by a table of results.

    Args:
        markdown: The page. ``<!-- figures: task -->`` is replaced by the ablation of a recipe,
            ``<!-- results: name -->`` by a complete benchmark with its command and hardware.
        folder: The folder of the result files.
    """
    shown = {"figures": _ablation, "results": _benchmark}
    return _MARK.sub(lambda found: shown[found[1]](folder, found[2]), markdown)


def _ablation(folder: Path, task: str) -> str:
    """The time to the target: the baseline, the recipe, and the recipe without each of its parts."""
    results = load_results("time_to_target", folder)
    mine = f"{task}: "
    rows = [row for row in results.get("rows", []) if row[0].startswith(mine)]
    if not rows:
        return _UNKNOWN
    columns = results["columns"]
    # A column is followed by that of its interval.
    place = {name: columns.index(name) for name in columns}
    heads = ["run", "CPU seconds to target", "seeds that reach it", "time relative to baseline (95 % CI)"]
    heads.append("time relative to recipe (95 % CI)")
    heads += [_FINAL.get(task, "final metric")] if "final metric" in place else []
    heads += [name for name in _TOLD if name in place]
    shown: list[list[str]] = []
    for row in rows:
        seconds, spread = row[place["seconds"] : place["seconds"] + 2]
        reach = f" ± {spread:.2f}" if isinstance(spread, float) else ""
        cells = [f"{seconds:.2f}{reach}" if isinstance(seconds, float) else str(seconds), row[place["reached"]]]
        for name in ("times the baseline's", "times the recipe's"):
            ratio, interval = row[place[name] : place[name] + 2]
            cells.append("" if ratio == "-" else f"{ratio}× ({interval.replace(' to ', '–')})")
        if "final metric" in place:
            final, reach = row[place["final metric"] : place["final metric"] + 2]
            cells.append(f"{final:.3f} ± {reach:.3f}")
        cells += [row[place[name]] for name in _TOLD if name in place]
        shown.append([row[0].removeprefix(mine), *cells])
    notes = [note.removeprefix(mine) for note in results.get("notes", []) if note.startswith(mine)]
    return "\n\n".join([table(heads, shown), *(note[:1].upper() + note[1:] for note in notes)])


def _benchmark(folder: Path, name: str) -> str:
    results = load_results(name, folder)
    if not results:
        return _UNKNOWN
    rows = [[_shown(cell) for cell in row] for row in results["rows"]]
    machine = results["machine"]
    arguments = f" {results['arguments']}" if results.get("arguments") else ""
    where = (
        f"*{machine['processor']}, {machine['cores']} cores, torch {machine['libraries']['torch']}, {machine['date']}; "
        f"reproduce with `.bench/bin/python -m benchmarks.{name}{arguments}`.*"
    )
    notes = "\n".join(f"- {note}" for note in results["notes"])
    return "\n\n".join([table(results["columns"], rows), notes, where])


def _shown(cell: object) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"


def load_results(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """Return the contents of a result file, or an empty mapping if the benchmark has not been run."""
    file = folder / f"{name}.json"
    return json.loads(file.read_text()) if file.is_file() else {}
