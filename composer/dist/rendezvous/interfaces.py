"""Select the network interface that leads to other nodes (``GLOO_SOCKET_IFNAME``)."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import sys
from collections.abc import Iterable, Iterator

__all__ = ["choose_interface", "choose_loopback", "interface_of", "is_local_address", "is_loopback", "resolves_to_this_host", "source_address"]

_VARIABLE = "GLOO_SOCKET_IFNAME"
# The value set by choose_loopback, to tell it from a choice of the user.
_chosen_here: list[str] = []


def choose_interface(hosts: Iterable[str]) -> None:
    """Make gloo use the network interface that leads to the other nodes, unless the user has chosen one.

    By default gloo uses the address that the host's name resolves to, often a loopback address.

    Args:
        hosts: Host names or addresses in order of preference. Those that resolve to a loopback address are skipped; if
            none is left, gloo chooses.

    >>> choose_interface(["localhost"])
    >>> os.environ.get("GLOO_SOCKET_IFNAME")
    """
    if chosen := os.environ.get(_VARIABLE):
        if chosen not in _chosen_here:
            return
        del os.environ[_VARIABLE]  # set for an earlier single-node group
    for host in hosts:
        address = source_address(host)
        if address is not None and (name := interface_of(address)) is not None:
            os.environ[_VARIABLE] = name  # gloo reads it for each new group
            return


def choose_loopback() -> None:
    """Make gloo listen on loopback, for single-node runs, unless the user has chosen an interface.

    By default gloo uses the address that the host's name resolves to, which other hosts may reach.

    >>> before = os.environ.get("GLOO_SOCKET_IFNAME")
    >>> choose_loopback()
    >>> before or os.environ.get("GLOO_SOCKET_IFNAME") == interface_of("127.0.0.1")
    True
    """
    if not os.environ.get(_VARIABLE) and (name := interface_of("127.0.0.1")) is not None:
        _chosen_here[:] = [name]
        os.environ[_VARIABLE] = name


def source_address(host: str) -> str | None:
    """Return the local address from which this host reaches another; None if that is a loopback address.

    Only the routing table is used; nothing is sent.

    Args:
        host: Host name or address.

    >>> source_address("127.0.0.1") is None
    True
    """
    with contextlib.suppress(OSError):
        for family, socket_type, protocol, _, found in socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, socket_type, protocol) as probe:
                probe.connect(found)
                address = str(probe.getsockname()[0])
                if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
                    return address
    return None


def is_local_address(host: str, port: int = 0) -> bool:
    """Return whether a host name or address belongs to this host.

    Args:
        host: Host name or address.
        port: A port that must also be free; 0 for any.

    >>> is_local_address("127.0.0.1"), is_local_address("198.51.100.1")
    (True, False)
    """
    with contextlib.suppress(OSError):
        for family, socket_type, protocol, _, (address, *rest) in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, socket_type, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, *rest))
                return True
    return False


def is_loopback(host: str) -> bool:
    """Return whether a host resolves to loopback addresses only.

    Args:
        host: Host name or address.

    >>> is_loopback("127.0.0.1"), is_loopback("198.51.100.1")
    (True, False)
    """
    found = _resolved(host)
    return bool(found) and all(ipaddress.ip_address(one).is_loopback for one in found)


def resolves_to_this_host(host: str) -> bool:
    """Return whether a host resolves to a loopback address, or to an address of this host's name.

    Args:
        host: Host name or address.

    >>> resolves_to_this_host("localhost"), resolves_to_this_host("198.51.100.1")
    (True, False)
    """
    found = _resolved(host)
    return bool(found & _resolved(socket.gethostname())) or any(ipaddress.ip_address(one).is_loopback for one in found)


def _resolved(host: str) -> set[str]:
    """Return all addresses of a host."""
    try:
        return {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def interface_of(address: str) -> str | None:
    """Return the name of the network interface with an address; None if there is none, or outside Linux.

    Args:
        address: An address of this host.

    >>> interface_of("198.51.100.1") is None
    True
    """
    if sys.platform != "linux":
        return None
    wanted = ipaddress.ip_address(address.partition("%")[0])
    return next((name for name, found in _addresses() if found == wanted), None)


class _Interface(ctypes.Structure):
    """An entry of the list of getifaddrs(3), up to the last field that is read."""


_Interface._fields_ = [
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]

# Offset and length of the address in sockaddr_in and sockaddr_in6.
_LAYOUTS = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}


def _addresses() -> Iterator[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """Yield the network interfaces of this host with their addresses."""
    libc = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_Interface)()
    if libc.getifaddrs(ctypes.byref(head)) != 0:
        return
    try:
        entry = head
        while entry:
            one = entry.contents
            family = ctypes.c_ushort.from_address(one.address).value if one.address else None
            if family in _LAYOUTS:
                start, length = _LAYOUTS[socket.AddressFamily(family)]
                yield one.name.decode(), ipaddress.ip_address(ctypes.string_at(one.address + start, length))
            entry = one.next
    finally:
        libc.freeifaddrs(head)
