from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import get_pg_count

from composer import dist
from composer.parallel.config import FSDPConfig, ParallelismConfig, TPConfig
from composer.parallel.mesh import Degrees, copy_timeout, degrees_of, make_meshes

PLAN = {"layer": None}


def _degrees(monkeypatch, world: int, nodes: int = 1, tensor: int = 1, **fsdp) -> Degrees:
    monkeypatch.setattr(dist, "get_world_size", lambda: world)
    monkeypatch.setattr(dist, "get_local_world_size", lambda: world // nodes)
    tp = TPConfig(tensor_parallel_degree=tensor, layer_plan=PLAN) if tensor > 1 else None
    return degrees_of(ParallelismConfig(fsdp=FSDPConfig(**fsdp), tp=tp))


@pytest.mark.parametrize(
    ("world", "nodes", "tensor", "fsdp", "expected"),
    [
        (8, 1, 1, {}, (1, 8, 1)),
        (8, 1, 2, {}, (1, 4, 2)),
        (8, 1, 1, {"data_parallel_replicate_degree": 2}, (2, 4, 1)),
        (8, 1, 1, {"data_parallel_shard_degree": 2, "data_parallel_replicate_degree": -1}, (4, 2, 1)),
        (8, 1, 2, {"data_parallel_shard_degree": 2, "data_parallel_replicate_degree": 2}, (2, 2, 2)),
        (8, 2, 1, {"sharding_strategy": "HYBRID_SHARD"}, (2, 4, 1)),
        (8, 2, 1, {"sharding_strategy": "_HYBRID_SHARD_ZERO2"}, (2, 4, 1)),
        (8, 2, 1, {"sharding_strategy": "HYBRID_SHARD", "data_parallel_replicate_degree": 4}, (4, 2, 1)),
        (8, 1, 1, {"sharding_strategy": "NO_SHARD"}, (8, 1, 1)),
        (1, 1, 1, {}, (1, 1, 1)),
    ],
)
def test_degrees(monkeypatch, world, nodes, tensor, fsdp, expected):
    found = _degrees(monkeypatch, world, nodes, tensor, **fsdp)
    assert (found.replicate, found.shard, found.tensor) == expected
    assert found.data * found.tensor == world


@pytest.mark.parametrize(
    ("tensor", "fsdp", "words"),
    [
        (3, {}, "does not divide the world size, 8"),
        (1, {"data_parallel_shard_degree": 3}, "must be 8"),
        (2, {"data_parallel_shard_degree": 8}, "must be 4, the world size / tensor_parallel_degree"),
        (1, {"data_parallel_shard_degree": 3, "data_parallel_replicate_degree": -1}, "must be 8"),
        (1, {"data_parallel_replicate_degree": -1}, "only one of"),
        (1, {"data_parallel_shard_degree": 0}, "must be a positive integer, or -1"),
        (1, {"data_parallel_shard_degree": 2.5}, "must be a positive integer, or -1 .*got 2.5"),
        (1, {"data_parallel_replicate_degree": "2"}, "must be a positive integer, or -1 .*got '2'"),
        (1, {"data_parallel_replicate_degree": True}, "must be a positive integer, or -1 .*got True"),
    ],
)
def test_invalid_degrees(monkeypatch, tensor, fsdp, words):
    with pytest.raises(ValueError, match=words):
        _degrees(monkeypatch, 8, 1, tensor, **fsdp)


def _meshes():
    found = []
    for degrees in (Degrees(1, 4, 1), Degrees(2, 2, 1), Degrees(4, 1, 1), Degrees(1, 2, 2), Degrees(2, 1, 2),
                    Degrees(1, 1, 4)):  # fmt: skip
        meshes = make_meshes(degrees, "cpu")
        data = None if meshes.data is None else meshes.data.mesh.tolist()
        group = None if meshes.data_group is None else meshes.data_group.size()
        found.append((data, None if meshes.tensor is None else meshes.tensor.mesh.tolist(), group))
    return found


def test_meshes(four_ranks):
    answers = four_ranks.run(_meshes)
    assert answers[0] == [
        ([0, 1, 2, 3], None, None),
        ([[0, 1], [2, 3]], None, None),
        ([[0], [1], [2], [3]], None, None),
        ([0, 2], [0, 1], 2),
        ([[0], [2]], [0, 1], 2),
        (None, [0, 1, 2, 3], 1),
    ]
    assert answers[3][3] == ([1, 3], [2, 3], 2)


def _timeouts():
    found = set()
    for degrees in (Degrees(1, 4, 1), Degrees(2, 2, 1), Degrees(1, 2, 2), Degrees(2, 1, 2), Degrees(1, 1, 4)):
        make_meshes.__globals__["_mesh_cache"].clear()
        meshes = make_meshes(degrees, "cpu")
        for group in (*meshes.all.get_all_groups(), meshes.data_group):
            if group is not None:
                found.add(group._get_backend(torch.device("cpu")).options._timeout)
    world = torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options._timeout
    return found, world


def test_submeshes_inherit_the_timeout(four_ranks):
    for found, world in four_ranks.run(_timeouts):
        assert found == {world}
        assert world not in (timedelta(minutes=10), timedelta(minutes=30))


class _Nameless:
    """Stands for an object of torch whose private names are others; what it has is given."""

    def __init__(self, **names: Any) -> None:
        vars(self).update(names)


def test_timeout_that_cannot_be_set_is_ignored(monkeypatch):
    message: list[Any] = []
    c10d = torch.distributed.distributed_c10d
    monkeypatch.setattr(c10d, "_set_pg_timeout", lambda timeout, group: message.append((timeout, group)))

    def source(options: Any) -> Any:
        return _Nameless(_device_types=["cpu"], _get_backend=lambda device: _Nameless(options=options))

    whole = source(_Nameless(_timeout=timedelta(minutes=3)))
    copy_timeout(whole, "group")
    assert message.pop() == (timedelta(minutes=3), "group")
    for broken in (_Nameless(), _Nameless(_device_types=["cpu"]), source(_Nameless()), source(None)):
        copy_timeout(broken, "group")
        assert not message
    monkeypatch.delattr(c10d, "_set_pg_timeout")
    copy_timeout(whole, "group")


def _number_of_groups():
    counts = []
    for _ in range(3):
        for degrees in (Degrees(2, 2, 1), Degrees(1, 2, 2), Degrees(1, 1, 4)):
            make_meshes(degrees, "cpu")
        counts.append(get_pg_count())
    return counts


def test_meshes_of_multiple_trainers_reuse_groups(four_ranks):
    for counts in four_ranks.run(_number_of_groups):
        assert counts == counts[:1] * 3


def _given():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    config = FSDPConfig()
    config.device_mesh = mesh
    found = degrees_of(ParallelismConfig(fsdp=config))
    same = make_meshes(found, "cpu", mesh).data is mesh
    errors = []
    for wrong, tp in ((mesh["shards"], None), (mesh, TPConfig(tensor_parallel_degree=2, layer_plan=PLAN))):
        config.device_mesh = wrong
        with pytest.raises(ValueError, match="fsdp2: ") as error:
            degrees_of(ParallelismConfig(fsdp=config, tp=tp))
        errors.append(str(error.value))
    return (found.replicate, found.shard), same, errors


def test_user_provided_mesh(four_ranks):
    for degrees, same, (size, both) in four_ranks.run(_given):
        assert degrees == (2, 2)
        assert same
        assert "4 ranks, the world size" in size
        assert "leave device_mesh out" in both
