"""How processes find each other when a run starts."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as torch_dist
from torch.distributed import Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from composer.dist.rendezvous.interfaces import choose_interface, choose_loopback, is_loopback
from composer.dist.rendezvous.loopback import LOOPBACK, is_one_node, loopback_store
from composer.dist.ranks import MissingEnvironmentError, describe_ranks, missing_environment

__all__ = ["meet"]


def meet(rank: int, world_size: int, timeout: float) -> Store:
    """Return the store through which processes set up their group, once all of them are there.

    It also settles by which network interface gloo communicates: loopback on one node, else the one that leads to the
    other nodes.

    The environment says where: ``MASTER_ADDR``, a name or an address, and ``MASTER_PORT``, which rank 0 listens on
    unless the launcher does; on one node, on loopback whatever the address.

    Args:
        rank: Of this process.
        world_size: Number of processes.
        timeout: Seconds to wait for all.

    Raises:
        MissingEnvironmentError: An environment variable is not set.
        ValueError: ``MASTER_PORT`` is no port.
        RuntimeError: The port is in use, rank 0 cannot be reached, or some did not come; names which.

    >>> import os
    >>> os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0")  # any port, for one process
    >>> meet(rank=0, world_size=1, timeout=5).get("composer/met/0") == socket.gethostname().encode()
    True
    >>> del os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    """
    address, port = _address(world_size)
    if not _launcher_listens() and (is_one_node(world_size) or is_loopback(address)):
        address = LOOPBACK
    end = time.monotonic() + timeout
    try:
        # Not waiting for others here, which could only tell how many came.
        store = _store(rank, address, port, timeout)
    except (OSError, torch_dist.DistError) as error:
        raise RuntimeError(_why_no_store(rank, address, port, timeout)) from error
    keys = [f"composer/met/{one}" for one in range(world_size)]
    store.set(keys[rank], socket.gethostname())
    try:
        store.wait(keys, timedelta(seconds=max(end - time.monotonic(), 0.001)))
    except torch_dist.DistError as error:
        raise RuntimeError(_who_is_missing(store, keys, timeout)) from error
    if is_one_node(world_size):
        choose_loopback()
    else:
        choose_interface(_other_hosts(address, store, keys))
    return store


def _store(rank: int, address: str, port: int, timeout: float) -> Store:
    """The store, which listens on loopback where all ranks reach it there."""
    listens = rank == 0 and not _launcher_listens()
    if listens and address == LOOPBACK:
        return loopback_store(port, timeout)
    return TCPStore(
        address,
        port,
        is_master=listens,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        multi_tenant=True,
    )


def _other_hosts(address: str, store: Store, keys: list[str]) -> Iterator[str]:
    """Where the processes met, then what those that came from elsewhere call their machines."""
    yield address
    own = socket.gethostname()
    for key in keys:
        if (name := store.get(key).decode()) != own:
            yield name


def _launcher_listens() -> bool:
    """Whether the store is the launcher's, as torchrun says."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _address(world_size: int) -> tuple[str, int]:
    """Where to meet."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise MissingEnvironmentError(missing_environment(name, world_size))
    text = os.environ["MASTER_PORT"]
    if not (text.isascii() and text.isdecimal() and len(text) <= 5) or int(text) >= 2**16:
        raise ValueError(
            f"The environment variable MASTER_PORT must be a port, 1 to 65535, but is {text!r}. "
            "Set it to a free one, or start the processes with `composer -n N script.py` or torchrun, which set it."
        )
    # Addresses of IPv6 are written in brackets where a port may follow.
    return os.environ["MASTER_ADDR"].strip("[]"), int(text)


def _why_no_store(rank: int, address: str, port: int, timeout: float) -> str:
    """Say what is wrong with the address; asked only when it has failed, since names may take a while to appear."""
    where = f"MASTER_ADDR={address!r}, MASTER_PORT={port}"
    try:
        family, kind, protocol, _, found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        return f"{where}: this machine cannot resolve the name ({error.args[-1]}). Give a name that every node knows."
    with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
        if rank == 0 and not _launcher_listens():
            try:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
            except OSError as error:
                return (
                    f"{where}: rank 0 cannot listen on port {port} ({error.strerror}). Another program has it, perhaps "
                    f"an earlier run that still lives; set MASTER_PORT to a free one in all processes, or start them "
                    f"with `composer -n N script.py`, which finds one."
                )
            return f"{where}: rank 0 does not reach itself by this name; it must be a name of rank 0's own machine."
        probe.settimeout(5)
        try:
            probe.connect(found)
        except OSError as error:
            return (
                f"{where}: rank {rank} did not reach rank 0 there within {timeout:g} s ({error.strerror or error}). "
                f"Has rank 0 started, is the name one of its machine, and does a firewall let the port through?"
            )
    return f"{where}: something answers rank {rank} there, and it is not rank 0 of this run."


def _who_is_missing(store: Store, keys: list[str], timeout: float) -> str:
    """Say which ranks came, from where, and which did not."""
    try:
        came = [rank for rank, key in enumerate(keys) if store.check([key])]
        hosts = sorted({store.get(keys[rank]).decode() for rank in came})
    except torch_dist.DistError:
        return f"Rank 0 has ended while the processes met, before {timeout:g} s were over. Its output says why."
    missing = describe_ranks(set(range(len(keys))) - set(came))
    return (
        f"{missing.capitalize()} of {len(keys)} did not come within {timeout:g} s. {len(came)} came, on "
        f"{', '.join(hosts[:8])}{', ...' if len(hosts) > 8 else ''}. Did all start, with the same MASTER_ADDR and "
        f"MASTER_PORT and a RANK of their own?"
    )
