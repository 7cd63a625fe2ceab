"""What the checks of a part came to, kept as one page and one JSON file for each kind of hardware."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.report import Goal, Report


@dataclass
class Outcome:
    """What a check came to.

    Attributes:
        state: "ran", "skipped", "failed" or "not run".
        why: What failed or is missing.
        seconds: The time that it took.
        report: Its figures, as :class:`~benchmarks.report.Report` in plain values.
    """

    state: str
    why: str
    seconds: float
    report: dict[str, Any] | None = None

    def text(self, name: str) -> str:
        """Return what to print."""
        head = f"{name}: {self.state} ({self.seconds:.0f} s)"
        parts = [head, self.why.strip(), self._report.text() if self._report else ""]
        return "\n\n".join(part for part in parts if part) + "\n"

    def markdown(self, name: str) -> str:
        """Return the section of the page."""
        if self._report is None:
            return f"## {name}\n\n{self.state}:\n\n```\n{self.why.strip()}\n```"
        why = f"\n\n```\n{self.why.strip()}\n```" if self.why else ""
        return f"## {self._report.title}{why}\n\n{self._report.tables()}"

    @property
    def _report(self) -> Report | None:
        if self.report is None:
            return None
        return Report(**{**self.report, "goals": [Goal(**goal) for goal in self.report["goals"]]})


class Results(dict[str, Outcome]):
    """Outcomes by the name of the check.

    Attributes:
        page: The file for people.
        new: Names of the checks that ran now.
    """

    @classmethod
    def of(cls, part: str, folder: Path, machine: dict[str, Any], *, tiny: bool) -> Results:
        """Return what there is of this hardware with these versions, or an empty one."""
        results = cls()
        name = slug(machine["hardware"])
        results.part, results.machine, results.new = part, machine, []
        results.page = folder / f"{part}-{name}{'-tiny' if tiny else ''}.md"
        results.file = results.page.with_suffix(".json")
        if results.file.exists():
            content = json.loads(results.file.read_text())
            if content["machine"]["libraries"] == machine["libraries"]:
                dict.update(results, {check: Outcome(**outcome) for check, outcome in content["checks"].items()})
        return results

    def __setitem__(self, name: str, outcome: Outcome) -> None:
        super().__setitem__(name, outcome)
        self.new.append(name)

    def write(self) -> None:
        """Write the page and the JSON file."""
        self.page.parent.mkdir(parents=True, exist_ok=True)
        content = {"machine": self.machine, "checks": {name: asdict(outcome) for name, outcome in self.items()}}
        self.file.write_text(json.dumps(content, indent=1) + "\n")
        rows = [f"| {name} | {outcome.state} | {outcome.seconds:.0f} |" for name, outcome in self.items()]
        table = "\n".join(["| check | | seconds |", "| --- | --- | ---: |", *rows])
        head = f"# {self.part} on {self.machine['hardware']}\n\n`make gpu PART={self.part}`"
        sections = [outcome.markdown(name) for name, outcome in self.items()]
        libraries = ", ".join(f"{name} {version}" for name, version in self.machine["libraries"].items())
        machine = [f"- {name}: {value}" for name, value in self.machine.items() if name != "libraries"]
        self.page.write_text(
            "\n\n".join([head, table, *sections, "\n".join([*machine, f"- libraries: {libraries}"])]) + "\n"
        )


def slug(hardware: object) -> str:
    """Return a name of hardware as a part of a file's name.

    Args:
        hardware: The name.

    >>> slug("NVIDIA H100 80GB HBM3")
    'nvidia-h100-80gb-hbm3'
    """
    return re.sub(r"[^a-z0-9]+", "-", str(hardware).lower()).strip("-")


def hardware(device: str) -> dict[str, Any]:
    """Return what the figures depend on; ``hardware`` is the name of the accelerator or of the processor."""
    machine = environment.describe(device)
    machine["hardware"] = machine["processor"]
    if device == "cuda":
        import torch

        machine["hardware"] = torch.cuda.get_device_name()
        machine["memory (GiB)"] = round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1)
        machine["cuda"] = torch.version.cuda
    return machine
