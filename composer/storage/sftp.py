"""SFTP file systems that verify host keys."""

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

# Payload of an SFTP packet, in bytes.
_BLOCK: Final = 32_768

# What to do with an unknown host key.
POLICIES: Final = ("RejectPolicy", "AutoAddPolicy", "WarningPolicy")


def sftp_filesystem(uri: str, options: dict[str, Any]) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a server, and the path on it.

    A server with an unknown host key is rejected, since it could be an impostor.

    Args:
        uri: ``sftp://user:password@host:port/path``; only the host is required. The path is relative to the root of
            the server.
        options: ``known_hosts_filename``, instead of the user's file; ``missing_host_key_policy``, one of
            "RejectPolicy", "AutoAddPolicy" and "WarningPolicy"; and arguments of paramiko's ``SSHClient.connect``.

    Raises:
        MissingConditionalImportError: The package paramiko is not installed.
        ValueError: The URI has no host, or the policy is unknown.

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
    # The instance cache would keep a lost connection.
    return _files()(parts.hostname, skip_instance_cache=True, **connection), unquote(parts.path) or "/"


def server_of(host: str, port: int) -> tuple[str, str]:
    """Return the ``host:port`` component of a URI, and the path.

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
    """Return the file system class; its base class needs optional packages."""
    import paramiko
    from fsspec.implementations.sftp import SFTPFileSystem

    class Files(SFTPFileSystem):
        """fsspec's SFTP file system, with verification of host keys."""

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
            """Upload a file; paramiko's own method does not detect blocks that the server could not write."""
            self.mkdirs(self._parent(rpath), exist_ok=True)
            with Path(lpath).open("rb") as source, self.ftp.open(rpath, "wb") as target:
                target.set_pipelined(True)
                block = source.read(_BLOCK)
                while block:
                    following = source.read(_BLOCK)
                    # The last block reads the responses to all blocks.
                    target.set_pipelined(bool(following))
                    target.write(block)
                    block = following

    return Files
