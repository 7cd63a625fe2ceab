"""Combine command-line options, environment variables and the cluster placement into a launch plan."""

from __future__ import annotations

import argparse
import shutil
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from composer._numbers import non_negative, positive
from composer._text import did_you_mean
from composer.cli.cluster_placement import TaskPlacement, find_placement
from composer.cli.launch_options import COMMANDS, PROGRAMS, parse
from composer.cli.launch_rank import FORMAT_NAMES, expand

__all__ = ["Plan", "make_plan"]

# The rendezvous address of a single node, with port 0, for which the system selects a free port.
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Plan:
    """What the launcher does on this node.

    Args:
        command: The program of each rank and its arguments.
        nproc: Number of ranks on this node.
        nodes: Minimum and maximum number of nodes.
        node_rank: Rank of this node; unused if the rendezvous assigns it.
        backend: Rendezvous backend; "static" if node ranks are known beforehand.
        endpoint: Rendezvous address, as ``host:port``.
        local_addr: Address by which other nodes reach this one; ``None`` for the system's default.
        run_id: Name of the run at the rendezvous.
        rdzv_conf: Settings of the backend.
        max_restarts: Maximum number of restarts.
        monitor_interval: Seconds between two checks of the ranks.
        grace_period: Seconds that ranks have to exit after a signal; ``None`` for the default.
        stdout: Pattern of the files for stdout.
        stderr: Pattern of the files for stderr.
        expected: ``RANK`` of the first rank of this node and ``WORLD_SIZE``, if given.
        rank: The environment variables of the single rank that this process becomes, if another launcher started one
            process per rank; else ``None``.

    >>> Plan(("train",), nproc=8).nodes
    (1, 1)
    """

    command: tuple[str, ...]
    nproc: int
    nodes: tuple[int, int] = (1, 1)
    node_rank: int = 0
    backend: str = "c10d"
    endpoint: str = f"{_LOOPBACK}:0"
    local_addr: str | None = _LOOPBACK
    run_id: str = ""
    rdzv_conf: dict[str, str] = field(default_factory=dict)
    max_restarts: int = 0
    monitor_interval: float = 0.1
    grace_period: int | None = None
    stdout: str | None = None
    stderr: str | None = None
    expected: dict[str, int] = field(default_factory=dict)
    rank: dict[str, str] | None = None


def make_plan(given: argparse.Namespace, environ: Mapping[str, str]) -> Plan:
    """Return the launch plan.

    Args:
        given: The options, from :func:`composer.cli.launch_options.parse`.
        environ: The environment variables. An option takes precedence over its variable, and that over the cluster
            placement.

    Raises:
        ValueError: A required option is missing, or options conflict.

    >>> from composer.cli.launch_options import parse
    >>> make_plan(parse(["-n", "2", "-c", "ls", "-l"]), {}).command
    ('ls', '-l')
    """
    _check(given)
    command = _command(given)
    placement = find_placement(environ)
    # Counted on all nodes, so that nodes with one process and nodes with several reach the same decision.
    if placement is not None and placement.world_size > placement.num_nodes:
        return Plan(command, 1, stdout=given.stdout, stderr=given.stderr, rank=_rank(given, environ, placement))
    nodes = None if given.nnodes is None else _nodes(given.nnodes)
    elastic = bool(given.rdzv_endpoint or given.rdzv_backend or (nodes and nodes[0] != nodes[1]))
    nproc = _nproc(given.nproc, environ)
    if elastic:
        where = _elastic(given, environ, placement, nodes or (1, 1))
    else:
        where = _static(given, environ, placement, nodes, nproc)
    return Plan(
        command,
        nproc,
        rdzv_conf=_settings(given.rdzv_conf),
        max_restarts=given.max_restarts,
        monitor_interval=given.monitor_interval,
        grace_period=given.grace_period,
        stdout=given.stdout,
        stderr=given.stderr,
        **where,
    )


