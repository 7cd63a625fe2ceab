"""A local SFTP server."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import paramiko


@dataclass
class SFTP:
    """A server of the files of a folder for the user "me" with the password "secret".

    Attributes:
        root: The folder.
        known_hosts: File with the server's key.
        port: Where it listens.
        faults: What happens to the next writes of which half is done: "refuse" is told to the client, "cut" ends the
            connection.
        connections: Number of sessions that there were.
    """

    root: Path
    known_hosts: Path
    port: int = 0
    faults: list[str] = field(default_factory=list)
    connections: int = 0


class _Door(paramiko.ServerInterface):
    def __init__(self, transport: paramiko.Transport) -> None:
        self.transport = transport

    def check_auth_password(self, username: str, password: str) -> int:
        return paramiko.AUTH_SUCCESSFUL if (username, password) == ("me", "secret") else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def get_allowed_auths(self, username: str) -> str:
        return "password"


def _files_of(server: SFTP) -> type[paramiko.SFTPServerInterface]:
    class Files(paramiko.SFTPServerInterface):
        def __init__(self, door: _Door, *args, **kwargs) -> None:
            super().__init__(door, *args, **kwargs)
            self.door = door

        def _path(self, name: str) -> Path:
            return Path(str(server.root) + self.canonicalize(name))

        def _do(self, action):
            try:
                result = action()
            except OSError as error:
                return paramiko.SFTPServer.convert_errno(error.errno)
            return paramiko.SFTP_OK if result is None else result

        def list_folder(self, path: str):
            def listed():
                found = []
                for one in self._path(path).iterdir():
                    entry = paramiko.SFTPAttributes.from_stat(one.stat())
                    entry.filename = one.name
                    found.append(entry)
                return found

            return self._do(listed)

        def stat(self, path: str):
            return self._do(lambda: paramiko.SFTPAttributes.from_stat(self._path(path).stat()))

        lstat = stat

        def open(self, path: str, flags: int, attr):
            def opened():
                descriptor = os.open(self._path(path), flags, 0o666)
                writing = flags & (os.O_WRONLY | os.O_RDWR)
                handle = _Handle(flags)
                handle.server, handle.door = server, self.door
                file = os.fdopen(descriptor, "r+b" if writing else "rb")
                handle.filename, handle.readfile, handle.writefile = path, file, file
                return handle

            return self._do(opened)

        def remove(self, path: str):
            return self._do(lambda: self._path(path).unlink())

        def posix_rename(self, oldpath: str, newpath: str):
            return self._do(lambda: _replace(self._path(oldpath), self._path(newpath)))

        def mkdir(self, path: str, attr):
            return self._do(lambda: self._path(path).mkdir())

        def chattr(self, path: str, attr) -> int:
            return paramiko.SFTP_OK

    return Files


def _replace(old: Path, new: Path) -> None:
    old.replace(new)


class _Handle(paramiko.SFTPHandle):
    server: SFTP
    door: _Door

    def stat(self):
        return paramiko.SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))

    def write(self, offset: int, data: bytes) -> int:
        if self.server.faults:
            super().write(offset, data[: len(data) // 2])
            if self.server.faults.pop() == "cut":
                self.door.transport.close()
            return paramiko.SFTP_FAILURE
        return super().write(offset, data)


@contextmanager
def sftp_server(folder: Path) -> Iterator[SFTP]:
    """Run a server while the block runs."""
    (folder / "served").mkdir()
    server = SFTP(folder / "served", folder / "known_hosts")
    key = paramiko.RSAKey.generate(2048)
    listener = socket.create_server(("127.0.0.1", 0))
    server.port = listener.getsockname()[1]
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {key.get_name()} {key.get_base64()}\n")
    transports: list[paramiko.Transport] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            server.connections += 1
            transport = paramiko.Transport(connection)
            transports.append(transport)
            transport.add_server_key(key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, _files_of(server))
            try:
                transport.start_server(server=_Door(transport))
            except (EOFError, paramiko.SSHException):  # the client did not like the key
                continue

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
        for transport in transports:
            transport.close()
