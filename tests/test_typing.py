"""Type checking of user scripts against the package, in basic mode."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.design import ROOT
from tests.stubs import lazy_modules, stub

SCRIPTS = Path(__file__).parent / "typing"


@pytest.mark.parametrize(("name", "path"), lazy_modules().items(), ids=lambda value: str(value).rpartition("/")[2])
def test_stubs_match_the_lazy_tables(name: str, path: Path) -> None:
    assert path.exists() and path.read_text() == stub(name), "names came or went; run: python -m tests.stubs"


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> list[tuple[str, int, str, str]]:
    """File, line, severity and rule of what the checker says about the scripts."""
    pytest.importorskip("basedpyright")
    folder = tmp_path_factory.mktemp("typing")
    for script in SCRIPTS.glob("*.py"):
        (folder / script.name).write_text(script.read_text())
    config = {"typeCheckingMode": "basic", "extraPaths": [str(ROOT)], "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, "--project", str(folder)], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["severity"], one.get("rule", ""))
        for one in found
    ]


@pytest.mark.slow
def test_a_script_of_a_user_has_no_errors(reports) -> None:
    assert [one for one in reports if one[0] == "user_script.py" and one[2] == "error"] == []


@pytest.mark.slow
def test_mistakes_are_found(reports) -> None:
    """Were the names of the facades unknown to the checker, it would let everything pass."""
    lines = (SCRIPTS / "mistakes.py").read_text().splitlines()
    wanted = {(n, rule[1]) for n, line in enumerate(lines, 1) if (rule := re.search(r"# (report\w+)$", line))}
    assert len(wanted) == 9
    assert {
        (line, rule) for file, line, severity, rule in reports if file == "mistakes.py" and severity == "error"
    } == wanted
