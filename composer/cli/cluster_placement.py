"""Read the placement of this process (node, rank, world size) from SLURM (``srun``) or MPI (``mpirun``) variables."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["TaskPlacement", "find_placement", "first_host", "tasks_per_node"]


@dataclass(frozen=True)
class TaskPlacement:
    """The placement of a process that another launcher has started.

    Args:
        launcher: Name of the launcher, for messages.
        rank: Rank of this process, from 0.
        world_size: Number of processes on all nodes.
        local_rank: Rank of this process on its node, from 0.
        local_world_size: Number of processes on this node.
        node_rank: Rank of this node, from 0.
        num_nodes: Number of nodes.
        host: Name of the first node; ``None`` if the launcher does not provide it.
        port: A port that is the same for all processes of the job; ``None`` if the launcher does not name the job.

    >>> TaskPlacement(
    ...     "SLURM", rank=3, world_size=4, local_rank=1, local_world_size=2, node_rank=1, num_nodes=2
    ... ).host
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    host: str | None = None
    port: int | None = None


# Rank, world size, local rank, local world size, name of the job.
_MPI = {
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"),
    ),
    "MVAPICH": (
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
        ("PMI_ID", "MPIRUN_ID"),
    ),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("HYDRA_JOBID", "PMI_JOBID")),
}


def find_placement(environ: Mapping[str, str]) -> TaskPlacement | None:
    """Return the placement of a process started by ``srun`` or ``mpirun``, or ``None`` for other processes.

    In a SLURM batch script, outside of ``srun``, it is ``None``, since the script runs once, on the first node.

    Args:
        environ: The environment variables.

    Raises:
        ValueError: A variable is not an integer, or MPI placed the ranks on nodes in turns or unevenly.

    >>> names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    >>> placement = find_placement(
    ...     dict(zip([f"OMPI_COMM_WORLD_{name}" for name in names], ["5", "8", "1", "4"]))
    ... )
    >>> placement.rank, placement.node_rank, placement.num_nodes
    (5, 1, 2)
    >>> find_placement({}) is None
    True
    """
    # Check MPI first: in a SLURM job, mpirun itself is started by srun and passes on its variables.
    for launcher, (rank, size, local_rank, local_size, job) in _MPI.items():
        if all(name in environ for name in (rank, size, local_rank, local_size)):
            numbers = [_number(environ, name) for name in (rank, size, local_rank, local_size)]
            return _mpi_placement(launcher, environ, job, *numbers)
    return _slurm_placement(environ) if "SLURM_STEP_NUM_TASKS" in environ and "SLURM_PROCID" in environ else None


def first_host(nodes: str) -> str:
    """Return the first host name of a SLURM node list.

    Args:
        nodes: For example ``"node[01-03,07],big5"``.

    >>> first_host("node[01-03,07],big5"), first_host("big5"), first_host("rack[2-3]n[10,12]-ib")
    ('node01', 'big5', 'rack2n10-ib')
    """
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first)


def tasks_per_node(text: str) -> list[int]:
    """Parse the number of processes on each node from SLURM's format.

    Args:
        text: For example ``"8(x2),4"``.

    Raises:
        ValueError: The text has another format.

    >>> tasks_per_node("8(x2),4")
    [8, 8, 4]
    """
    tasks: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE must read like '8(x2),4', but is {text!r}.")
        tasks += [int(found[1])] * int(found[2] or 1)
    return tasks


def _slurm_placement(environ: Mapping[str, str]) -> TaskPlacement:
    node_rank = _number(environ, "SLURM_NODEID")
    tasks = tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", environ["SLURM_STEP_NUM_TASKS"]))
    if node_rank >= len(tasks):
        raise ValueError(f"SLURM_NODEID is {node_rank}, but SLURM_STEP_TASKS_PER_NODE lists only {len(tasks)} nodes.")
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    job = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    return TaskPlacement(
        "SLURM",
        rank=_number(environ, "SLURM_PROCID"),
        world_size=_number(environ, "SLURM_STEP_NUM_TASKS"),
        local_rank=_number(environ, "SLURM_LOCALID"),
        local_world_size=tasks[node_rank],
        node_rank=node_rank,
        num_nodes=len(tasks),
        host=first_host(nodes) if nodes and len(tasks) > 1 else "127.0.0.1" if len(tasks) == 1 else None,
        port=_port(job),
    )


def _mpi_placement(
    launcher: str,
    environ: Mapping[str, str],
    job_names: tuple[str, ...],
    rank: int,
    world_size: int,
    local_rank: int,
    local_world_size: int,
) -> TaskPlacement:
    job = next((environ[name] for name in job_names if name in environ), None)
    num_nodes = world_size // local_world_size
    # MPI does not number the nodes; the rank determines the node only if ranks fill one node after the other.
    if rank % local_world_size != local_rank or world_size % local_world_size:
        raise ValueError(
            f"{launcher} placed rank {rank} of {world_size} on its node as local rank {local_rank} of "
            f"{local_world_size}. Ranks must fill one node after the other, with equally many on each node (mpirun "
            f"--map-by slot)."
        )
    return TaskPlacement(
        launcher,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node_rank=rank // local_world_size,
        num_nodes=num_nodes,
        host="127.0.0.1" if num_nodes == 1 else None,
        port=None if job is None else _port(job),
    )


def _port(job: str) -> int:
    """Return a port derived from a job name, below the ephemeral ports (32768 and up on Linux)."""
    return 20000 + zlib.crc32(job.encode()) % 12000


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except KeyError:
        raise ValueError(
            f"The environment variable {name} is not set, although other variables of its launcher are."
        ) from None
    except ValueError:
        raise ValueError(f"The environment variable {name} must be an integer, but is {environ[name]!r}.") from None
