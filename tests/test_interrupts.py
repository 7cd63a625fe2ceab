"""Ctrl-C while modules are imported."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from composer._interrupts import CtrlC, between_imports
from tests.design import ROOT

# A module whose import is interrupted, and which swallows what that raises.
MODULE = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
except BaseException:
    raise RuntimeError("half imported")
"""
COMMAND = """
import os, signal, sys
from composer.cli.main import main
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == NAME:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except BaseException:
                pass
sys.meta_path.insert(0, Interrupting())
sys.exit(main(["env"]))
"""


@pytest.fixture
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "interrupted_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("_module")
def test_an_import_ends_before_ctrl_c_is_raised() -> None:
    def run() -> None:
        import interrupted_module  # pyright: ignore[reportMissingImports]

        ended.append(interrupted_module.__name__)
        while True:
            pass

    ended: list[str] = []
    with CtrlC("interrupted", 130) as ctrl_c:
        ctrl_c.raises()
        with pytest.raises(KeyboardInterrupt):
            run()
    assert ended == ["interrupted_module"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_outside_imports_is_handled_at_once() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, between_imports(seen.append))
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]


def test_a_process_that_ignores_ctrl_c_goes_on_doing_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with CtrlC("interrupted", 130):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


# Before the commands are imported, and with them.
@pytest.mark.parametrize("name", ["composer.cli.usage", "composer.cli.blame"])
def test_ctrl_c_while_a_command_starts_is_a_line_and_its_status(name: str) -> None:
    command = [sys.executable, "-c", COMMAND.replace("NAME", repr(name))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "composer: interrupted\n")


def test_the_status_is_not_that_of_a_signal(tmp_path: Path) -> None:
    # As a data class does, whose methods are strings.
    (tmp_path / "ended.py").write_text(
        "import sys\nfrom composer._interrupts import CtrlC\nwith CtrlC('interrupted', 130):\n    try:\n"
        "        exec('raise KeyboardInterrupt')\n    except KeyboardInterrupt:\n        pass\nsys.exit(130)\n"
    )
    command = [sys.executable, "-m", "ended"]
    environment = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    assert subprocess.run(command, cwd=tmp_path, env=environment, check=False).returncode == 130
