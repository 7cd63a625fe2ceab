"""Which ranks are launched on which node."""

from __future__ import annotations

import sys

import pytest
import torch

from composer.cli.launch_options import parse
from composer.cli.launch_plan import Plan, make_plan
from tests.cli.test_cluster_placement import open_mpi, slurm

TWO_NODES = ["-n", "4", "--world_size", "8", "--master_addr", "host", "--master_port", "1234"]


def plan(*arguments: str, **environ: str) -> Plan:
    return make_plan(parse([*arguments, "-c", "ls"]), environ)


def test_one_node() -> None:
    made = plan("-n", "2")
    assert (made.nproc, made.nodes, made.backend, made.endpoint) == (2, (1, 1), "c10d", "127.0.0.1:0")
    assert made.local_addr == "127.0.0.1"
    assert made.run_id != plan("-n", "2").run_id
    fixed = plan("-n", "2", "--master_port", "1234")
    assert (fixed.backend, fixed.endpoint, fixed.node_rank) == ("static", "127.0.0.1:1234", 0)


@pytest.mark.parametrize(("devices", "expected"), [(0, 1), (3, 3)])
def test_as_many_ranks_as_accelerators(devices: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: devices)
    assert plan().nproc == plan("-n", "auto").nproc == expected
    assert plan(LOCAL_WORLD_SIZE="5").nproc == 5
    assert plan("-n", "auto", LOCAL_WORLD_SIZE="5").nproc == expected
    assert plan("-n", "2", LOCAL_WORLD_SIZE="5").nproc == 2


@pytest.mark.parametrize("rank", [["--node_rank", "1"], ["--base_rank", "4"], ["--node_rank", "1", "--base_rank", "4"]])
def test_multiple_nodes(rank: list[str]) -> None:
    made = plan(*TWO_NODES, *rank)
    assert (made.nodes, made.node_rank, made.backend, made.endpoint) == ((2, 2), 1, "static", "host:1234")
    assert made.expected["WORLD_SIZE"] == 8


def test_multiple_nodes_from_the_environment() -> None:
    environ = {"WORLD_SIZE": "8", "NODE_RANK": "1", "MASTER_ADDR": "host", "MASTER_PORT": "1234"}
    assert plan("-n", "4", **environ) == plan(*TWO_NODES, "--node_rank", "1")
    assert plan("-n", "4", "--node_rank", "0", **environ).node_rank == 0


def test_nodes_with_different_numbers_of_ranks() -> None:
    where = ["--nnodes", "2", "--world_size", "7", "--master_addr", "host", "--master_port", "1"]
    made = plan("-n", "3", "--node_rank", "1", "--base_rank", "4", *where)
    assert (made.nodes, made.node_rank, made.expected) == ((2, 2), 1, {"WORLD_SIZE": 7, "RANK": 4})


def test_elastic() -> None:
    where = ["-n", "2", "--nnodes", "1:4", "--rdzv-endpoint", "host:1"]
    made = plan(*where, "--max-restarts", "3", "--rdzv-conf", "a=1,b=2")
    assert (made.nodes, made.backend, made.endpoint, made.max_restarts) == ((1, 4), "c10d", "host:1", 3)
    assert (made.rdzv_conf, made.run_id, made.local_addr) == ({"a": "1", "b": "2"}, "composer", None)
    assert plan(*where, "--rdzv-backend", "etcd-v2").backend == "etcd-v2"
    alone = plan("-n", "2", "--max_restarts", "3")
    assert (alone.backend, alone.endpoint, alone.max_restarts) == ("c10d", "127.0.0.1:0", 3)


def test_one_slurm_task_per_node() -> None:
    made = plan("-n", "4", **slurm(1, [1, 1]))
    assert (made.nodes, made.node_rank, made.rank) == ((2, 2), 1, None)
    host, _, port = made.endpoint.partition(":")
    assert (host, made.backend) == ("gpu03", "static")
    assert 20000 <= int(port) < 32000
    elastic = plan("-n", "4", "--nnodes", "1:2", **slurm(1, [1, 1]))
    assert (elastic.endpoint, elastic.backend) == (made.endpoint, "c10d")


def test_one_slurm_task_per_rank() -> None:
    made = plan(**slurm(3, [2, 2]))
    assert made.rank is not None
    port = made.rank.pop("MASTER_PORT")
    assert 20000 <= int(port) < 32000
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    assert made.rank == {**dict(zip(names, ["3", "4", "1", "2", "1"], strict=True)), "MASTER_ADDR": "gpu03"}
    assert plan("-n", "2", **slurm(3, [2, 2])) == plan(**slurm(3, [2, 2]))
    alone = plan(**slurm(2, [2, 1])).rank
    assert alone is not None
    assert (alone["RANK"], alone["LOCAL_WORLD_SIZE"], alone["NODE_RANK"]) == ("2", "1", "1")


