"""Connections that end when the other side falls silent, as where a cable is pulled, rather than wait for ever."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

__all__ = ["port_of", "set_keepalive"]

_FILES = Path("/proc/self/fd")


def set_keepalive(port: int | None, seconds: float) -> None:
    """Have the system end this process's connections to a port once what they sent stays unconfirmed for too long.

    Stores wait for answers without a limit of their own. It is the other machine that confirms, not its processes, so
    that a busy one is not taken for an absent one. Where the system has no such limit, nothing is done.

    Args:
        port: That the other side listens on; None for a store that is not reached by a network.
        seconds: How long.

    >>> with socket.create_server(("127.0.0.1", 0)) as server:
    ...     port = server.getsockname()[1]
    ...     with socket.create_connection(("127.0.0.1", port)) as client:
    ...         set_keepalive(port, 2.5)
    ...         client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    2500
    """
    if port is None or not hasattr(socket, "TCP_USER_TIMEOUT") or not _FILES.is_dir():
        return
    for file in _FILES.iterdir():
        # Some have no other side, and some have gone meanwhile.
        with contextlib.suppress(OSError):
            if str(file.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(file.name))) as one:
                    if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername()[1] == port:
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


def port_of(store: Any) -> int | None:
    """Return the port on which a store is reached; None where it is not by a network.

    Args:
        store: Of a process group.

    >>> import torch.distributed as torch_dist
    >>> port_of(torch_dist.HashStore())
    """
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "port", None)
