"""Keep-alive: close connections whose peer is unreachable (a cut cable, a lost node) instead of hanging forever."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

__all__ = ["port_of", "set_keepalive"]

_FILES = Path("/proc/self/fd")


def set_keepalive(port: int | None, seconds: float) -> None:
    """Set ``TCP_USER_TIMEOUT`` on this process's connections to a port, so that they fail if the peer is unreachable.

    Store requests have no timeout for this case. The peer's kernel acknowledges data, not its processes, so a busy
    process is not taken for a lost node. Does nothing on systems without this option.

    Args:
        port: The port of the peer; None for a store without a network connection.
        seconds: The timeout.

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
        # Some sockets have no peer, and some are closed by now.
        with contextlib.suppress(OSError):
            if str(file.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(file.name))) as one:
                    if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername()[1] == port:
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


def port_of(store: Any) -> int | None:
    """Return the port of a TCP store; None for other stores.

    Args:
        store: The store of a process group.

    >>> import torch.distributed as torch_dist
    >>> port_of(torch_dist.HashStore())
    """
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "port", None)
