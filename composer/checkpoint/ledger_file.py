"""The file ``ledger.jsonl`` in a checkpoint folder, local or remote: one line for each process of the run."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import shutil
from pathlib import Path

from composer._secrets.masking import mask_text
from composer.checkpoint.local_folder import LocalCheckpoints
from composer.checkpoint.remote_folder import RemoteCheckpoints
from composer.ledger.ledger import FILENAME
from composer.storage.uris import is_remote

__all__ = ["LocalLedgerFile", "RemoteLedgerFile", "ledger_file_of"]

# At least, of a line, for numbers that grow: it is rewritten in place, so that other processes can append theirs.
_SPARE = 256


class LocalLedgerFile:
    """The ledger in a local folder. The line of this process is appended once, then rewritten in place.

    Args:
        folder: The folder.

    Attributes:
        folder: Its absolute path.
        interval: Seconds between writes.

    >>> file = LocalLedgerFile(tmp_path)
    >>> file.write('{"state": "running"}')
    >>> file.write('{"state": "finished"}')
    >>> [line.strip() for line in file.read().splitlines()]
    ['{"state": "finished"}']
    """

    interval = 0.5

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder.resolve())
        self._path = folder / FILENAME
        self._offset: int | None = None
        self._size = 0

    def read(self) -> str:
        """Return the content; empty if there is no file.

        Raises:
            OSError: It cannot be read, or is not a regular file.
        """
        if not self._path.exists():
            return ""
        if not self._path.is_file():  # reading a named pipe would hang
            raise OSError(f"{str(self._path)!r} is not a regular file.")
        return self._path.read_bytes().decode(errors="replace")

    def write(self, line: str) -> None:
        """Write the line of this process.

        Args:
            line: The line, without a line break.

        Raises:
            OSError: It cannot be written.
        """
        if self._offset is None:
            self._append(line)
            return
        content = line.encode().ljust(self._size)
        if len(content) > self._size:
            raise OSError(f"The line grew from less than {self._size} to {len(content)} bytes.")
        # Not kept open: others may move the folder, and network file systems publish what was written at the close.
        with self._path.open("r+b", buffering=0) as file:
            file.seek(self._offset)
            _write(file, content)

    def _append(self, line: str) -> None:
        """Append the line, with room to grow."""
        self._separate()
        self._size = len(line.encode()) + max(_SPARE, 2 * len(line))
        with self._path.open("ab", buffering=0) as file:
            # A crash of the host may have truncated the last line.
            is_torn = file.tell() > 0 and self._path.read_bytes()[-1:] != b"\n"
            content = (b"\n" if is_torn else b"") + line.encode().ljust(self._size) + b"\n"
            _write(file, content)
            self._offset = file.tell() - self._size - 1

    def _separate(self) -> None:
        """Replace a link by a copy: copies of a folder may share its files, and a ledger belongs to one run."""
        if not self._path.exists() or not (self._path.is_symlink() or self._path.stat().st_nlink > 1):
            return
        temporary = self._path.with_name(f".{FILENAME}.{secrets.token_hex(4)}.tmp")
        try:
            shutil.copyfile(self._path, temporary)
            temporary.replace(self._path)
        finally:
            temporary.unlink(missing_ok=True)

    def is_copy_of(self, folder: str, segment: str) -> bool:
        """Return whether a segment that was written in another folder is still there: whether this is a copy.

        Args:
            folder: Path or URI in the segment.
            segment: Its ``id``.
        """
        if is_remote(folder):
            return True
        original = Path(folder, FILENAME)
        with contextlib.suppress(OSError, ValueError):
            if original.is_file() and not original.samefile(self._path):
                return segment.encode() in original.read_bytes()
        return False


class RemoteLedgerFile:
    """The ledger in a remote folder; the upload thread of the checkpoints writes it.

    Args:
        store: The folder.

    Attributes:
        folder: Its URI, without secrets.
        interval: Seconds between writes.

    >>> store = RemoteCheckpoints("memory://evening/checkpoints")
    >>> file = RemoteLedgerFile(store)
    >>> file.write('{"state": "finished"}')
    >>> store.close()
    >>> RemoteLedgerFile(store).read()
    '{"state": "finished"}\\n'
    """

    interval = 60.0

    def __init__(self, store: RemoteCheckpoints) -> None:
        self.folder = mask_text(store.folder.uri)
        self._store = store
        self._before: str | None = None

    def read(self) -> str:
        """Return the content; empty if there is no file.

        Raises:
            OSError: The store cannot be reached.
        """
        try:
            return self._store.folder.read_text(FILENAME)
        except FileNotFoundError:
            return ""

    def write(self, line: str) -> None:
        """Upload the file with the line of this process, in the background.

        Args:
            line: The line, without a line break.

        Raises:
            OSError: The store cannot be reached.
        """
        if self._before is None:
            before = self.read()
            self._before = before if not before or before.endswith("\n") else f"{before}\n"
        self._store.send_text(FILENAME, f"{self._before}{line}\n")

    def is_copy_of(self, folder: str, segment: str) -> bool:
        """Return whether a segment that was written in another folder may still be there: whether this is a copy.

        Args:
            folder: Path or URI in the segment.
            segment: Its ``id``.
        """
        return True  # where else it is, this process need not be able to see


def _write(file: io.FileIO, content: bytes) -> None:
    """Write all of the content; raise an error if the disk is full after a part of it."""
    if file.write(content) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)


def ledger_file_of(store: LocalCheckpoints | RemoteCheckpoints) -> LocalLedgerFile | RemoteLedgerFile:
    """Return the ledger of a checkpoint folder.

    Args:
        store: The folder.

    >>> ledger_file_of(LocalCheckpoints(tmp_path)).interval
    0.5
    """
    return RemoteLedgerFile(store) if isinstance(store, RemoteCheckpoints) else LocalLedgerFile(store.local)
