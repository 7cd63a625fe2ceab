"""The command ``composer``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from composer import __version__
from composer.cli.main import main
from tests.design import ROOT


def test_version(capsys) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"composer {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["checkpoint"], ["checkpont"], ["checkpoint", "inspect"]])
def test_missing_or_mistyped_arguments_are_reported(arguments, capsys) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert "usage: composer" in error or "--help" in error


def test_errors_are_one_line(capsys, tmp_path) -> None:
    assert main(["checkpoint", "inspect", str(tmp_path / "none.pt")]) == 1
    assert capsys.readouterr().err == f"composer: There is no checkpoint '{tmp_path / 'none.pt'}'.\n"


@pytest.mark.parametrize("module", ["composer", "composer.cli", "composer.cli.launcher", "composer.cli.main"])
def test_entry_points(module: str) -> None:
    program = f"import runpy, sys; sys.argv[1:] = ['--help']; runpy.run_module({module!r}, run_name='__main__')"
    heavy = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules))"
    command = [sys.executable, "-c", f"{heavy}; {program}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "usage: composer [-n N] [OPTION ...] SCRIPT [ARGUMENT ...]"
    # Help comes at once.
    assert lines[-1] == "False"


def test_ctrl_c_is_one_line(capsys, monkeypatch) -> None:
    """Also while modules are imported."""

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("composer.cli.main._run", interrupt)
    assert main(["fork"]) == 130
    assert capsys.readouterr().err == "composer: interrupted\n"


def test_as_a_process(tmp_path) -> None:
    command = [sys.executable, "-m", "composer.cli.main", "checkpoint", "inspect", str(tmp_path / "none.pt")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith("composer: There is no checkpoint")) == (1, True)
