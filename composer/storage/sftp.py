"""Servers that speak SFTP, whose keys are checked."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from composer._lazy import import_extra
from composer._secrets.masking import mask_text
from composer._text import one_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["POLICIES", "server_of", "sftp_filesystem"]

# What a packet of the protocol holds, in bytes.
_BLOCK: Final = 32_768

# What to do with a server whose key is in no list of known hosts.
POLICIES: Final = ("RejectPolicy", "AutoAddPolicy", "WarningPolicy")


def sftp_filesystem(uri: str, options: dict[str, Any]) -> tuple[AbstractFileSystem, str]:
    """Return the files of a server, and the path there.

    A server whose key is in no list of known hosts is refused, since anyone could stand in its place.

    Args:
        uri: ``sftp://user:password@host:port/path``, all but the host optional. A path counts from the root of what
            the server shows.
        options: ``known_hosts_filename``, in place of the user's list; ``missing_host_key_policy``, one of
            "RejectPolicy", "AutoAddPolicy" and "WarningPolicy"; and arguments of paramiko's ``SSHClient.connect``.

    Raises:
        MissingConditionalImportError: The package paramiko is not installed.
        ValueError: The URI has no host, or there is no such policy.

    >>> sftp_filesystem("sftp:///path", {})
    Traceback (most recent call last):
    ...
    ValueError: 'sftp:///path' names no host: give sftp://<user>@<host>:<port>/<path>.
    """
    parts = urlsplit(uri)
    if not parts.hostname:
        raise ValueError(f"{mask_text(uri)!r} names no host: give sftp://<user>@<host>:<port>/<path>.")
    given = {"port": parts.port, "username": parts.username, "password": parts.password}
    connection = {key: unquote(value) if isinstance(value, str) else value for key, value in given.items() if value}
    connection.update({key: value for key, value in options.items() if value is not None})
    one_of("missing_host_key_policy", connection.setdefault("missing_host_key_policy", "RejectPolicy"), POLICIES)
    import_extra("paramiko", "sftp", "sftp://", install="paramiko")
    # A connection that was lost stays in the cache of instances.
    return _files()(parts.hostname, skip_instance_cache=True, **connection), unquote(parts.path) or "/"


def server_of(host: str, port: int) -> tuple[str, str]:
    """Return the part of a URI that names a server, and the path that was given with it.

    Args:
        host: The server, or ``sftp://user@server:port/path``.
        port: Its port, if ``host`` has none.

    >>> server_of("server.org", 22), server_of("sftp://me@server.org:2222/data", 22)
    (('server.org:22', ''), ('me@server.org:2222', '/data'))
    """
    text = host.partition("://")[2] or host
    server, slash, path = text.partition("/")
    named = server.rpartition("@")[2]
    return server if ":" in named.rpartition("]")[2] else f"{server}:{port}", f"{slash}{path}".rstrip("/")


@functools.cache
def _files() -> type[AbstractFileSystem]:
    """The class, made when the packages that it stands on are there."""
    import paramiko
    from fsspec.implementations.sftp import SFTPFileSystem

    class Files(SFTPFileSystem):
        """As of fsspec, with lists of known hosts."""

        def _connect(self) -> None:
            arguments = dict(self.ssh_kwargs)
            known, policy = arguments.pop("known_hosts_filename", None), arguments.pop("missing_host_key_policy")
            client = paramiko.SSHClient()
            if known is None:
                client.load_system_host_keys()
            else:
                client.load_host_keys(str(Path(known).expanduser()))
            client.set_missing_host_key_policy(getattr(paramiko, policy)())
            client.connect(self.host, **arguments)
            self.client, self.ftp = client, client.open_sftp()

        def put_file(self, lpath: str, rpath: str, callback: Any = None, **kwargs: Any) -> None:
            """Send a file; paramiko's own way of doing so does not learn of blocks that the server could not write."""
            self.mkdirs(self._parent(rpath), exist_ok=True)
            with Path(lpath).open("rb") as source, self.ftp.open(rpath, "wb") as target:
                target.set_pipelined(True)
                block = source.read(_BLOCK)
                while block:
                    following = source.read(_BLOCK)
                    # With the last block, the answers to all of them are read.
                    target.set_pipelined(bool(following))
                    target.write(block)
                    block = following

    return Files
