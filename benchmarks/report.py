"""Report results with their goals: as a table to print, and as files."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
# Relative spread of a baseline above which differences from it are inconclusive.
_MOST_UNSTEADY = 0.05


@dataclass(frozen=True)
class Goal:
    """An upper limit for a measured value.

    Attributes:
        what: Description of the value.
        value: The measured value.
        limit: The largest allowed value.
        unit: Unit of both.
        doubt: Why the measurement is inconclusive, if it is.
    """

    what: str
    value: float
    limit: float
    unit: str = ""
    doubt: str = ""

    @property
    def met(self) -> bool:
        return not self.doubt and self.value <= self.limit

    @property
    def verdict(self) -> str:
        return f"unclear: {self.doubt}" if self.doubt else "met" if self.met else "missed"

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.what}: {_number(self.value)}{unit}, at most {self.limit:g}{unit}: {self.verdict}"


@dataclass
class Report:
    """The outcome of one benchmark.

    Attributes:
        name: Name of the benchmark and of its files.
        title: What was measured, in a line.
        columns: Heads of the table.
        rows: One list for each contender; the first entry names it.
        goals: What has to hold.
        notes: How it was measured: counts, what is compared with what.
        samples: Every single measurement, by contender and figure.
        machine: Where.
        failed: What went wrong, if the benchmark is of something that either works or does not.
        arguments: What its command needs, if it takes too long for `make bench`.
        separate_samples: Whether each entry of the samples is written to a file of its own, for large ones.
    """

    name: str
    title: str
    columns: list[str]
    rows: list[list[Any]]
    goals: list[Goal]
    notes: list[str]
    samples: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=dict)
    failed: str = ""
    arguments: str = ""
    separate_samples: bool = False

    def text(self) -> str:
        """Return the table in columns of text, with the goals below."""
        cells = [self.columns, *([_cell(value) for value in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = [
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in cells
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([f"{self.name}: {self.title}", "", *lines, "", *map(str, self.goals)])

    def markdown(self) -> str:
        """Return the same as a page, with machine and notes."""
        libraries = ", ".join(f"{name} {version}" for name, version in self.machine.get("libraries", {}).items())
        machine = [f"- {name}: {value}" for name, value in self.machine.items() if name != "libraries"]
        machine.append(f"- libraries: {libraries}")
        alone = f"`.bench/bin/python -m benchmarks.{self.name}{f' {self.arguments}' if self.arguments else ''}`"
        command = alone if self.arguments else f"`make bench`, or alone: {alone}"
        return "\n\n".join([f"# {self.title}", command, self.tables(), "\n".join(machine)]) + "\n"

    def tables(self) -> str:
        """Return figures, goals and notes in Markdown."""
        rows = [[_cell(value) for value in row] for row in self.rows]
        table = ["| " + " | ".join(row) + " |" for row in (self.columns, *rows)]
        table.insert(1, "| --- |" + " ---: |" * (len(self.columns) - 1))
        goals = [f"| {g.what} | {_number(g.value)} {g.unit} | {g.limit:g} {g.unit} | {g.verdict} |" for g in self.goals]
        if goals:
            goals = ["| goal | measured | limit | |", "| --- | ---: | ---: | --- |", *goals]
        parts = [table, goals, [f"- {note}" for note in self.notes]]
        return "\n\n".join("\n".join(part) for part in parts if part)

    def write(self, folder: Path = RESULTS) -> None:
        """Write the page and all measurements below ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.md").write_text(self.markdown())
        goals = [{**asdict(goal), "met": goal.met} for goal in self.goals]
        content = {**asdict(self), "goals": goals}
        if content.pop("separate_samples"):
            content["samples"] = list(self.samples)
            (folder / self.name).mkdir(exist_ok=True)
            for name, sample in self.samples.items():
                _sample_path(self.name, name, folder).write_text(_laid_out(sample) + "\n")
        (folder / f"{self.name}.json").write_text(_laid_out(content) + "\n")


def published_samples(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """Return the samples of a report that was written.

    Args:
        name: Name of the benchmark.
        folder: Folder of the results.
    """
    samples = json.loads((folder / f"{name}.json").read_text())["samples"]
    if isinstance(samples, dict):
        return samples
    return {each: json.loads(_sample_path(name, each, folder).read_text()) for each in samples}


def _sample_path(name: str, sample: str, folder: Path) -> Path:
    return folder / name / f"{sample}.json"


def _laid_out(value: Any, depth: int = 3) -> str:
    """Return JSON with a line for each entry down to a depth; deeper ones, which are most of a file, have none."""
    if depth == 0 or not value or not isinstance(value, dict | list | tuple):
        return json.dumps(value)
    if isinstance(value, dict):
        entries = [f"{json.dumps(str(key))}: {_laid_out(each, depth - 1)}" for key, each in value.items()]
        return "{\n" + ",\n".join(entries) + "\n}"
    return "[\n" + ",\n".join(_laid_out(each, depth - 1) for each in value) + "\n]"


def spread(values: list[float]) -> float:
    """Return half the distance between the quartiles: half of the measurements lie within median plus or minus it.

    >>> spread([1.0, 2.0, 3.0, 4.0, 5.0])
    1.0
    """
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2


def doubt_of(what: str, values: list[float]) -> str:
    """Return why a comparison with what was measured is inconclusive; an empty string if that was steady.

    >>> doubt_of("the raw loop", [1.0, 1.5, 2.0]), doubt_of("the raw loop", [1.0, 1.01, 1.02])
    ('the raw loop varied by 17%', '')
    """
    unsteady = spread(values) / statistics.median(values)
    return f"{what} varied by {unsteady:.0%}" if unsteady > _MOST_UNSTEADY else ""


def _cell(value: Any) -> str:
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    """Three to four digits that matter."""
    if not math.isfinite(value):
        return "-"
    if value == int(value) and abs(value) < 100:
        return f"{value:.0f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"
