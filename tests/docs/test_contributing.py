"""CONTRIBUTING and README: every path that they name exists, and the numbers of the first screen are those measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

from docs.time_to_accuracy import PICTURE

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def test_every_task_leads_to_a_file() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things are")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!task or|---)([^|]+) \| (.+) \|$", table, flags=re.M)
    assert len(rows) == 10
    for task, places in rows:
        paths = re.findall(r"`(composer/[^`]+)`", places)
        assert paths, task
        assert [path for path in paths if not (ROOT / path).exists()] == [], task


def test_files_that_the_page_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:docs|tests)/[\w/.]+)`", text)) | set(re.findall(r"\]\(([\w/.]+)\)", text))
    examples = {"tests/a/test_b.py", "tests/algorithms/test_my_method.py"}
    assert [path for path in sorted(named - examples) if not (ROOT / path).exists()] == []


def _first_script(page: str) -> str:
    return (ROOT / page).read_text().partition("```python\n")[2].partition("```\n")[0]


def test_readme_and_site_begin_with_the_same_script() -> None:
    assert _first_script("README.md") == _first_script("docs/index.md") != ""


def test_the_numbers_of_the_first_screen_are_those_measured() -> None:
    def rows(name: str) -> dict[str, list[object]]:
        return {row[0]: row[1:] for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]}

    columns = json.loads((RESULTS / "time_to_target.json").read_text())["columns"][1:]
    recipe = rows("time_to_target")["vision: recipe"]
    ratio = columns.index("times the baseline's")
    low, high = str(recipe[ratio + 1]).split(" to ")
    seeds = str(recipe[columns.index("reached")]).rpartition(" ")[2]
    steps = {name.removeprefix("bare: "): row[3] for name, row in rows("step_overhead").items() if "bare" in name}
    saves = rows("checkpoints")
    numbers = [
        f"in {recipe[ratio]}×",
        f"confidence interval {low}–{high}, {seeds} seeds",
        f"{steps['composer']:.0f} µs per step",
        f"Accelerate adds {steps['Accelerate']:.0f} µs, Lightning {steps['Lightning']:.0f} µs",
        f"MosaicML Composer {steps['predecessor (mosaicml)']:,.0f} µs",
        f"pauses training for {saves['501 MB, asynchronous save'][0]:.0f} ms",
        f"`torch.save` takes {saves['501 MB, torch.save'][0]:.0f} ms",
    ]
    for page in ("README.md", "docs/index.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert [number for number in numbers if number not in text] == [], page


def test_the_picture_shows_the_latest_results() -> None:
    measured = json.loads((RESULTS / "time_to_target.json").read_text())["machine"]["date"]
    assert f"Measured {measured}" in PICTURE.read_text(), "run python -m docs.time_to_accuracy"
