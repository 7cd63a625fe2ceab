"""``composer verify`` as a command: a signal ends all processes, and removes the temporary folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from composer.trials.fork_server import can_fork
from composer.trials.termination import Terminated, terminate_cleanly
from tests.design import ROOT
from tests.trials.programs import gone, script

SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


@pytest.mark.slow
@pytest.mark.skipif(not can_fork(), reason="forks processes")
@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_ends_all_and_leaves_no_folder(tmp_path: Path, signum: signal.Signals) -> None:
    begun, temporary = tmp_path / "begun", tmp_path / "temporary"
    temporary.mkdir()
    target = script(tmp_path / "program", f"open({str(begun)!r}, 'w'); os.fork(); time.sleep(600)")
    command = [sys.executable, "-m", "composer.cli", "verify", target.name]
    given = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    with subprocess.Popen(command, env=given, stderr=subprocess.PIPE, text=True) as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signum)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 128 + signum
    assert error.endswith("composer: interrupted; all runs were ended.\n")
    assert not list(temporary.glob("composer-verify-*"))
    assert gone(str(tmp_path))


def test_signals_are_handled_in_the_block_only() -> None:
    before = [signal.getsignal(signum) for signum in SIGNALS]
    with pytest.raises(Terminated, match="SIGTERM") as caught, terminate_cleanly():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.signum == signal.SIGTERM
    assert [signal.getsignal(signum) for signum in SIGNALS] == before


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminate_cleanly():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
