"""CI commands end the processes that they start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.design import ROOT

MAKEFILE = "test lint types docs:\n\t@echo $$$$ >pid; sleep 60; true\n"


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("make") is None, reason="CI is Linux, with make")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to_all", [True, False], ids=["terminal", "process"])
def test_stopping_ends_running_jobs(number: signal.Signals, to_all: bool, tmp_path: Path) -> None:
    """make ignores Ctrl-C in the background of a script."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    with subprocess.Popen(
        [tmp_path / ".ci" / "run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as script:
        pid = tmp_path / "pid"
        try:
            while not pid.exists() or not pid.read_text().strip():
                assert script.poll() is None
                time.sleep(0.05)
            (os.killpg if to_all else os.kill)(script.pid, number)
            text = script.communicate(timeout=120)[0]
        finally:
            script.kill()
    assert script.returncode == 128 + number
    assert f"stopped by {number.name}" in text
    assert "make lint" not in text
    assert not Path("/proc", pid.read_text().strip()).exists()
