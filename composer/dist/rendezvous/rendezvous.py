"""Rendezvous: connect all ranks to a TCP store when a run starts, and name the ranks that are missing."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import torch.distributed as torch_dist
from torch.distributed import Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from composer.dist.ranks import MissingEnvironmentError, describe_ranks, missing_environment
from composer.dist.rendezvous.interfaces import choose_interface, choose_loopback, is_loopback
from composer.dist.rendezvous.loopback import LOOPBACK, is_one_node, loopback_store

__all__ = ["join_rendezvous"]

_NUM_JOINED: Final = "composer/rendezvous/joined"
_ALL_JOINED: Final = "composer/rendezvous/all"
_REPORTERS: Final = "composer/rendezvous/reporters"
_REPORT: Final = "composer/rendezvous/report"
# Seconds that other ranks wait for the report of the first one, which looks for the keys of all ranks.
_REPORT_TIMEOUT: Final = 10.0


def join_rendezvous(rank: int, world_size: int, timeout: float) -> Store:
    """Wait for all ranks and return the store with which to initialize the process group.

    This also selects the network interface of gloo: loopback on a single node, else the one that leads to the other
    nodes.

    The address comes from the environment: ``MASTER_ADDR``, a host name or address, and ``MASTER_PORT``, on which rank
    0 listens unless the launcher does; on a single node rank 0 listens on loopback, whatever the address.

    Args:
        rank: This rank.
        world_size: Number of ranks.
        timeout: Seconds to wait for all ranks.

    Raises:
        MissingEnvironmentError: An environment variable is not set.
        ValueError: ``MASTER_PORT`` is not a valid port.
        RuntimeError: The port is in use, rank 0 is unreachable, or some ranks did not join; the message names them.

    >>> import os
    >>> os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0")  # any port, for one process
    >>> join_rendezvous(rank=0, world_size=1, timeout=5).get(
    ...     "composer/rendezvous/0"
    ... ) == socket.gethostname().encode()
    True
    >>> del os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    """
    address, port = _master_address(world_size)
    if not _launcher_listens() and (is_one_node(world_size) or is_loopback(address)):
        address = LOOPBACK
    end = time.monotonic() + timeout
    try:
        # The store does not wait for the other ranks: its error would only count them, not name them.
        store = _store(rank, address, port, timeout)
    except (OSError, torch_dist.DistError) as error:
        raise RuntimeError(_explain_store_failure(rank, address, port, timeout)) from error
    keys = [f"composer/rendezvous/{one}" for one in range(world_size)]
    try:
        _join(store, keys[rank], world_size)
        store.wait([_ALL_JOINED], timedelta(seconds=max(end - time.monotonic(), 0.001)))
    except torch_dist.DistError as error:
        raise RuntimeError(_report_missing_ranks(store, keys, timeout)) from error
    if is_one_node(world_size):
        choose_loopback()
    else:
        choose_interface(_other_hosts(address, store, keys))
    return store


def _join(store: Store, key: str, world_size: int) -> None:
    """Set the key of this rank; the last rank to join sets the one key that all wait for.

    If each rank waited for the keys of all ranks, the store would look for as many keys as there are pairs of ranks.
    """
    has_joined = store.check([key])  # before it was restarted
    store.set(key, socket.gethostname())
    if not has_joined and store.add(_NUM_JOINED, 1) == world_size:
        store.set(_ALL_JOINED, "")


def _store(rank: int, address: str, port: int, timeout: float) -> Store:
    """Create or connect to the store; it listens on loopback if all ranks can reach it there."""
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
    """Yield the rendezvous address, then the host names of ranks on other hosts."""
    yield address
    own = socket.gethostname()
    for key in keys:
        if (name := store.get(key).decode()) != own:
            yield name


def _launcher_listens() -> bool:
    """Return whether the launcher hosts the store, as torchrun does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _master_address(world_size: int) -> tuple[str, int]:
    """Return ``MASTER_ADDR`` and ``MASTER_PORT``, validated."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise MissingEnvironmentError(missing_environment(name, world_size))
    text = os.environ["MASTER_PORT"]
    if not (text.isascii() and text.isdecimal() and len(text) <= 5) or int(text) >= 2**16:
        raise ValueError(
            f"The environment variable MASTER_PORT must be a port, 1 to 65535, but is {text!r}. "
            "Set it to a free port, or start the processes with `composer -n N script.py` or torchrun, which set it."
        )
    # IPv6 addresses may be in brackets.
    return os.environ["MASTER_ADDR"].strip("[]"), int(text)


def _explain_store_failure(rank: int, address: str, port: int, timeout: float) -> str:
    """Diagnose why the store could not be reached; only after the timeout, since host names may take time to appear."""
    where = f"MASTER_ADDR={address!r}, MASTER_PORT={port}"
    try:
        family, socket_type, protocol, _, found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        return f"{where}: this host cannot resolve the name ({error.args[-1]}). Use a name that every node can resolve."
    with contextlib.closing(socket.socket(family, socket_type, protocol)) as probe:
        if rank == 0 and not _launcher_listens():
            try:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
            except OSError as error:
                return (
                    f"{where}: rank 0 cannot listen on port {port} ({error.strerror}). Another program uses it, "
                    f"perhaps an earlier run that has not exited. Set MASTER_PORT to a free port on all ranks, or "
                    f"start them with `composer -n N script.py`, which finds one."
                )
            return f"{where}: rank 0 cannot connect to itself at this address; it must be an address of rank 0's host."
        probe.settimeout(5)
        try:
            probe.connect(found)
        except OSError as error:
            return (
                f"{where}: rank {rank} could not connect to rank 0 within {timeout:g} s ({error.strerror or error}). "
                f"Check that rank 0 has started, that the address belongs to its host, and that no firewall blocks the "
                f"port."
            )
    return f"{where}: rank {rank} connected to a program that is not rank 0 of this run."


def _report_missing_ranks(store: Store, keys: list[str], timeout: float) -> str:
    """Return a message with the missing ranks, from the first rank that looked for them."""
    with contextlib.suppress(torch_dist.DistError):
        if store.add(_REPORTERS, 1) > 1:
            store.wait([_REPORT], timedelta(seconds=_REPORT_TIMEOUT))
            joined, _, report = store.get(_REPORT).decode().partition(" ")
            if joined == str(store.add(_NUM_JOINED, 0)):  # otherwise it is the report of an earlier attempt
                return report
    report = _describe_missing_ranks(store, keys, timeout)
    with contextlib.suppress(torch_dist.DistError):
        store.set(_REPORT, f"{store.add(_NUM_JOINED, 0)} {report}")
    return report


def _describe_missing_ranks(store: Store, keys: list[str], timeout: float) -> str:
    """Return a message with the ranks that joined, their hosts, and the missing ranks."""
    try:
        joined = [rank for rank, key in enumerate(keys) if store.check([key])]
        hosts = sorted({store.get(keys[rank]).decode() for rank in joined})
    except torch_dist.DistError:
        return f"Rank 0 exited during the rendezvous, before the timeout of {timeout:g} s. See its output."
    missing = describe_ranks(set(range(len(keys))) - set(joined))
    return (
        f"{missing.capitalize()} of {len(keys)} did not join the rendezvous within {timeout:g} s. {len(joined)} "
        f"joined, from {', '.join(hosts[:8])}{', ...' if len(hosts) > 8 else ''}. Check that all ranks have "
        f"started, with the same MASTER_ADDR and MASTER_PORT and each with a different RANK."
    )
