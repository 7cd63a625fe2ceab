"""TCP stores on loopback, and free TCP ports."""

from __future__ import annotations

import socket

from composer.dist.rendezvous.loopback import get_free_tcp_port


def test_free_port_accepts_listeners() -> None:
    # Another program may take the port in between; not ten times in a row.
    for _ in range(10):
        with socket.socket() as server:
            try:
                server.bind(("127.0.0.1", get_free_tcp_port()))
                server.listen()
            except OSError:
                continue
            return
    raise AssertionError("no port was free")
