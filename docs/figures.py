"""What the benchmarks measured, for the pages that tell it; pages do without where there are no results yet."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from docs.text import table

__all__ = ["RESULTS", "costs", "with_figures"]

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"

_UNKNOWN = "*Not measured on this machine yet: `make bench` does it.*"
_MARK = re.compile(r"^<!-- (figures|results): (\w+) -->$", flags=re.MULTILINE)


def costs(folder: Path = RESULTS) -> dict[str, str]:
    """Return what was measured of each function, or class, by its name."""
    found: dict[str, list[str]] = {}
    for label, *values in _results(folder, "methods").get("rows", []):
        # "batch: mixup_batch, 256 x 3 x 32 x 32", then milliseconds of ours and theirs, and the ratio.
        what = str(label).partition(": ")[2] or str(label)
        name, _, on = what.partition(", ")
        ours, _, ratio, *_ = (*values, None, None, None)
        if not isinstance(ours, float):
            continue
        line = f"`{name}`, {on}: {ours:.3g} ms" if on else f"`{name}`: {ours:.3g} ms"
        if isinstance(ratio, float):
            line += f", {ratio:.2f} times what MosaicML Composer 0.32.1 takes"
        found.setdefault(name, []).append(line)
    return {name: "; ".join(lines) + "." for name, lines in found.items()}


def with_figures(markdown: str, folder: Path = RESULTS) -> str:
    """Return a page with tables in the place of marks.

    Args:
        markdown: The page. ``<!-- figures: task -->`` stands for what is measured of a recipe,
            ``<!-- results: name -->`` for a whole benchmark with its command and its machine.
        folder: Where the results are.
    """
    shown = {"figures": _figures, "results": _benchmark}
    return _MARK.sub(lambda found: shown[found[1]](folder, found[2]), markdown)


def _figures(folder: Path, task: str) -> str:
    results = _results(folder, "time_to_target")
    mine = f"{task}: "
    rows = [[str(row[0]).removeprefix(mine), *row[1:]] for row in results.get("rows", []) if row[0].startswith(mine)]
    if not rows:
        return _UNKNOWN
    notes = [note for note in results.get("notes", []) if note.startswith(mine)]
    shown = table([results["columns"][0], *results["columns"][1:]], [[_shown(cell) for cell in row] for row in rows])
    return "\n\n".join([shown, *notes])


def _benchmark(folder: Path, name: str) -> str:
    results = _results(folder, name)
    if not results:
        return _UNKNOWN
    rows = [[_shown(cell) for cell in row] for row in results["rows"]]
    machine = results["machine"]
    where = (
        f"*{machine['processor']}, {machine['cores']} cores, torch {machine['libraries']['torch']}, {machine['date']}; "
        f"again by `.bench/bin/python -m benchmarks.{name}`.*"
    )
    notes = "\n".join(f"- {note}" for note in results["notes"])
    return "\n\n".join([table(results["columns"], rows), notes, where])


def _shown(cell: object) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"


def _results(folder: Path, name: str) -> dict[str, Any]:
    file = folder / f"{name}.json"
    return json.loads(file.read_text()) if file.is_file() else {}
