"""Initialize the process group for multi-GPU and multi-node training, and create distributed samplers."""

from __future__ import annotations

import datetime
import os
import warnings
from collections.abc import Sized
from typing import Any, Protocol

import torch
import torch.distributed as torch_dist
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

from composer._lazy import import_extra
from composer._numbers import positive, whole_number
from composer._text import one_of
from composer.dist.group_exit import destroy_at_exit
from composer.dist.hang_report import start_hang_watcher
from composer.dist.local_gpu import local_gpu
from composer.dist.ranks import (
    MissingEnvironmentError,
    check_environment,
    get_global_rank,
    get_world_size,
    is_available,
    is_initialized,
    missing_environment,
)
from composer.dist.rendezvous.interfaces import choose_loopback
from composer.dist.rendezvous.rendezvous import join_rendezvous
from composer.warnings import ComposerWarning

__all__ = [
    "get_sampler",
    "initialize_dist",
]

_BACKENDS = {"gpu": "nccl", "cuda": "nccl", "cpu": "gloo", "hpu": "hccl", "tpu": "xla", "neuron": "xla"}


class _HasBackend(Protocol):
    """The attributes of a :class:`composer.devices.Device` that this module needs."""

    @property
    def dist_backend(self) -> str:
        """Communication backend for tensors on the device; empty if there is none."""
        ...

    @property
    def torch_device(self) -> torch.device:
        """The PyTorch device."""
        ...


def initialize_dist(device: str | _HasBackend | None = None, timeout: float = 300.0) -> None:
    """Initialize the process group, unless it is initialized already.

    Tensors on an accelerator use its backend (NCCL on CUDA); tensors and objects on the CPU use gloo. A single process
    gets a group of size 1, so that code that needs a group works. In distributed training, a background thread on each
    rank reports its stack trace if another rank waits for it, see :func:`name_missing_ranks`. On a single node the
    store and gloo listen on loopback only; on multiple nodes gloo uses the network interface that leads to
    ``MASTER_ADDR``. The environment variable ``GLOO_SOCKET_IFNAME`` names the interface; it is set here unless the user
    has set it.

    Args:
        device: ``"gpu"``, ``"cpu"``, ... or a device; ``None`` selects the accelerator if there is one.
        timeout: Timeout in seconds of collectives and of the rendezvous. If the group is initialized already, the
            timeout that it was initialized with.

    Raises:
        RuntimeError: The existing group's backend does not support the device or the CPU, the device has no backend and
            the world size is above 1, or some ranks did not join the rendezvous, which the message names.
        MissingEnvironmentError: The world size is above 1 and ``RANK``, ``MASTER_ADDR`` or ``MASTER_PORT`` is not set.
        ValueError: The device is unknown, or the timeout is not positive.

    >>> initialize_dist("cpu")
    >>> is_initialized(), get_world_size()
    (True, 1)
    >>> torch.distributed.destroy_process_group()
    """
    delta = datetime.timedelta(seconds=positive("timeout", timeout))
    device_type, backend = _device_type_and_backend(device)
    check_environment()
    world_size = get_world_size()
    if is_initialized():
        _check_backend(device_type, backend)
        start_hang_watcher(timeout)
        return
    if not is_available() or (not backend and world_size > 1):
        if world_size == 1:
            return
        no_backend = f"device {device_type!r} has no communication backend"
        reason = no_backend if is_available() else "this build of PyTorch has no distributed package"
        raise RuntimeError(f"The world size is {world_size}, but {reason}.")
    if backend == "xla":
        _import_xla_backend()
    elif backend not in ("", "gloo"):
        backend = f"cpu:gloo,{device_type}:{backend}"
    if world_size == 1:
        choose_loopback()
        store = torch_dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        torch_dist.init_process_group(backend or "gloo", store=store, world_size=1, rank=0, timeout=delta)
        destroy_at_exit()
        return
    if "RANK" not in os.environ:
        raise MissingEnvironmentError(missing_environment("RANK", world_size))
    rank = get_global_rank()
    store = join_rendezvous(rank, world_size, timeout)
    torch_dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=delta,
        device_id=_nccl_device(device, device_type),
    )
    destroy_at_exit()
    start_hang_watcher(timeout)