def test_one_mpi_process_per_rank() -> None:
    made = plan("--master_addr", "host", "--master_port", "1", **open_mpi(3, 4, 1, 2))
    assert made.rank is not None
    assert (made.rank["RANK"], made.rank["MASTER_ADDR"], made.rank["MASTER_PORT"]) == ("3", "host", "1")


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        (["-n", "0"], {}, "--nproc must be a number of ranks, 1 or more, or 'auto', but got '0'"),
        (["-n", "autto"], {}, "Did you mean 'auto'"),
        (["-m"], {}, "mutually exclusive"),
        (["-n", "1", "--stdout", "{rnk}"], {}, "unknown placeholder 'rnk'.* Did you mean 'rank'"),
        (["-n", "1", "--stderr", "{"], {}, "--stderr='{' has the unknown placeholder"),
        (["-n", "1", "--max_restarts", "-1"], {}, "--max_restarts must be 0 or greater"),
        (["-n", "1", "--grace_period", "-1"], {}, "--grace_period must be 0 or greater"),
        (["-n", "1", "--monitor_interval", "0"], {}, "--monitor_interval must be greater than 0"),
        (["-n", "1", "--nnodes", "4:1"], {}, "--nnodes must be a number of nodes or a range"),
        (["-n", "1", "--rdzv_conf", "timeout"], {}, "--rdzv_conf must read like"),
        (["-n", "1", "--node_rank", "1"], {}, "--node_rank=1 must be 0 on a single node"),
        (["-n", "1", "--base_rank", "1"], {}, "--base_rank=1 must be 0 on a single node"),
        (["-n", "1", "--master_port", "70000"], {}, "--master_port=70000 must be between"),
        (["-n", "1", "--master_port", "7", "--max_restarts", "1"], {}, "each restart uses a new port"),
        (["-n", "1"], {"MASTER_PORT": "x"}, "MASTER_PORT must be an integer, but is 'x'"),
        (["-n", "4", "--world_size", "2"], {}, "--world_size=2 .WORLD_SIZE. is less than"),
        (["-n", "4", "--world_size", "6", "--node_rank", "0"], {}, "not a multiple of --nproc=4"),
        (["-n", "4", "--world_size", "8", "--nnodes", "1"], {}, "conflict with --world_size=8"),
        (TWO_NODES, {}, "--node_rank, the rank of this node from 0, is required"),
        ([*TWO_NODES, "--base_rank", "3"], {}, "--node_rank, the rank of this node from 0, is required"),
        ([*TWO_NODES, "--node_rank", "2"], {}, "--node_rank=2 must be between 0 and 1"),
        ([*TWO_NODES, "--node_rank", "1", "--base_rank", "0"], {}, "--base_rank=0 conflicts with --node_rank=1"),
        ([*TWO_NODES, "--node_rank", "1", "--max_restarts", "1"], {}, "use --rdzv_endpoint"),
        ([*TWO_NODES[:4], "--node_rank", "1", "--master_port", "1"], {}, "--master_addr"),
        ([*TWO_NODES[:4], "--node_rank", "1", "--master_addr", "a"], {}, "--master_port"),
        (["-n", "1", "--nnodes", "1:2"], {}, "require --rdzv_endpoint HOST:PORT, the same on all"),
        (["-n", "1", "--rdzv_endpoint", "a:1", "--node_rank", "0"], {}, "--node_rank is assigned by the rendezvous"),
        (["-n", "4"], slurm(0, [2, 2]), "SLURM started 2 processes on this node.* but --nproc is 4"),
        (["--max_restarts", "1"], slurm(0, [2, 2]), "--max_restarts requires one process per node"),
        (["--grace_period", "0"], slurm(0, [2, 2]), "--grace_period requires one process per node"),
        (["-n", "1", "--rdzv_backend", "static"], {}, "--rdzv_backend=static is not supported; use --node_rank"),
        (["-n", "1", "--rdzv_endpoint", "a:1", "--master_port", "1"], {}, "--master_port is assigned"),
        ([], open_mpi(0, 4, 0, 2), "--master_addr"),
    ],
)
def test_contradictions(arguments: list[str], environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(*arguments, **environ)


def test_programs(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(*arguments: str) -> tuple[str, ...]:
        return make_plan(parse(["-n", "1", *arguments]), {}).command

    script = tmp_path / "train.py"
    script.touch()
    assert command(str(script), "--lr", "$LR") == (sys.executable, str(script), "--lr", "$LR")
    monkeypatch.setenv("SCRIPTS", str(tmp_path))
    assert command("$SCRIPTS/train.py") == (sys.executable, str(script))
    assert command("-m", "package.train", "-x") == (sys.executable, "-m", "package.train", "-x")
    for arguments, message in [
        ([str(tmp_path / "no.py")], "there is no script"),
        (["checkpont"], "Did you mean 'checkpoint'"),
        (["report", "run.csv"], "its name comes first, as in 'composer report --help'"),
        (["ls"], "use -c"),
        (["-c", "no-such-command"], "there is no command 'no-such-command'"),
    ]:
        with pytest.raises(ValueError, match=message):
            command(*arguments)
