"""Rendezvous: all ranks join, and errors name the cause and the missing ranks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch.distributed as torch_dist

from composer.dist import MissingEnvironmentError
from composer.dist.rendezvous import rendezvous
from composer.dist.rendezvous.keepalive import port_of
from composer.dist.rendezvous.rendezvous import join_rendezvous


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Any:
    def place(address: str, port: int | str) -> None:
        monkeypatch.setenv("MASTER_ADDR", address)
        monkeypatch.setenv("MASTER_PORT", str(port))

    return place


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A port that is in use, without a listener unless the test adds one."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder


def test_missing_ranks_are_named(at) -> None:
    at("127.0.0.1", 0)
    expected = (
        rf"^Ranks 1-3 of 4 did not join the rendezvous within 0\.2 s\. 1 joined, from {socket.gethostname()}\. Check"
    )
    with pytest.raises(RuntimeError, match=expected):
        join_rendezvous(0, 4, 0.2)


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_two_ranks_join(at, monkeypatch, address) -> None:
    bare = address.strip("[]")
    try:
        socket.getaddrinfo(bare, None)
        family = socket.AF_INET6 if ":" in bare else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((bare, 0))
    except OSError:
        pytest.skip(f"this host has no {address}")
    # As under torchrun: the launcher hosts the store, all ranks are clients.
    server = torch_dist.TCPStore(bare, 0, is_master=True, wait_for_workers=False)
    at(address, server.port)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    stores: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda r=r: stores.update({r: join_rendezvous(r, 2, 60)})) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stores[0].set("said", "hello")
    assert stores[1].get("said") == b"hello"
    assert stores[1].get("composer/rendezvous/0") == socket.gethostname().encode()


def test_a_port_in_use_is_reported(at, taken) -> None:
    taken.listen()
    port = taken.getsockname()[1]
    at("127.0.0.1", port)
    with pytest.raises(
        RuntimeError, match=rf"MASTER_PORT={port}: rank 0 cannot listen on port {port} \(Address already"
    ):
        join_rendezvous(0, 2, 5)


def test_nothing_listens(at, taken) -> None:
    at("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(RuntimeError, match=r"rank 1 could not connect to rank 0 within 0\.2 s \(Connection refused\)"):
        join_rendezvous(1, 2, 0.2)


def test_unknown_host_name(at) -> None:
    at("no-such-host.invalid", 29500)
    with pytest.raises(RuntimeError, match=r"MASTER_ADDR='no-such-host\.invalid'.*cannot resolve the name"):
        join_rendezvous(1, 2, 0.2)


def test_rank_zero_cannot_resolve_its_own_name(at, monkeypatch) -> None:
    def refuse(*args: Any, **more: Any) -> None:
        raise torch_dist.DistNetworkError("timed out")

    monkeypatch.setattr(rendezvous, "TCPStore", refuse)
    at("198.51.100.1", 0)
    with pytest.raises(RuntimeError, match="rank 0 cannot connect to itself at this address"):
        join_rendezvous(0, 2, 0.2)


@pytest.mark.parametrize(
    ("address", "local_world_size"),
    [("127.0.0.1", None), ("localhost", None), ("no-such-host.invalid", "1"), ("::1", "1")],
)
def test_on_one_node_the_store_listens_on_loopback(at, monkeypatch, address, local_world_size) -> None:
    at(address, 0)
    if local_world_size is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local_world_size)
    store = join_rendezvous(0, 1, 5)
    assert store.get("composer/rendezvous/0") == socket.gethostname().encode()
    listening = [one.laddr for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    assert [one.ip for one in listening if one.port == port_of(store)] == ["127.0.0.1"]


def test_port_serves_another_protocol(at, taken, monkeypatch) -> None:
    def refuse(*args: Any, **more: Any) -> None:
        raise torch_dist.DistNetworkError("timed out")

    taken.listen()
    monkeypatch.setattr(rendezvous, "TCPStore", refuse)
    at("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(RuntimeError, match="rank 1 connected to a program that is not rank 0 of this run"):
        join_rendezvous(1, 2, 0.2)


def test_rank_zero_exits_while_others_wait(monkeypatch) -> None:
    class Gone:
        def check(self, keys: list[str]) -> bool:
            raise torch_dist.DistNetworkError("Broken pipe")

    assert rendezvous._describe_missing_ranks(Gone(), ["a", "b"], 3).startswith("Rank 0 exited during the rendezvous")


def test_missing_environment_variables(at, monkeypatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(MissingEnvironmentError, match=r"world size is 2, .* variable MASTER_ADDR is not set"):
        join_rendezvous(0, 2, 1)
    for port in ("many", "-1", "70000", "29500.0"):
        at("localhost", port)
        with pytest.raises(ValueError, match=f"MASTER_PORT must be a port, 1 to 65535, but is '{port}'"):
            join_rendezvous(0, 2, 1)