def _check(given: argparse.Namespace) -> None:
    if given.module_mode and given.command_mode:
        raise ValueError("--module_mode and --command_mode are mutually exclusive: SCRIPT is a module or a command.")
    if given.rdzv_backend == "static":
        raise ValueError(
            "--rdzv_backend=static is not supported; use --node_rank, --master_addr and --master_port without --rdzv_*."
        )
    non_negative("--max_restarts", given.max_restarts)
    positive("--monitor_interval", given.monitor_interval)
    if given.grace_period is not None:
        non_negative("--grace_period", given.grace_period)
    for option, pattern in (("--stdout", given.stdout), ("--stderr", given.stderr)):
        if pattern is None:
            continue
        try:
            pattern.format(**dict.fromkeys(FORMAT_NAMES, 0))
        except (IndexError, KeyError, ValueError) as error:
            name = str(error.args[0])
            raise ValueError(
                f"{option}={pattern!r} has the unknown placeholder {name!r}; known are "
                f"{', '.join(f'{{{one}}}' for one in FORMAT_NAMES)}.{did_you_mean(name, FORMAT_NAMES)}"
            ) from None


def _command(given: argparse.Namespace) -> tuple[str, ...]:
    """Return the command of each rank; a missing program is reported here once, not by each rank."""
    if given.module_mode:
        return (sys.executable, "-m", given.script, *given.arguments)
    [script] = expand([given.script])
    if given.command_mode:
        if shutil.which(script) is None:
            raise ValueError(f"there is no command {given.script!r}.")
        return (script, *given.arguments)
    if not Path(script).exists():
        if script in COMMANDS:
            raise ValueError(
                f"{script!r} is a command of composer, not a script to launch: its name comes first, as in "
                f"'composer {script} --help', without launcher options before it."
            )
        hint = did_you_mean(given.script, [*COMMANDS, *PROGRAMS])
        if not hint and shutil.which(script) is not None:
            hint = " To run a command that is not a Python script, use -c."
        raise ValueError(f"there is no script {given.script!r}.{hint}")
    return (sys.executable, script, *given.arguments)


