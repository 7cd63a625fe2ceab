"""Servers that speak SFTP, whose keys are checked."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from composer._lazy import import_extra
from composer._text import one_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["sftp_filesystem"]

_POLICIES = ("RejectPolicy", "AutoAddPolicy", "WarningPolicy")


def sftp_filesystem(uri: str, options: dict[str, Any]) -> tuple[AbstractFileSystem, str]:
    """Return the files of a server, and the path there.

    A server whose key is in no list of known hosts is refused, since anyone could stand in its place.

    Args:
        uri: ``sftp://user:password@host:port/path``, all but the host optional. A path counts from the root of what
            the server shows.
        options: ``known_hosts_filename``, in place of the user's and the system's lists; ``missing_host_key_policy``, one of
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
        raise ValueError(f"{uri!r} names no host: give sftp://<user>@<host>:<port>/<path>.")
    given = {"port": parts.port, "username": parts.username, "password": parts.password}
    connection = {key: unquote(value) if isinstance(value, str) else value for key, value in given.items() if value}
    connection.update({key: value for key, value in options.items() if value is not None})
    one_of("missing_host_key_policy", connection.setdefault("missing_host_key_policy", "RejectPolicy"), _POLICIES)
    import_extra("paramiko", "sftp", "sftp://", install="paramiko")
    return _files()(parts.hostname, **connection), parts.path or "/"


@functools.cache
def _files() -> type[AbstractFileSystem]:
    """The class, made when the packages that it stands on are there."""
    import paramiko
    from fsspec.implementations.sftp import SFTPFileSystem

    class Files(SFTPFileSystem):
        """As of fsspec, with the lists of known hosts and one session for each thread."""

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

    return Files
