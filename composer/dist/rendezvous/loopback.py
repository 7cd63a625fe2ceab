"""TCP stores on loopback for single-node runs, so that no other host can connect to them, and free TCP ports."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

__all__ = ["LOOPBACK", "get_free_tcp_port", "is_one_node", "loopback_store"]

LOOPBACK = "127.0.0.1"
"""The address of the loopback interface."""


def get_free_tcp_port() -> int:
    """Return a TCP port that is free now; another program may take it before it is used.

    >>> 1024 <= get_free_tcp_port() < 65536
    True
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def is_one_node(world_size: int) -> bool:
    """Return whether all ranks run on this node, according to the launcher's environment variables.

    Args:
        world_size: Number of ranks.

    >>> is_one_node(1), is_one_node(2)
    (True, False)
    """
    return world_size == 1 or os.environ.get("LOCAL_WORLD_SIZE") == str(world_size)


def loopback_store(port: int, timeout: float) -> TCPStore:
    """Create a store that listens on loopback; a plain :class:`torch.distributed.TCPStore` listens on all interfaces.

    Anyone who can reach a store can read and set its keys, and ranks unpickle the values.

    Args:
        port: The port to listen on; 0 selects a free one, see the ``port`` of the store.
        timeout: Store timeout in seconds.

    Raises:
        OSError: The port is in use.

    >>> store = loopback_store(0, timeout=5)
    >>> store.set("key", "value")
    >>> store.get("key")
    b'value'
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(socket.SOMAXCONN)
        # The store closes its duplicate of the socket.
        return TCPStore(
            LOOPBACK,
            listener.getsockname()[1],
            is_master=True,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=os.dup(listener.fileno()),
        )
