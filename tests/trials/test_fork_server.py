"""The fork server has neither threads nor state of a trial, and modules cannot disturb what it answers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from composer.trials import ForkServer
from composer.trials.fork_server import Forked, can_fork
from tests.trials.programs import run, script

pytestmark = pytest.mark.skipif(not can_fork(), reason="forks processes")


def test_forks_are_made_without_threads_and_share_nothing_later(tmp_path: Path, server: ForkServer) -> None:
    text = """
import json, random
told = [len(os.listdir("/proc/self/task")), hash("x"), hasattr(torch, "left"), os.environ.pop("LEFT", None), sys.argv]
torch.left = True
os.environ["LEFT"] = "1"
print(json.dumps(told))
trainer().fit()
"""
    assert len(list(Path(f"/proc/{server.pid}/task").iterdir())) == 1
    target = script(tmp_path, text)
    logs = [(run(tmp_path, target, server).path / "log.txt").read_text() for _ in range(2)]
    first, second = (json.loads(log.splitlines()[0]) for log in logs)
    assert first == second, "also the hashes of strings: the order of sets is the same"
    assert first[2:] == [False, None, [target.name]]
    assert first[0] <= 2, "the watchdog of faulthandler at most"


def test_threads_that_end_before_a_fork_do_not_hinder_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's OpenBLAS starts threads when it is imported; a Python for each trial would take seconds."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with ForkServer(["numpy"]) as server:
        record = run(tmp_path, script(tmp_path / "program", "print(sys.orig_argv)\ntrainer().fit()"), server)
    assert record.outcome == "completed"
    assert "composer.trials.fork_server" in (record.path / "log.txt").read_text().splitlines()[0]


NOISY = """
import sys, threading, time
print("noise", flush=True)
sys.stdin.read()
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


def test_modules_that_print_and_start_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks then start a Python each: what a thread holds is not copied into a fork."""
    (tmp_path / "noisy.py").write_text(NOISY)
    (tmp_path / "torch.py").write_text("raise ImportError('not needed here')\n")  # the server must not need seconds
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}")
    program = tmp_path / "program"
    with ForkServer(["noisy", "no_such_module"]) as server:
        record = run(tmp_path, script(program, ""), server)
    assert record.error == "It exited with code 1 before Trainer.fit returned."
    assert "not needed here" in record.details
    assert "composer/trials/worker.py" in record.details


def test_a_process_with_the_id_of_an_earlier_one_has_its_own_code(tmp_path: Path, server: ForkServer) -> None:
    """In a long study the system gives process IDs again."""
    (tmp_path / "empty").mkdir()
    first = server.start(tmp_path / "empty", os.environ, ranks=1, seconds=30)  # no trial is described there
    assert first.wait(30) == 1
    later = Forked(server, first.pid, number=1000)
    assert later.poll() is None
    assert first.poll() == 1