def _rank(given: argparse.Namespace, environ: Mapping[str, str], placement: TaskPlacement) -> dict[str, str]:
    """Return the environment variables of a rank that another launcher started."""
    started = (
        f"{placement.launcher} started {placement.local_world_size} processes on this node, so each becomes one rank"
    )
    if given.nproc is not None and given.nproc != str(placement.local_world_size):
        raise ValueError(
            f"{started}, but --nproc is {given.nproc}. Leave it out, or make {placement.launcher} start one process "
            f"per node."
        )
    used = {"script", "arguments", "nproc", "module_mode", "command_mode", "stdout", "stderr", "verbose"}
    used |= {"master_addr", "master_port"}
    default = vars(parse([given.script]))
    wrong = [name for name, value in vars(given).items() if name not in used and value != default[name]]
    if wrong:
        raise ValueError(f"{started}; --{wrong[0]} requires one process per node.")
    host, port = _master(given, environ, placement)
    return {
        "RANK": str(placement.rank),
        "WORLD_SIZE": str(placement.world_size),
        "LOCAL_RANK": str(placement.local_rank),
        "LOCAL_WORLD_SIZE": str(placement.local_world_size),
        "NODE_RANK": str(placement.node_rank),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


def _elastic(
    given: argparse.Namespace, environ: Mapping[str, str], placement: TaskPlacement | None, nodes: tuple[int, int]
) -> dict[str, Any]:
    """Return the fields of a plan whose node ranks are assigned by the rendezvous (elastic runs)."""
    assigned = ["world_size", "node_rank", "base_rank"]
    if given.rdzv_endpoint is not None:
        assigned += ["master_addr", "master_port"]
    wrong = [name for name in assigned if getattr(given, name) is not None]
    if wrong:
        raise ValueError(f"--{wrong[0]} is assigned by the rendezvous of an elastic run; leave it out.")
    endpoint = given.rdzv_endpoint
    if endpoint is None and nodes[1] == 1:
        endpoint = f"{_LOOPBACK}:0"
    elif endpoint is None:
        host = _text(given.master_addr, environ, "MASTER_ADDR") or (placement and placement.host)
        port = _int(given.master_port, environ, "MASTER_PORT") or (placement and placement.port)
        if not host or not port:
            raise ValueError(
                "elastic runs with multiple nodes require --rdzv_endpoint HOST:PORT, the same on all nodes."
            )
        endpoint = f"{host}:{port}"
    alone = endpoint.endswith(":0")
    return {
        "nodes": nodes,
        "backend": given.rdzv_backend or "c10d",
        "endpoint": endpoint,
        "local_addr": given.local_addr or (_LOOPBACK if nodes[1] == 1 else None),
        "run_id": given.rdzv_id or (str(uuid.uuid4()) if alone else "composer"),
    }


def _static(
    given: argparse.Namespace,
    environ: Mapping[str, str],
    placement: TaskPlacement | None,
    nodes: tuple[int, int] | None,
    nproc: int,
) -> dict[str, Any]:
    """Return the fields of a plan with a fixed number of nodes and known node ranks."""
    world_size = _int(given.world_size, environ, "WORLD_SIZE")
    num_nodes = _num_nodes(world_size, nproc, nodes, placement if given.world_size is None else None)
    node_rank, base_rank = _ranks(given, environ, placement, num_nodes, nproc, world_size)
    if num_nodes == 1:
        host = _text(given.master_addr, environ, "MASTER_ADDR") or _LOOPBACK
        port = _int(given.master_port, environ, "MASTER_PORT") if not given.max_restarts else None
        if port is None and given.master_port is not None:
            raise ValueError("each restart uses a new port; leave out --master_port or --max_restarts.")
        where: dict[str, Any] = {"local_addr": given.local_addr or host, "run_id": given.rdzv_id or str(uuid.uuid4())}
        return {**where, "backend": "static", "endpoint": f"{host}:{_port(port)}"} if port is not None else where
    if given.max_restarts:
        raise ValueError(
            "--max_restarts with multiple nodes requires a new rendezvous for each restart: use --rdzv_endpoint "
            "HOST:PORT instead of --node_rank, --master_addr and --master_port."
        )
    host, port = _master(given, environ, placement)
    expected = {"WORLD_SIZE": world_size, "RANK": base_rank}
    return {
        "nodes": (num_nodes, num_nodes),
        "node_rank": node_rank,
        "backend": "static",
        "endpoint": f"{host}:{port}",
        "local_addr": given.local_addr,
        "run_id": given.rdzv_id or "composer",
        "expected": {name: value for name, value in expected.items() if value is not None},
    }


def _num_nodes(
    world_size: int | None, nproc: int, nodes: tuple[int, int] | None, placement: TaskPlacement | None
) -> int:
    if world_size is not None and world_size < nproc:
        raise ValueError(
            f"--world_size={world_size} (WORLD_SIZE) is less than --nproc={nproc}, the number of ranks of this node."
        )
    if nodes is not None:
        if nodes[0] == 1 and world_size is not None and world_size != nproc:
            raise ValueError(f"--nnodes=1 and --nproc={nproc} conflict with --world_size={world_size}.")
        return nodes[0]
    if placement is not None:
        return placement.num_nodes
    if world_size is None:
        return 1
    if world_size % nproc:
        raise ValueError(
            f"--world_size={world_size} is not a multiple of --nproc={nproc}: nodes with different numbers of ranks "
            "require --nnodes, the number of nodes."
        )
    return world_size // nproc


def _ranks(
    given: argparse.Namespace,
    environ: Mapping[str, str],
    placement: TaskPlacement | None,
    num_nodes: int,
    nproc: int,
    world_size: int | None,
) -> tuple[int, int | None]:
    """Return the rank of this node, and the global rank of its first process if given."""
    node_rank = _int(given.node_rank, environ, "NODE_RANK")
    base_rank = _int(given.base_rank, environ, "BASE_RANK")
    if num_nodes == 1:
        for option, rank in (("--node_rank", node_rank), ("--base_rank", base_rank)):
            if rank:
                raise ValueError(
                    f"{option}={rank} must be 0 on a single node; for more nodes set --world_size or --nnodes."
                )
        return 0, None
    if node_rank is None and placement is not None:
        node_rank = placement.node_rank
    equal = world_size is None or world_size == num_nodes * nproc
    if node_rank is None:
        if base_rank is None or not equal or base_rank % nproc:
            raise ValueError(f"--node_rank, the rank of this node from 0, is required with {num_nodes} nodes.")
        node_rank = base_rank // nproc
    if not 0 <= node_rank < num_nodes:
        raise ValueError(f"--node_rank={node_rank} must be between 0 and {num_nodes - 1}, with {num_nodes} nodes.")
    if base_rank is not None and equal and base_rank != node_rank * nproc:
        raise ValueError(f"--base_rank={base_rank} conflicts with --node_rank={node_rank} and {nproc} ranks per node.")
    return node_rank, base_rank


def _master(given: argparse.Namespace, environ: Mapping[str, str], placement: TaskPlacement | None) -> tuple[str, int]:
    """Return the address and port on which rank 0 listens, the same on all nodes."""
    host = _text(given.master_addr, environ, "MASTER_ADDR") or (placement and placement.host)
    port = _int(given.master_port, environ, "MASTER_PORT") or (placement and placement.port)
    if not host:
        raise ValueError("--master_addr, the name or address of the first node, is required with multiple nodes.")
    if not port:
        raise ValueError("--master_port, a free port of the first node, is required: the same on all nodes.")
    return host, _port(port)


def _port(port: int) -> int:
    if not 0 < port < 65536:
        raise ValueError(f"--master_port={port} must be between 1 and 65535; set it or MASTER_PORT.")
    return port


def _nproc(given: str | None, environ: Mapping[str, str]) -> int:
    text = given or environ.get("LOCAL_WORLD_SIZE") or "auto"
    if text == "auto":
        import torch

        return max(torch.accelerator.device_count(), 1) if torch.accelerator.is_available() else 1
    if not text.isdecimal() or int(text) < 1:
        hint = did_you_mean(text, ["auto"])
        what = "--nproc" if given else "The environment variable LOCAL_WORLD_SIZE, the default of --nproc,"
        raise ValueError(f"{what} must be a number of ranks, 1 or more, or 'auto', but got {text!r}.{hint}")
    return int(text)


def _nodes(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    if not least.isdecimal() or not (most or least).isdecimal() or not 0 < int(least) <= int(most or least):
        raise ValueError(f"--nnodes must be a number of nodes or a range such as 1:4, but got {text!r}.")
    return int(least), int(most or least)


def _settings(text: str | None) -> dict[str, str]:
    pairs = [part.partition("=") for part in (text or "").split(",") if part.strip()]
    wrong = next((key for key, sign, _ in pairs if not sign or not key.strip()), None)
    if wrong is not None:
        raise ValueError(f"--rdzv_conf must read like join_timeout=600,close_timeout=30, but got {text!r}.")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _text(given: str | None, environ: Mapping[str, str], name: str) -> str | None:
    return given or environ.get(name) or None


def _int(given: int | None, environ: Mapping[str, str], name: str) -> int | None:
    if given is not None:
        return given
    text = environ.get(name, "")
    try:
        return int(text) if text else None
    except ValueError:
        raise ValueError(f"The environment variable {name} must be an integer, but is {text!r}.") from None
