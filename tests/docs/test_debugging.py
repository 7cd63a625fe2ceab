"""The guides on debugging: their commands print what the pages show, up to the last digits of measured values."""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer import Algorithm
from composer.cli.main import main
from composer.trials import ForkServer, Target
from composer.trials.fork_server import can_fork
from composer.verification.causes import CAUSES
from composer.verification.findings import Report
from composer.verification.verify import _PROBE, CHECKS, verify
from docs import verification
from docs.hooks import on_page_markdown
from tests.docs.blocks import DOCS, blocks

pytest.importorskip("sklearn")

PAGE = "guides/debugging.md"
_COMMAND = re.compile(r"^```console\n\$ (?P<command>.+)\n(?P<output>(?:(?!```).*\n)*)```$", flags=re.M)
# Other processors round differently, and take another time.
_MEASURED = re.compile(r"\d+\.\d+|\d+(?= s\b)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the scripts of the page."""
    folder = tmp_path_factory.mktemp("page")
    scripts = {block.title: block.code for block in blocks(PAGE) if block.title is not None}
    for name, code in scripts.items():
        (folder / name).write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def commands(*programs: str) -> Iterator[tuple[list[str], str]]:
    """Yield the commands of the page that begin with some words, with their outputs."""
    for found in _COMMAND.finditer((DOCS / PAGE).read_text()):
        if found["command"].startswith(programs):
            yield shlex.split(found["command"]), found["output"]


def assert_shown(output: str, expected: str) -> None:
    """Compare an output with that of the page, in which three dots stand for anything."""
    given, shown = (_MEASURED.sub("#", text) for text in (output, expected))
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(shown, given, flags), output


def test_spike_is_recorded_blamed_and_replayed(folder, capsys, caplog) -> None:
    ran: list[str] = []
    for words, expected in commands("python", "composer blame", "composer replay"):
        if words[0] == "python":
            Target("script", words[1]).run()
            assert_shown("\n".join([*caplog.messages, capsys.readouterr().out]), expected)
            caplog.clear()
        else:
            before = sorted(folder.rglob("*"))
            assert main([*words[1:], "--", "spike.py"]) == 0  # a test is no program that a checkpoint records
            assert_shown(capsys.readouterr().out, expected)
            assert sorted(folder.rglob("*")) == before
        ran.append(" ".join(words[:2]))
    assert ran == ["python spike.py", "python common.py", "composer blame", "composer replay"]


@pytest.mark.slow
def test_verify_names_the_causes(folder, capsys, monkeypatch) -> None:
    with ForkServer([_PROBE.partition(":")[0]]) if can_fork() else contextlib.nullcontext() as server:
        # One for all calls: it imports torch.
        monkeypatch.setattr("composer.verification.verify.ForkServer", lambda *_: contextlib.nullcontext(server))
        _run_verify(folder, capsys)


def _run_verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[str] = []
    for words, expected in commands("composer verify"):
        if "FAILED" not in expected:
            continue  # the test below takes less time
        code = 0
        try:
            main(words[1:])
        except SystemExit as error:
            code = error.code
        assert_shown(capsys.readouterr().out, expected)
        assert code == 1
        ran.append(words[-1])
    assert ran == ["loss.py", "resume.py"]
    assert not (folder / "checkpoints").exists()


def test_corrected_callback_saves_its_counter(folder) -> None:
    warmup = runpy.run_path("warmup.py")["Warmup"]
    saved, loaded = warmup(), warmup()
    saved.num_steps = 7
    loaded.load_state_dict(saved.state_dict())
    assert vars(loaded) == vars(saved)
    assert isinstance(saved, Algorithm)


def test_corrected_loss_is_a_method_of_the_model() -> None:
    (fixed,) = (block for block in blocks(PAGE) if block.title is None)
    (script,) = (block for block in blocks(PAGE) if block.title == "loss.py")
    (wrong,) = (
        node for node in ast.walk(ast.parse(script.code)) if isinstance(node, ast.FunctionDef) and node.name == "loss"
    )
    (right,) = ast.parse(fixed.code).body
    assert isinstance(right, ast.FunctionDef)
    assert ast.dump(right.args) == ast.dump(wrong.args)
    assert ast.dump(right) != ast.dump(wrong)


def test_code_of_the_page_on_verify_runs(monkeypatch, capsys) -> None:
    """But for the trials, which other tests run."""
    example, environment = blocks("guides/verify.md")
    names: dict[str, Any] = {"__name__": "page"}
    example.run(names)
    environment.run(names)
    assert "only here" in capsys.readouterr().out
    called: list[inspect.BoundArguments] = []
    signature = inspect.signature(verify)

    def verified(*given: Any, **arguments: Any) -> Report:
        called.append(signature.bind(*given, **arguments))
        return Report([])

    monkeypatch.setattr("composer.verify", verified)
    names["test_training_resumes"]()
    assert set(called[0].arguments["checks"]) <= set(CHECKS)
    trainer = called[0].arguments["program"]()
    trainer.fit(duration="2ba")
    trainer.close()
    assert trainer.state.timestamp.batch == 2


def test_tables_have_each_check_and_cause() -> None:
    assert list(verification.RULES) == list(CHECKS)
    assert doctest.testmod(verification).failed == 0
    page = on_page_markdown((DOCS / "guides" / "verify.md").read_text())
    assert "<!-- verify" not in page
    assert re.findall(r"^\| `(\w+)`<br>", page.partition("## Causes")[2], flags=re.M) == list(CAUSES)
    shown = set(re.findall(r"\[(\w+)\]$", (DOCS / PAGE).read_text(), flags=re.M))
    assert len(shown) == 3
    assert shown <= set(CAUSES)
