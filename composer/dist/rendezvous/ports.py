"""Find a free TCP port on this host."""

from __future__ import annotations

import socket

__all__ = ["get_free_tcp_port"]


def get_free_tcp_port() -> int:
    """Return a TCP port that is free now; another program may take it before it is used.

    >>> 1024 <= get_free_tcp_port() < 65536
    True
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
