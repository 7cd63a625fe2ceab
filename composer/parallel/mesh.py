"""The device mesh of ranks: replicas (HSDP), shards (FSDP) and tensor parallelism."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as torch_dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from composer import dist
from composer.parallel.config import FSDPConfig, ParallelismConfig, ParallelismType

__all__ = ["Degrees", "Meshes", "copy_timeout", "degrees_of", "make_meshes"]

_REPLICATE, _SHARD, _TENSOR = (
    ParallelismType.DATA_PARALLEL_REPLICATE,
    ParallelismType.DATA_PARALLEL_SHARD,
    ParallelismType.TENSOR_PARALLEL,
)


@dataclass(frozen=True)
class Degrees:
    """The sizes of the mesh dimensions. Tensor parallelism uses adjacent ranks, sharding the next dimension.

    Attributes:
        replicate: Number of replicas of the model.
        shard: Number of ranks over which each replica is sharded.
        tensor: Number of ranks over which layers are sharded (tensor parallelism).

    >>> Degrees(replicate=2, shard=4, tensor=2).data
    8
    """

    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def data(self) -> int:
        """Number of data shards."""
        return self.replicate * self.shard


@dataclass(frozen=True)
class Meshes:
    """The device mesh and its submeshes.

    Attributes:
        data: The data-parallel submesh, (replicas, shards) or (shards); None if all ranks have the same data.
        tensor: The tensor-parallel submesh, or None.
        data_group: The process group whose ranks together have the full batch; None for all ranks.
        all: The full mesh.

    >>> Meshes(None, None, None).tensor is None
    True
    """

    data: DeviceMesh | None
    tensor: DeviceMesh | None
    data_group: torch_dist.ProcessGroup | None
    all: DeviceMesh | None = None


def degrees_of(config: ParallelismConfig) -> Degrees:
    """Return the mesh sizes of a configuration.

    Args:
        config: A configuration from :func:`.as_parallelism_config`.

    Raises:
        ValueError: The sizes do not fit the world size.

    >>> degrees_of(ParallelismConfig(fsdp=FSDPConfig()))
    Degrees(replicate=1, shard=1, tensor=1)
    """
    world = dist.get_world_size()
    tensor = 1 if config.tp is None else config.tp.tensor_parallel_degree
    if world % tensor:
        raise ValueError(
            f"tp: tensor_parallel_degree={tensor} does not divide the world size, {world}; use a divisor of it."
        )
    left = world // tensor
    if config.fsdp is None:
        return Degrees(left, 1, tensor)
    if config.fsdp.device_mesh is not None:
        return _degrees_of_mesh(config.fsdp.device_mesh, world, tensor)
    return Degrees(*_data_degrees(config.fsdp, left), tensor)


def _data_degrees(config: FSDPConfig, left: int) -> tuple[int, int]:
    """Return the numbers of replicas and of shards."""
    replicate, shard = config.data_parallel_replicate_degree, config.data_parallel_shard_degree
    if replicate is None and shard == -1:
        if config.sharding_strategy == "NO_SHARD":
            return left, 1
        if config.sharding_strategy in ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"):
            shard = math.gcd(left, dist.get_local_world_size())
            return left // shard, shard
    replicate = 1 if replicate is None else replicate
    if replicate == shard == -1:
        raise ValueError("fsdp: only one of data_parallel_replicate_degree and data_parallel_shard_degree may be -1.")
    given = (replicate, shard)
    if replicate == -1:
        replicate = left // shard
    if shard == -1:
        shard = left // replicate
    if replicate * shard != left:
        raise ValueError(
            f"fsdp: data_parallel_replicate_degree={given[0]} times data_parallel_shard_degree={given[1]} must be "
            f"{left}, the world size{' / tensor_parallel_degree' if left != dist.get_world_size() else ''}."
        )
    return replicate, shard


def _degrees_of_mesh(mesh: DeviceMesh, world: int, tensor: int) -> Degrees:
    """Return the sizes of a mesh that the user has created."""
    if tensor > 1:
        raise ValueError("fsdp2: with 'tp' the mesh is derived from the degrees; leave device_mesh out.")
    if mesh.ndim > 2 or mesh.size() != world or (mesh.ndim == 2 and mesh.mesh_dim_names is None):
        raise ValueError(
            f"fsdp2: device_mesh must have the dimensions (shards) or (replicas, shards), the latter named, and "
            f"{world} ranks, the world size. Got {mesh}."
        )
    return Degrees(mesh.size(0) if mesh.ndim == 2 else 1, mesh.size(-1))


# The process groups of a mesh, with their threads and connections, live as long as the default group: without the cache
# a program that creates one trainer after another would accumulate them.
_mesh_cache: WeakKeyDictionary[Any, dict[tuple[Degrees, str], Meshes]] = WeakKeyDictionary()


def make_meshes(degrees: Degrees, device_type: str, given: DeviceMesh | None = None) -> Meshes:
    """Return the meshes of the given sizes, created once per process group; all ranks must call this.

    Args:
        degrees: The mesh sizes.
        device_type: ``"cuda"``, ``"cpu"``, ...
        given: An existing data-parallel mesh to use instead.

    >>> dist.initialize_dist("cpu")
    >>> make_meshes(Degrees(), "cpu").data.mesh_dim_names
    ('data_parallel_shard',)
    >>> make_meshes(Degrees(), "cpu") is make_meshes(Degrees(), "cpu")
    True
    >>> torch_dist.destroy_process_group()
    """
    if given is not None:
        return Meshes(given, None, None, given)
    world = torch_dist.group.WORLD  # None if the process group is not initialized; creating a mesh initializes it
    made = {} if world is None else _mesh_cache.setdefault(world, {})
    if (degrees, device_type) not in made:
        made[degrees, device_type] = _make(degrees, device_type)
        _set_timeouts(made[degrees, device_type])
    return made[degrees, device_type]


def _make(degrees: Degrees, device_type: str) -> Meshes:
    sizes = {_REPLICATE: degrees.replicate, _SHARD: degrees.shard, _TENSOR: degrees.tensor}
    # A dimension of size 1 would cost useless collectives; but the mesh needs at least one dimension.
    kept = {name: size for name, size in sizes.items() if size > 1 or (name is _SHARD and degrees.replicate > 1)}
    kept = kept or {_SHARD: 1}
    mesh = init_device_mesh(device_type, tuple(kept.values()), mesh_dim_names=tuple(name.value for name in kept))
    data = [name.value for name in kept if name is not _TENSOR]
    if degrees.tensor == 1:
        return Meshes(mesh, None, None, mesh)
    tensor = mesh[_TENSOR.value]
    if not data:
        alone: Any = torch_dist.new_group([dist.get_global_rank()], use_local_synchronization=True)
        return Meshes(None, tensor, alone, mesh)
    data_mesh = mesh[tuple(data)]
    flat = data_mesh if data_mesh.ndim == 1 else data_mesh._flatten("data")  # pyright: ignore[reportPrivateUsage]
    return Meshes(data_mesh, tensor, flat.get_group(), mesh)


def _set_timeouts(meshes: Meshes) -> None:
    """Set the timeout of the mesh's process groups to that of the default group.

    torch creates them with its default timeout, 10 minutes for NCCL, regardless of ``dist_timeout``.
    """
    world: Any = torch_dist.group.WORLD
    groups = [] if meshes.all is None else meshes.all.get_all_groups()
    for group in (*groups, meshes.data_group):
        if group is not None and group is not world:
            copy_timeout(world, group)


def copy_timeout(source: Any, target: Any) -> None:
    """Copy the timeout of one group to another; does nothing if torch no longer has these private names.

    Args:
        source: A process group.
        target: The process group whose timeout is set.

    >>> copy_timeout(None, None)
    """
    backend: Any = torch_dist.distributed_c10d
    # torch has public names for none of this.
    with contextlib.suppress(AttributeError):
        for device in source._device_types:
            options = getattr(source._get_backend(device), "options", None)
            if options is not None:
                backend._set_pg_timeout(options._timeout, target)
                return
