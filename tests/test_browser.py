"""Tests that are skipped for want of a browser are told in the last lines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.design import ROOT

PAGE = """
import pathlib
from tests.browser import open_page

def test_page(tmp_path):
    (tmp_path / "page.html").write_text("x")
    with open_page(tmp_path / "page.html"):
        pass
"""


def test_skipped_pages_are_told(tmp_path: Path) -> None:
    """With the package's own conftest, and a PATH without browsers."""
    pytest.importorskip("playwright")
    (tmp_path / "test_page.py").write_text(PAGE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [*command, "-p", "no:xdist", str(tmp_path)], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "NOT TESTED in a browser: 1 skipped" in ended.stdout
    assert "1 skipped in" in ended.stdout


SUMMARY = """test:
\t@echo "NOT TESTED in a browser: 4 skipped"; echo "3 passed, 4 skipped in 1.00s"
lint types docs:
\t@true
"""


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("make") is None, reason="CI is Linux, with make")
@pytest.mark.parametrize("fails", [False, True])
def test_ci_installs_a_browser_and_tells_what_was_skipped(tmp_path: Path, fails: bool) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text(SUMMARY)
    install = tmp_path / ".ci" / "chromium"
    install.write_text(f"#!/bin/sh\necho installs\nexit {int(fails)}\n")
    install.chmod(0o755)
    ended = subprocess.run([tmp_path / ".ci" / "run"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.index("installs") < ended.stdout.index("== make test")
    assert ended.stdout.splitlines()[-1] == "NOT TESTED in a browser: 4 skipped"


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("has_browser", [False, True])
def test_the_installation_never_fails(tmp_path: Path, root: bool, has_browser: bool) -> None:
    """A machine without root, one whose apt fails, and one that needs nothing."""

    def command(name: str, text: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    command("id", f"echo {0 if root else 1000}")
    command("apt-get", "echo called >&2; exit 100")
    command("timeout", 'shift; exec "$@"')
    if has_browser:
        command("chromium", "exit 0")
    bash = shutil.which("bash")
    assert bash is not None
    ended = subprocess.run(
        [bash, ROOT / ".ci" / "chromium"], capture_output=True, text=True, env={"PATH": str(tmp_path)}
    )
    assert ended.returncode == 0, ended.stderr
    assert ("called" in ended.stderr) == (root and not has_browser)
    assert ("not tested in a browser" in ended.stdout) == (not has_browser)
