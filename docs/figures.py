"""What the benchmarks measured, for the pages that tell it; pages do without where there are no results yet."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from docs.text import table

__all__ = ["RESULTS", "costs", "with_figures"]

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"

_MARK = re.compile(r"^<!-- figures: (\w+) -->$", flags=re.MULTILINE)


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
    """Return a page with the results of a task, as a table, in the place of each ``<!-- figures: task -->``."""
    return _MARK.sub(lambda found: _figures(folder, found[1]), markdown)


def _figures(folder: Path, task: str) -> str:
    results = _results(folder, "time_to_target")
    mine = f"{task}: "
    rows = [[str(row[0]).removeprefix(mine), *row[1:]] for row in results.get("rows", []) if row[0].startswith(mine)]
    if not rows:
        return "*Not measured on this machine yet: `make bench` does it.*"
    notes = [note for note in results.get("notes", []) if note.startswith(mine)]
    shown = table([results["columns"][0], *results["columns"][1:]], [[_shown(cell) for cell in row] for row in rows])
    return "\n\n".join([shown, *notes])


def _shown(cell: object) -> str:
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def _results(folder: Path, name: str) -> dict[str, Any]:
    file = folder / f"{name}.json"
    return json.loads(file.read_text()) if file.is_file() else {}
