"""Setting up the process group, and dealing data out to its processes."""

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
from composer._text import one_of, positive
from composer.dist.group_exit import destroy_at_exit
from composer.dist.rendezvous.interfaces import choose_loopback
from composer.dist.local_gpu import local_gpu
from composer.dist.rendezvous.nodes import meet
from composer.dist.ranks import (
    MissingEnvironmentError,
    check_environment,
    get_global_rank,
    get_world_size,
    is_available,
    is_initialized,
    missing_environment,
)
from composer.dist.hang_report import start_hang_watcher
from composer.warnings import ComposerWarning

__all__ = [
    "get_sampler",
    "initialize_dist",
]

_BACKENDS = {"gpu": "nccl", "cuda": "nccl", "cpu": "gloo", "hpu": "hccl", "tpu": "xla", "neuron": "xla"}


class _HasBackend(Protocol):
    """A device of :mod:`composer.devices`, which is all of it that this module needs."""

    @property
    def dist_backend(self) -> str:
        """Backend for tensors on the device; empty where there is none."""
        ...

    @property
    def torch_device(self) -> torch.device:
        """The device as PyTorch names it."""
        ...


def initialize_dist(device: str | _HasBackend | None = None, timeout: float = 300.0) -> None:
    """Set up the process group, unless it is set up already.

    Tensors on an accelerator travel by its own backend, tensors and objects on the CPU by gloo. A single process gets a
    group of its own, so that code written for groups runs. Where there are several, a thread of each answers those that
    wait for it in vain, see :func:`name_absent_ranks`. On one node the store and gloo listen on loopback only; on several
    nodes gloo takes the network interface that leads to ``MASTER_ADDR``. The environment variable
    ``GLOO_SOCKET_IFNAME``, set by the user or else here, names the interface.

    Args:
        device: ``"gpu"``, ``"cpu"``, ... or a device; ``None`` is the accelerator where there is one.
        timeout: Seconds until a collective that not all processes have joined fails, and until processes that wait for
            all to start give up. Of a group that is set up already, what it was set up with.

    Raises:
        RuntimeError: Set up already with a backend that does not serve the device or the CPU, the device has none and
            several processes run, or the processes did not all meet; names those that did not come.
        MissingEnvironmentError: Several processes run and this one has no ``RANK``, ``MASTER_ADDR`` or ``MASTER_PORT``.
        ValueError: The device is unknown, or the timeout is not positive.

    >>> initialize_dist("cpu")
    >>> is_initialized(), get_world_size()
    (True, 1)
    >>> torch.distributed.destroy_process_group()
    """
    delta = datetime.timedelta(seconds=positive("timeout", timeout))
    kind, backend = _kind_and_backend(device)
    check_environment()
    world_size = get_world_size()
    if is_initialized():
        _check_backend(kind, backend)
        start_hang_watcher(timeout)
        return
    if not is_available() or (not backend and world_size > 1):
        if world_size == 1:
            return
        reason = f"device {kind!r} has no backend for it" if is_available() else "this build of PyTorch cannot"
        raise RuntimeError(f"{world_size} processes are to communicate, but {reason}.")
    if backend == "xla":
        _import_xla_backend()
    elif backend not in ("", "gloo"):
        backend = f"cpu:gloo,{kind}:{backend}"
    if world_size == 1:
        choose_loopback()
        store = torch_dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        torch_dist.init_process_group(backend or "gloo", store=store, world_size=1, rank=0, timeout=delta)
        destroy_at_exit()
        return
    if "RANK" not in os.environ:
        raise MissingEnvironmentError(missing_environment("RANK", world_size))
    rank = get_global_rank()
    store = meet(rank, world_size, timeout)
    torch_dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=delta, device_id=_gpu_of(device, kind)
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
    """Return a sampler that deals a dataset out to the processes, each its share.

    Args:
        dataset: Map-style, with a length.
        drop_last: Drop the samples left over; ``False`` repeats some, so that shares are equal.
        shuffle: Draw in an order that changes with the sampler's epoch.
        num_replicas: Number of shares; the world size if ``None``.
        rank: Which share; this process's rank if ``None``.
        seed: Of the order; the same on each rank.

    Raises:
        TypeError: The dataset has no length.
        ValueError: There is no such share.

    >>> list(get_sampler([5, 6, 7, 8], num_replicas=2, rank=1))
    [1, 3]
    """
    if not isinstance(dataset, Sized):
        raise TypeError(
            f"dataset must have a length to be dealt out, but {type(dataset).__name__} has none. An iterable dataset "
            f"has to deal itself out, by composer.dist.get_global_rank() and get_world_size()."
        )
    num_replicas = get_world_size() if num_replicas is None else positive("num_replicas", num_replicas)
    rank = get_global_rank() if rank is None else rank
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


def _gpu_of(device: str | _HasBackend | None, kind: str) -> torch.device | None:
    """The GPU that NCCL is to use, which spares it the guess; by default that of its local rank."""
    if kind != "cuda":
        return None
    if device is None or isinstance(device, str):
        index = (device or "").partition(":")[2]
        return torch.device("cuda", int(index) if index else local_gpu())
    given = device.torch_device
    return given if given.index is not None else torch.device("cuda", local_gpu())


def _kind_and_backend(device: str | _HasBackend | None) -> tuple[str, str]:
    """The torch device type and the backend for it."""
    if device is None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        device = "cpu" if accelerator is None else accelerator.type
    if not isinstance(device, str):
        return device.torch_device.type, device.dist_backend
    name = device.lower().partition(":")[0]
    backends = {**_BACKENDS, **(torch_dist.Backend.default_device_backend_map if is_available() else {}), "mps": ""}
    one_of("device", name, backends)
    return {"gpu": "cuda"}.get(name, name), backends[name]


def _check_backend(kind: str, backend: str) -> None:
    """Refuse a process group, set up by others, that does not serve tensors of the device and of the CPU.

    What a backend serves is told by torch's table, whatever its name is: ``ucc``, ``mpi`` and custom ones may serve both.
    """
    config = torch_dist.get_backend_config()
    served = {pair.partition(":")[0] for pair in config.split(",")}
    # Counts, metrics and objects travel on the CPU; on XLA devices, by the device.
    missing = [device for device in dict.fromkeys((kind, "cpu" if backend != "xla" else kind)) if device not in served]
    if backend and missing:
        wanted = backend if backend in ("gloo", "xla") else f"cpu:gloo,{kind}:{backend}"
        raise RuntimeError(
            f"The process group is set up with backend {config!r}, which serves no tensors on {' and '.join(missing)}, but "
            f"training on device {kind!r} needs that. Set it up with init_process_group({wanted!r}), or leave that to "
            f"composer."
        )
    if backend != "gloo" and f"{kind}:gloo" in config.split(","):
        message = f"The process group serves device {kind!r} by 'gloo', by way of the CPU; {backend!r} is faster."
        warnings.warn(message, ComposerWarning, stacklevel=3)


def _import_xla_backend() -> None:
    """Register the backend of torch_xla."""
    import_extra("torch_xla.distributed.xla_backend", "tpu", "Communication on XLA devices", install="torch_xla")
