"""Which of a machine's network interfaces leads to another machine."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import sys
from collections.abc import Iterable, Iterator

__all__ = ["choose_interface", "choose_loopback", "has_its_name", "interface_of", "is_loopback", "is_own_address", "own_address"]

_VARIABLE = "GLOO_SOCKET_IFNAME"
# What choose_loopback has set, which is no choice of the user's.
_LOOPBACK: list[str] = []


def choose_interface(hosts: Iterable[str]) -> None:
    """Have gloo communicate over the interface that leads to the other nodes, unless the user has chosen one.

    By itself it takes the address of this machine's own name, which in many systems is a loopback address.

    Args:
        hosts: Names or addresses, the most telling ones first. Those that lead to this machine itself by a loopback
            address tell nothing; where none is left, gloo chooses.

    >>> choose_interface(["localhost"])
    >>> os.environ.get("GLOO_SOCKET_IFNAME")
    """
    if chosen := os.environ.get(_VARIABLE):
        if chosen not in _LOOPBACK:
            return
        del os.environ[_VARIABLE]  # of an earlier group on this node alone
    for host in hosts:
        address = own_address(host)
        if address is not None and (name := interface_of(address)) is not None:
            os.environ[_VARIABLE] = name  # read again for each group that is made
            return


def choose_loopback() -> None:
    """Have gloo listen on loopback, where all ranks run on this node, unless the user has chosen an interface.

    By itself it takes the address of this machine's own name, which other machines may reach.

    >>> before = os.environ.get("GLOO_SOCKET_IFNAME")
    >>> choose_loopback()
    >>> before or os.environ.get("GLOO_SOCKET_IFNAME") == interface_of("127.0.0.1")
    True
    """
    if not os.environ.get(_VARIABLE) and (name := interface_of("127.0.0.1")) is not None:
        _LOOPBACK[:] = [name]
        os.environ[_VARIABLE] = name


def own_address(host: str) -> str | None:
    """Return the address of this machine from which it reaches another, or itself; None where that is by loopback.

    Nothing is sent: it is the routes that tell.

    Args:
        host: Name or address.

    >>> own_address("127.0.0.1") is None
    True
    """
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, found in socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(found)
                address = str(probe.getsockname()[0])
                if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
                    return address
    return None


def is_own_address(host: str, port: int = 0) -> bool:
    """Return whether a name or an address is of this machine.

    Args:
        host: Name or address.
        port: One that has to be free there; 0 for none.

    >>> is_own_address("127.0.0.1"), is_own_address("198.51.100.1")
    (True, False)
    """
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, (address, *rest) in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, *rest))
                return True
    return False


def is_loopback(host: str) -> bool:
    """Return whether a host is reached by loopback only.

    Args:
        host: Name or address.

    >>> is_loopback("127.0.0.1"), is_loopback("198.51.100.1")
    (True, False)
    """
    found = _resolved(host)
    return bool(found) and all(ipaddress.ip_address(one).is_loopback for one in found)


def has_its_name(host: str) -> bool:
    """Return whether a host is loopback, or what this machine's own name stands for.

    Args:
        host: Name or address.

    >>> has_its_name("localhost"), has_its_name("198.51.100.1")
    (True, False)
    """
    found = _resolved(host)
    return bool(found & _resolved(socket.gethostname())) or any(ipaddress.ip_address(one).is_loopback for one in found)


def _resolved(host: str) -> set[str]:
    """All addresses of a host."""
    try:
        return {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def interface_of(address: str) -> str | None:
    """Return the name of the interface that has an address; None where the system does not tell.

    Args:
        address: Of this machine.

    >>> interface_of("198.51.100.1") is None
    True
    """
    if sys.platform != "linux":
        return None
    wanted = ipaddress.ip_address(address.partition("%")[0])
    return next((name for name, found in _addresses() if found == wanted), None)


class _Interface(ctypes.Structure):
    """An entry of the list of getifaddrs(3), up to what is read of it."""


_Interface._fields_ = [
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]

# Where the address begins in sockaddr_in and sockaddr_in6, and its length.
_LAYOUTS = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}


def _addresses() -> Iterator[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """The interfaces of this machine with their addresses."""
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
