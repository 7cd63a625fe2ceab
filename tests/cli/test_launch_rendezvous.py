"""A run on one node listens on loopback only, in the launcher and in the ranks, however it is started."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore

from composer.cli import launcher
from composer.cli.launch_logs import RankLogs
from composer.cli.launch_options import parse
from composer.cli.launch_plan import make_plan
from composer.cli.launch_rendezvous import BACKEND, LoopbackRendezvous
from tests.design import ROOT

# What each rank does: exchange something, and say which sockets it and the launcher listen on.
SCRIPT = """
import json, os, sys
from pathlib import Path
import psutil, torch
from composer import dist

def listening(process):
    return [one.laddr for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]

dist.initialize_dist("cpu")
dist.all_gather_object(dist.get_global_rank())
me = psutil.Process()
found = {"rank": listening(me), "launcher": listening(me.parent()), "address": os.environ.get("MASTER_ADDR")}
Path(sys.argv[1], os.environ.get("RANK", "0")).write_text(json.dumps(found))
dist.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("options", "environ"),
    [(["-n", "2"], {}), (["-n", "2"], {"MASTER_ADDR": socket.gethostname(), "MASTER_PORT": "free"})],
    ids=["plain", "static"],
)
def test_only_loopback(options: list[str], environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    if environ.get("MASTER_PORT") == "free":
        with socket.create_server(("127.0.0.1", 0)) as server:
            environ = {**environ, "MASTER_PORT": str(server.getsockname()[1])}
    given = {name: value for name, value in os.environ.items() if name not in ("GLOO_SOCKET_IFNAME", "MASTER_PORT")}
    command = [sys.executable, "-m", "composer.cli", *options, str(tmp_path / "script.py"), str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**given, **environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    world_size = int(options[1])
    message = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(world_size)]
    assert message[0]["launcher"], "the launcher keeps the store"
    for one in message:
        assert {address for address, _ in [*one["rank"], *one["launcher"]]} == {"127.0.0.1"}
        assert one["address"] == "127.0.0.1"


def test_a_process_without_a_launcher(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    environ = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path)],
        env={**environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=120,
    )
    assert {address for address, _ in json.loads((tmp_path / "0").read_text())["rank"]} <= {"127.0.0.1"}


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        (["-n", "2", "--max-restarts", "1"], BACKEND),
        (["-n", "2", "--nnodes", "1:1", "--rdzv-endpoint", "host:29400"], BACKEND),
        (["-n", "2", "--rdzv-backend", "c10d"], BACKEND),
        (["-n", "2", "--rdzv-backend", "etcd", "--rdzv-endpoint", "host:2379"], "etcd"),
        (["-n", "2", "--nnodes", "1:2", "--rdzv-endpoint", "host:29400"], "c10d"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_which_runs_host_a_store(options: list[str], backend: str) -> None:
    plan = make_plan(parse([*options, "-c", "true"]), {})
    assert launcher._config(plan, RankLogs(None, None)).rdzv_backend == backend


def test_each_attempt_has_an_empty_store() -> None:
    rendezvous = LoopbackRendezvous(0, "night")
    files = psutil.Process().num_fds()
    for _ in range(5):
        found = rendezvous.next_rendezvous()
        store = TCPStore(
            found.bootstrap_store_info.master_addr, found.bootstrap_store_info.master_port, is_master=False
        )
        assert not store.check(["address"])
        store.set("address", "of the first attempt")
    del found, store
    assert rendezvous.shutdown()
    assert rendezvous.is_closed()
    assert psutil.Process().num_fds() <= files + 4, "sockets are left open"


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(RuntimeError, match=rf"port {port} of this node is in use .*Leave out --master_port"):
            LoopbackRendezvous(port, "night").next_rendezvous()
