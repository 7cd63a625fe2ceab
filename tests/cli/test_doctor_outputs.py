"""``composer doctor`` as a command: where the page and the trace go, and mistakes before anything is measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer.cli.main import main
from composer.diagnosis.report import Report
from composer.diagnosis.verdict import Verdict
from tests.trials.programs import script

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command without the measurement; returns what that was called with."""
    monkeypatch.chdir(tmp_path)
    script(tmp_path, "pass")
    called: dict[str, Any] = {}

    def measured(target: Any, **given: Any) -> Report:
        called.update(given, target=target)
        return Report(Verdict("none", "No bottleneck."), 0.1, {"forward": 1.0}, steps=[{"forward": 0.1}])

    monkeypatch.setattr("composer.diagnosis.doctor.doctor", measured)

    def command(*words: str) -> dict[str, Any]:
        called.clear()
        program = next(Path().glob("*.py")).name
        called["code"] = main(["doctor", *words, program])
        return called

    return command


def test_the_page_is_written_and_the_trace_is_beside_it(run: Run, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("plotly")
    given = run("--html", "slow.html", "--json")
    assert given["trace"] == tmp_path / "slow.trace.json"
    assert "No bottleneck." in (tmp_path / "slow.html").read_text()
    out, error = capsys.readouterr()
    assert json.loads(out)["ok"]
    assert "slow.html" in error


def test_a_page_that_cannot_be_written_loses_no_report(run: Run, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plotly")

    def full(*_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(SystemExit, match="1"):
        run("--html", "slow.html", "--json")
    out, error = capsys.readouterr()
    assert json.loads(out)["ok"]
    assert "No space left on device" in error


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--html", "a.html", "--no-trace"], None),
        (["--html", "a.html", "--trace", "b.json.gz"], "b.json.gz"),
        (["--trace", "b.json"], "b.json"),
        ([], None),
    ],
)
def test_the_trace_is_recorded_where_it_is_wanted(run: Run, tmp_path: Path, words: list[str], name: str | None) -> None:
    assert run(*words)["trace"] == (None if name is None else tmp_path / name)
    assert (tmp_path / "a.html").exists() == ("--html" in words)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--html", "log.csv"], "log.csv"),
        (["--trace", "log.csv"], "log.csv"),
        (["--trace", "log.json.gz"], "log.json.gz"),
        (["--html", "a.html"], "a.trace.json"),
    ],
)
def test_a_file_of_another_kind_is_left_alone(run: Run, capsys: Any, words: list[str], name: str) -> None:
    Path(name).write_text("step,loss")
    with pytest.raises(SystemExit, match="2"):
        run(*words)
    assert f"{name}' exists, and is not a " in capsys.readouterr().err
    assert Path(name).read_text() == "step,loss"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--html", "no/a.html"], "--html='no/a.html': there is no folder 'no'"),
        (["--html", "."], "--html='.' is a folder"),
        (["--trace", "no/a.json"], "--trace='no/a.json': there is no folder"),
        (["--html", "a.html", "--trace", "a.html"], "name the same file"),
        (["--trace", "a.json", "--no-trace"], "not allowed with"),
    ],
)
def test_mistakes_come_before_anything_is_measured(run: Run, capsys: Any, words: list[str], error: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*words)
    assert ended.value.code == 2
    assert error in capsys.readouterr().err


def test_a_missing_library_is_named_before_anything_is_measured(
    run: Run, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert run("--html", "a.html") == {"code": 1}
    assert "pip install 'composer-torch[report]'" in capsys.readouterr().err
