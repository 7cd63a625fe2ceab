"""Keep-alive: connections time out if the other side stops responding."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as torch_dist

from composer.dist.rendezvous.keepalive import port_of, set_keepalive

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such limit")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, int]]:
    """A connection, and the port to which it goes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            yield client, port


def limit(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_only_connections_to_the_port(pair: tuple[socket.socket, int]) -> None:
    client, port = pair
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as other:
        set_keepalive(port, 1.5)
        assert (limit(client), limit(other), limit(server)) == (1500, 0, 0)
    set_keepalive(None, 9)
    assert limit(client) == 1500


def test_other_files_stay_open_and_none_leaks(pair: tuple[socket.socket, int]) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    set_keepalive(pair[1], 1)
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    pair[0].sendall(b"x")


def test_ports_of_stores() -> None:
    store = torch_dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert port_of(torch_dist.PrefixStore("a", torch_dist.PrefixStore("b", store))) == store.port
    assert port_of(torch_dist.HashStore()) is None
