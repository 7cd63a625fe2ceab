"""``composer -n N script.py``, with real processes: their environment, their exit, and that none is left."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer.cli import launcher
from composer.cli.launch_plan import Plan
from tests.cli.test_cluster_placement import slurm
from tests.design import ROOT
from tests.older_torch import HAS_GRACE_PERIOD

# For a machine that is busy with much else; nothing takes so long by itself.
LIMIT = 240.0

# Reports its environment, holds a lock while it lives, and then runs the given action.
PROGRAM = """
import fcntl, json, os, signal, sys, time
folder, *what = sys.argv[1:]
rank, attempt = os.environ["RANK"], os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")

def save(signum, frame):
    with open(f"{folder}/saved{rank}", "w") as file:
        file.write(signal.Signals(signum).name)
    sys.exit(128 + signum)

signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
lock = open(f"{folder}/lock{rank}", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
told = {"pid": os.getpid(), "arguments": what, "environment": dict(os.environ)}
with open(f"{folder}/told{attempt}-{rank}.part", "w") as file:
    json.dump(told, file)
os.rename(file.name, file.name[:-5])
print(f"output of {rank}")
while "stay" in what:
    time.sleep(0.05)
if rank == "1":
    while not os.path.exists(f"{folder}/told{attempt}-0"):
        time.sleep(0.05)
    if "leave" in what:
        sys.exit("the reason")
    if "first" in what and attempt == "0":
        raise ValueError("the reason")
elif "leave" in what or "first" in what and attempt == "0":
    time.sleep(1000)
"""


class Launch:
    """A launcher and its ranks.

    Args:
        folder: Where they write.
        arguments: For the launcher, the script's after those.
        what: For the script.
        environ: Environment variables that are not those of the tests.
    """

    def __init__(self, folder: Path, arguments: list[str], what: list[str], **environ: str) -> None:
        self.folder = folder
        script = folder / "script.py"
        script.write_text(PROGRAM)
        names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}
        kept = {name: value for name, value in os.environ.items() if name not in names | {"OMP_NUM_THREADS"}}
        (folder / "tmp").mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "composer", *arguments, str(script), str(folder), *what],
            env={**kept, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
        )

    def told(self, rank: int, attempt: int = 0) -> dict:
        """What a rank reported."""
        return json.loads((self.folder / f"told{attempt}-{rank}").read_text())

    def wait_until_ranks_run(self) -> None:
        """Wait until both hold their locks."""
        end = time.monotonic() + LIMIT
        while not all((self.folder / f"told0-{rank}").exists() for rank in range(2)):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, "the ranks did not start"
            time.sleep(0.05)

    def end(self) -> tuple[int, str, str]:
        """Wait for the launcher; return its exit code and what it and the first rank wrote."""
        output, errors = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, output, errors

    def no_processes_left(self) -> bool:
        """Whether the ranks are gone: the system takes their locks back when they are, even before they are reaped."""
        end = time.monotonic() + LIMIT
        for rank in range(2):
            with (self.folder / f"lock{rank}").open("w") as file:
                while time.monotonic() < end:
                    with contextlib.suppress(BlockingIOError):
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    time.sleep(0.05)
                else:
                    return False
        return True


@pytest.fixture
def start(tmp_path) -> Iterator:
    started: list[Launch] = []

    def start(arguments: list[str], *what: str, **environ: str) -> Launch:
        started.append(Launch(tmp_path, arguments, list(what), **environ))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


def test_rank_environment(start, tmp_path) -> None:
    pattern = str(tmp_path / "logs" / "{rank}.txt")
    launch = start(["-n", "2", "--stdout", pattern, "--stderr", pattern], "--key", "$RANK of $WORLD_SIZE")
    code, output, errors = launch.end()
    assert (code, output) == (0, "output of 0\n")
    assert "composer: " not in errors
    assert (tmp_path / "logs" / "1.txt").read_text() == "output of 1\n"
    ranks = [launch.told(rank) for rank in range(2)]
    for rank, told in enumerate(ranks):
        environ = told["environment"]
        assert told["arguments"] == ["--key", f"{rank} of 2"]
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "PYTHONUNBUFFERED")
        assert [environ[name] for name in names] == [str(rank), str(rank), "2", "2", "0", "1"]
        assert environ["MASTER_ADDR"] == "127.0.0.1"
        assert int(environ["OMP_NUM_THREADS"]) >= 1
        assert not [name for name in environ if name.startswith("COMPOSER_LAUNCHER")]
    assert len({told["environment"]["MASTER_PORT"] for told in ranks}) == 1
    assert not list((tmp_path / "tmp").glob("composer-launch-*"))


def test_failed_rank_stops_all(start, tmp_path) -> None:
    launch = start(["-n", "2"], "leave")
    code, output, errors = launch.end()
    assert (code, output) == (1, "output of 0\n")
    assert launch.no_processes_left()
    [log] = (tmp_path / "tmp").glob("composer-launch-*/*rank1.stderr.txt")
    pid = launch.told(1)["pid"]
    first = f"composer: rank 1 (process {pid}) failed with exit code 1. The end of {log}:"
    assert f"{first}\n\nthe reason\n" in errors
    assert "composer: then" not in errors
    assert (tmp_path / "saved0").read_text() == "SIGTERM"
    assert (log.parent / "attempt0-rank1.stdout.txt").read_text() == "output of 1\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signals_are_forwarded(name: str, start, tmp_path) -> None:
    launch = start(["-n", "2"], "stay")
    launch.wait_until_ranks_run()
    launch.process.send_signal(signal.Signals[name])
    code, _, errors = launch.end()
    assert code == 128 + signal.Signals[name]
    assert [(tmp_path / f"saved{rank}").read_text() for rank in range(2)] == [name, name]
    assert f"composer: stopped by {name}\n" in errors
    assert launch.no_processes_left()


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere the system cannot be told to end ranks with their parent"
)
def test_no_rank_outlives_a_launcher_that_is_killed(start, tmp_path) -> None:
    launch = start(["-n", "2"], "stay")
    launch.wait_until_ranks_run()
    launch.process.kill()
    assert launch.end()[0] == -signal.SIGKILL
    assert launch.no_processes_left()
    assert not list(tmp_path.glob("saved*"))


def test_killed_rank_stops_all(start, tmp_path) -> None:
    launch = start(["-n", "2"], "stay")
    launch.wait_until_ranks_run()
    pid = launch.told(0)["pid"]
    os.kill(pid, signal.SIGKILL)
    code, _, errors = launch.end()
    assert code == 128 + signal.SIGKILL
    assert f"composer: rank 0 (process {pid}) was killed by SIGKILL" in errors
    assert launch.no_processes_left()
    assert (tmp_path / "saved1").read_text() == "SIGTERM"


def test_restarts(start) -> None:
    launch = start(["-n", "2", "--max-restarts", "1"], "first")
    code, output, errors = launch.end()
    assert (code, output) == (0, "output of 0\noutput of 0\n"), errors
    assert re.search(r"^composer: rank \d \(process \d+\) failed with exit code 1", errors, re.MULTILINE)
    assert "composer: restart 1 of 1\n" in errors
    assert "ValueError: the reason" in errors
    # Of the launcher, which makes one for each attempt: an older one has the addresses of the attempt before.
    assert {launch.told(rank, 1)["environment"]["TORCHELASTIC_USE_AGENT_STORE"] for rank in range(2)} == {"True"}


def test_a_rank_of_slurm_needs_no_launcher_above_it(start, tmp_path) -> None:
    environ = slurm(1, [2])
    launch = start(["--stdout", str(tmp_path / "{rank}.txt")], **environ)
    (tmp_path / "told0-0").touch()
    assert launch.end() == (0, "", "")
    assert (tmp_path / "1.txt").read_text() == "output of 1\n"
    told = launch.told(1)
    assert told["pid"] == launch.process.pid
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR")
    assert [told["environment"][name] for name in names] == ["1", "1", "2", "2", "0", "127.0.0.1"]


def test_usage_errors_exit_with_2(capsys, tmp_path) -> None:
    for arguments, told in [
        (["-n", "2", str(tmp_path / "none.py")], "there is no script"),
        (["-n", "2", "-m", "-c", "x"], "mutually exclusive"),
        (["--nproc=x", "-c", "true"], "--nproc must be a number of ranks"),
    ]:
        with pytest.raises(SystemExit) as left:
            launcher.main(arguments)
        assert left.value.code == 2
        assert told in capsys.readouterr().err


def test_rendezvous_errors_are_reported(capsys) -> None:
    assert (
        launcher.main(["-n", "1", "--rdzv-backend", "no-such-backend", "--rdzv-endpoint", "here:1", "-c", "true"]) == 1
    )
    assert "no-such-backend" in capsys.readouterr().err


def test_ignored_signals_stay_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    from composer.cli.launch_logs import RankLogs

    logs = RankLogs(None, None)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signals = launcher._config(Plan(("true",), 1), logs).signals_to_handle.split(",")
    finally:
        signal.signal(signal.SIGHUP, before)
        logs.close(keep=False)
    assert "SIGHUP" not in signals
    assert {"SIGTERM", "SIGINT", "SIGUSR1"} <= set(signals)


def test_signal_handlers_are_restored() -> None:
    before = [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    assert launcher.launch(Plan(("true",), 1, max_restarts=1)) == 0
    assert [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in os.environ


def _rendezvous(endpoint: str, **more: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    plan = Plan(("true",), 1, nodes=(1, 2), endpoint=endpoint, local_addr=None, **more)
    settings["address"] = launcher._complete_rendezvous(plan, settings)
    return settings


def test_rendezvous_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch sees by itself that loopback is here, and the name of this machine; not that another address is."""
    monkeypatch.setattr("composer.dist.rendezvous.interfaces.source_address", lambda host: f"towards {host}")
    monkeypatch.setattr(
        "composer.dist.rendezvous.interfaces.is_local_address", lambda host, port: (host, port) == ("fd00::1", 7)
    )
    assert _rendezvous("localhost:29500") == {"address": "towards localhost"}
    assert _rendezvous("[fd00::1]:7") == {"address": "towards fd00::1", "is_host": "true"}
    assert _rendezvous("[fd00::1]:8") == {"address": "towards fd00::1"}
    assert _rendezvous("[fd00::1]:7", backend="etcd-v2") == {"address": "towards fd00::1"}
    assert _rendezvous("elsewhere") == {"address": None}


def test_rendezvous_endpoint_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds: list[tuple[int, float]] = []
    monkeypatch.setattr("composer.dist.rendezvous.keepalive.set_keepalive", lambda *bound: bounds.append(bound))
    launcher._set_connection_timeout(Plan(("true",), 1))
    launcher._set_connection_timeout(Plan(("true",), 1, nodes=(2, 2), endpoint="a:7"))
    launcher._set_connection_timeout(Plan(("true",), 1, nodes=(1, 2), endpoint="a:8", rdzv_conf={"read_timeout": "5"}))
    assert bounds == [(7, 60.0), (8, 5.0)]


def test_grace_period() -> None:
    from composer.cli.launch_logs import RankLogs

    logs = RankLogs(None, None)
    by_default, given = Plan(("true",), 1), Plan(("true",), 1, grace_period=7)
    if HAS_GRACE_PERIOD:
        assert launcher._config(by_default, logs).shutdown_timeout == 120
        assert launcher._config(given, logs).shutdown_timeout == 7
    else:
        launcher._config(by_default, logs)
        with pytest.raises(ValueError, match="--grace_period requires a newer version of torch"):
            launcher._config(given, logs)
    logs.close(keep=False)
