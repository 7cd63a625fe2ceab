"""Stores and interfaces of a run on one node, which listen on loopback only: no other machine can connect to them."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

__all__ = ["LOOPBACK", "is_one_node", "loopback_store"]

LOOPBACK = "127.0.0.1"
"""The address by which the ranks of one node reach each other."""


def is_one_node(world_size: int) -> bool:
    """Return whether all ranks run on this node, as the launcher says.

    Args:
        world_size: Number of ranks.

    >>> is_one_node(1), is_one_node(2)
    (True, False)
    """
    return world_size == 1 or os.environ.get("LOCAL_WORLD_SIZE") == str(world_size)


def loopback_store(port: int, timeout: float) -> TCPStore:
    """Return a store that listens on loopback, where a :class:`torch.distributed.TCPStore` listens on all interfaces.

    Whoever reaches a store can read and set its keys, and ranks unpickle what they find there.

    Args:
        port: To listen on; 0 takes a free one, which is the store's ``port``.
        timeout: Seconds that the store waits for an answer.

    Raises:
        OSError: The port is taken.

    >>> store = loopback_store(0, timeout=5)
    >>> store.set("key", "value")
    >>> store.get("key")
    b'value'
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(socket.SOMAXCONN)
        # The store closes the socket at its end.
        return TCPStore(
            LOOPBACK,
            listener.getsockname()[1],
            is_master=True,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=os.dup(listener.fileno()),
        )