def get_sampler(
    dataset: Dataset[Any],
    *,
    drop_last: bool = False,
    shuffle: bool = False,
    num_replicas: int | None = None,
    rank: int | None = None,
    seed: int = 0,
) -> DistributedSampler[Any]:
    """Return a sampler that shards a dataset across ranks.

    Args:
        dataset: Map-style, with a length.
        drop_last: Drop the remaining samples; ``False`` repeats some samples, so that all ranks get equally many.
        shuffle: Shuffle in an order that changes with the sampler's epoch.
        num_replicas: Number of data shards; the world size if ``None``.
        rank: Index of the data shard; this process's rank if ``None``.
        seed: Seed of the shuffle; the same on each rank.

    Raises:
        TypeError: The dataset has no length.
        ValueError: ``rank`` is out of range.

    >>> list(get_sampler([5, 6, 7, 8], num_replicas=2, rank=1))
    [1, 3]
    """
    if not isinstance(dataset, Sized):
        raise TypeError(
            f"dataset must have a length to be sharded across ranks, but {type(dataset).__name__} has none. An "
            f"iterable dataset must shard itself, using composer.dist.get_global_rank() and get_world_size()."
        )
    num_replicas = get_world_size() if num_replicas is None else whole_number("num_replicas", num_replicas, minimum=1)
    rank = get_global_rank() if rank is None else whole_number("rank", rank, minimum=None)
    if not 0 <= rank < num_replicas:
        raise ValueError(f"rank must be from 0 to {num_replicas - 1}, as num_replicas={num_replicas}, but got {rank}.")
    return DistributedSampler(
        dataset,
        num_replicas=num_replicas,
        rank=rank,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
    )


def _nccl_device(device: str | _HasBackend | None, device_type: str) -> torch.device | None:
    """Return the GPU that NCCL should use, so that it need not guess; by default the one of the local rank."""
    if device_type != "cuda":
        return None
    if device is None or isinstance(device, str):
        index = (device or "").partition(":")[2]
        return torch.device("cuda", int(index) if index else local_gpu())
    given = device.torch_device
    return given if given.index is not None else torch.device("cuda", local_gpu())


def _device_type_and_backend(device: str | _HasBackend | None) -> tuple[str, str]:
    """Return the torch device type and its communication backend."""
    if device is None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        device = "cpu" if accelerator is None else accelerator.type
    if not isinstance(device, str):
        return device.torch_device.type, device.dist_backend
    name = device.lower().partition(":")[0]
    backends = {**_BACKENDS, **(torch_dist.Backend.default_device_backend_map if is_available() else {}), "mps": ""}
    one_of("device", name, backends)
    return {"gpu": "cuda"}.get(name, name), backends[name]


def _check_backend(device_type: str, backend: str) -> None:
    """Check that an existing process group supports tensors on the device and on the CPU.

    torch's table says what a backend supports, whatever its name is: ``ucc``, ``mpi`` and custom ones may support both.
    """
    config = torch_dist.get_backend_config()
    supported = {pair.partition(":")[0] for pair in config.split(",")}
    # Counts, metrics and objects are communicated on the CPU; on XLA devices, on the device.
    needed = dict.fromkeys((device_type, "cpu" if backend != "xla" else device_type))
    missing = [device for device in needed if device not in supported]
    if backend and missing:
        remedy = backend if backend in ("gloo", "xla") else f"cpu:gloo,{device_type}:{backend}"
        raise RuntimeError(
            f"The process group was initialized with backend {config!r}, which does not support tensors on "
            f"{' and '.join(missing)}, but training on device {device_type!r} needs it. Use "
            f"init_process_group({remedy!r}), or let composer initialize the process group."
        )
    if backend != "gloo" and f"{device_type}:gloo" in config.split(","):
        message = f"The process group uses 'gloo' on device {device_type!r}, through the CPU; {backend!r} is faster."
        warnings.warn(message, ComposerWarning, stacklevel=3)


def _import_xla_backend() -> None:
    """Register the backend of torch_xla."""
    import_extra("torch_xla.distributed.xla_backend", "tpu", "Communication on XLA devices", install="torch_xla")
