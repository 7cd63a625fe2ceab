"""Start-up of a rank before its program runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from composer.cli import launch_rank
from composer.cli.launch_rank import (
    STDERR_FILE,
    STDOUT_FILE,
    exec_program,
    expand,
    log_files,
    rank_environment,
    usable_cores,
)


def start(*command: str, launcher: int | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the script as the launcher does."""
    before = [sys.executable, "-I", "-S", launch_rank.__file__, str(os.getpid() if launcher is None else launcher)]
    settings = {"capture_output": True, "text": True, "check": False, "timeout": 120}
    return subprocess.run([*before, *command], env={**os.environ, **environ}, **settings)


def test_process_execs_the_program() -> None:
    done = start(sys.executable, "-c", "import os, sys; print(os.getppid(), sys.argv[1:])", "$RANK", RANK="7")
    assert (done.returncode, done.stdout) == (0, f"{os.getpid()} ['7']\n"), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_program_does_not_inherit_ignored_signals() -> None:
    done = start("grep", "SigIgn", "/proc/self/status")
    assert not int(done.stdout.split()[1], 16) & 1 << (signal.SIGPIPE - 1)


def test_both_streams_into_one_file(tmp_path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("before\n")
    done = start("sh", "-c", "echo out; echo err >&2; env", **{STDOUT_FILE: str(path), STDERR_FILE: str(path)})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    lines = path.read_text().splitlines()
    assert lines[:3] == ["before", "out", "err"]
    assert not [line for line in lines if line.startswith("COMPOSER_LAUNCHER")]


def test_program_that_cannot_run_is_reported() -> None:
    done = start("/no/such/program")
    assert done.returncode == 126
    assert done.stderr.startswith("composer: cannot run '/no/such/program': ")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does this")
def test_exits_if_its_launcher_is_gone() -> None:
    done = start("echo", "begun", launcher=os.getpid() + 1)
    assert (done.returncode, done.stdout) == (128 + signal.SIGKILL, "")


def test_error_leaves_the_process_unchanged(tmp_path) -> None:
    before = signal.getsignal(signal.SIGPIPE)
    with pytest.raises(FileNotFoundError):
        exec_program([str(tmp_path / "none")], {})
    assert signal.getsignal(signal.SIGPIPE) == before


def test_expand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path("/somewhere")))
    monkeypatch.setenv("LR", "0.1")
    assert expand(["~/data", "--lr=$LR", "a~b", "$5"]) == ["/somewhere/data", "--lr=0.1", "a~b", "$5"]


def test_threads_are_split_among_ranks() -> None:
    assert "OMP_NUM_THREADS" not in rank_environment(1, {})
    assert "OMP_NUM_THREADS" not in rank_environment(4, {"OMP_NUM_THREADS": "2"})
    assert rank_environment(10**6, {})["OMP_NUM_THREADS"] == "1"
    assert int(rank_environment(2, {})["OMP_NUM_THREADS"]) == max(usable_cores() // 2, 1)
    assert int(rank_environment(2, {}, bound=True)["OMP_NUM_THREADS"]) == usable_cores()


def test_log_files(tmp_path) -> None:
    environ = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}
    pattern = f"{tmp_path}/{{node_rank}}/{{rank:03}}-{{local_rank}}-{{world_size}}-{{local_world_size}}"
    assert log_files(pattern, None, environ) == {STDOUT_FILE: f"{tmp_path}/1/003-1-4-2"}
    assert (tmp_path / "1").is_dir()
    assert log_files(None, None, environ) == {}
