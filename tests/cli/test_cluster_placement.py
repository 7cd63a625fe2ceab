"""Rank and world size from SLURM or MPI."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.cli.cluster_placement import find_placement, first_host, tasks_per_node


def slurm(rank: int, tasks: list[int], **more: str) -> dict[str, str]:
    """The variables of a process that srun started."""
    node = next(i for i in range(len(tasks)) if rank < sum(tasks[: i + 1]))
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank - sum(tasks[:node])),
        "SLURM_NODEID": str(node),
        "SLURM_STEP_NUM_TASKS": str(sum(tasks)),
        "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, tasks)),
        "SLURM_STEP_NODELIST": "gpu[03-05]",
        "SLURM_JOB_ID": "17",
        "SLURM_STEP_ID": "0",
        **more,
    }


def open_mpi(rank: int, size: int, local_rank: int, local_size: int, **more: str) -> dict[str, str]:
    """The variables of a process that mpirun started."""
    values = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
    return {**{f"OMPI_COMM_WORLD_{name}": str(value) for name, value in values.items()}, **more}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_slurm(tasks: list[int], data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, sum(tasks) - 1))
    place = find_placement(slurm(rank, tasks))
    assert place is not None
    assert (place.rank, place.world_size, place.num_nodes) == (rank, sum(tasks), len(tasks))
    assert sum(tasks[: place.node_rank]) + place.local_rank == rank
    assert place.local_world_size == tasks[place.node_rank]
    assert place.host == ("gpu03" if len(tasks) > 1 else "127.0.0.1")


def test_port_is_derived_from_the_job() -> None:
    ports = {find_placement(slurm(rank, [2, 2])).port for rank in range(4)}
    [port] = ports
    assert 20000 <= port < 32000
    assert find_placement(slurm(0, [2, 2], SLURM_STEP_ID="1")).port != port


def test_batch_script_has_no_placement() -> None:
    environ = slurm(0, [1, 1])
    del environ["SLURM_STEP_NUM_TASKS"]
    assert find_placement(environ) is None
    assert find_placement({}) is None


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_mpi(num_nodes: int, local_size: int, data: st.DataObject) -> None:
    node, local_rank = data.draw(st.integers(0, num_nodes - 1)), data.draw(st.integers(0, local_size - 1))
    place = find_placement(open_mpi(node * local_size + local_rank, num_nodes * local_size, local_rank, local_size))
    assert place is not None
    assert (place.num_nodes, place.node_rank, place.local_rank) == (num_nodes, node, local_rank)


def test_mpi_within_slurm() -> None:
    place = find_placement({**slurm(1, [1, 1]), **open_mpi(3, 4, 1, 2, PMIX_NAMESPACE="prterun-1@1")})
    assert place is not None
    assert (place.launcher, place.rank, place.host) == ("Open MPI", 3, None)
    assert place.port is not None


def test_hydra() -> None:
    place = find_placement({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"})
    assert place is not None
    assert (place.launcher, place.rank, place.local_rank, place.host, place.port) == ("MPICH", 1, 1, "127.0.0.1", None)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (open_mpi(1, 6, 0, 2), "Ranks must fill one node after the other"),
        (open_mpi(0, 5, 0, 2), "equally many on each"),
        (slurm(0, [1], SLURM_PROCID="x"), "SLURM_PROCID must be an integer, but is 'x'"),
        (slurm(0, [1], SLURM_NODEID="3"), "SLURM_NODEID is 3"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, "SLURM_NODEID is not set"),
    ],
)
def test_contradictions(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_placement(environ)


def test_lists_of_slurm() -> None:
    assert first_host("a1") == "a1"
    assert first_host("a[7,9-12],b[1-2]") == "a7"
    assert tasks_per_node("3") == [3]
    assert tasks_per_node("2(x3),1,4(x2)") == [2, 2, 2, 1, 4, 4]
    with pytest.raises(ValueError, match="SLURM_STEP_TASKS_PER_NODE"):
        tasks_per_node("2x3")
