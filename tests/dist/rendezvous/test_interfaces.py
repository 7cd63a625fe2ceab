"""Choose the network interface for other nodes."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from composer.dist.rendezvous import interfaces
from composer.dist.rendezvous.interfaces import (
    choose_interface,
    choose_loopback,
    interface_of,
    is_local_address,
    is_loopback,
    resolves_to_this_host,
    source_address,
)


@pytest.fixture(autouse=True)
def _none_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system is not asked")
def test_interfaces_match_the_system() -> None:
    assert interface_of("127.0.0.1") == "lo"
    names = {name for name, _ in interfaces._addresses()}
    assert names <= {name for _, name in socket.if_nameindex()}
    for name, address in interfaces._addresses():
        assert interface_of(str(address)) is not None, (name, address)
    assert interface_of("198.51.100.1") is None


def test_address_of_this_host_accepts_listeners() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_local_address("127.0.0.1")
        assert not is_local_address("127.0.0.1", port), "somebody listens there already"
    assert is_local_address("localhost")
    assert not is_local_address("198.51.100.1")
    assert not is_local_address("no-such-host.invalid")


def test_loopback_does_not_identify_other_hosts() -> None:
    assert source_address("127.0.0.1") is None
    assert source_address("::1") is None
    assert source_address("no-such-host.invalid") is None
    choose_interface(["127.0.0.1", "no-such-host.invalid"])
    assert not os.environ["GLOO_SOCKET_IFNAME"]


def test_first_informative_host_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "source_address", {"a": None, "b": "10.0.0.1", "c": "10.0.1.1"}.get)
    monkeypatch.setattr(interfaces, "interface_of", {"10.0.0.1": "eth0", "10.0.1.1": "ib0"}.get)
    choose_interface(["a", "b", "c"])
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth0"


def test_user_choice_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    monkeypatch.setattr(interfaces, "source_address", lambda host: pytest.fail("asked"))
    choose_interface(["a"])
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system is not asked")
def test_loopback_is_used_for_one_node_only(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_loopback()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    monkeypatch.setattr(interfaces, "source_address", {"a": "10.0.0.1"}.get)
    monkeypatch.setattr(interfaces, "interface_of", {"10.0.0.1": "eth0"}.get)
    choose_interface(["a"])
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth0"
    choose_loopback()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth0"


def test_names_of_this_host() -> None:
    assert resolves_to_this_host("localhost")
    assert is_loopback("localhost")
    assert not is_loopback("198.51.100.1")
    assert not is_loopback("no-such-host.invalid")
    assert resolves_to_this_host("127.0.0.1")
    assert not resolves_to_this_host("198.51.100.1")
    assert not resolves_to_this_host("no-such-host.invalid")
