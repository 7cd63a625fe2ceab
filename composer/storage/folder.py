"""A local or remote folder (any fsspec URI) with atomic uploads and downloads."""

from __future__ import annotations

import contextlib
import datetime
import secrets
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from composer._secrets.masking import mask_error, mask_text, secrets_in
from composer.storage.errors import ObjectStoreTransientError, is_transient
from composer.storage.uris import filesystem, join, join_path

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Entry", "Folder", "Progress"]

Progress = Callable[[int, int], object]
"""Called with the bytes transferred so far and their total."""

# Stores in which an object only appears when it is complete. In others, a temporary file is renamed.
_ATOMIC_SCHEMES: Final = frozenset({"abfs", "abfss", "adl", "az", "gcs", "gs", "hf", "oci", "s3", "s3a"})
_TIMES: Final = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")


@dataclass(frozen=True)
class Entry:
    """A file of a folder.

    Attributes:
        name: Name relative to the folder.
        size: Size in bytes.
        modified: Modification time in seconds since 1970; 0 if unknown.

    >>> folder = Folder("memory://entries")
    >>> folder.write_text("ep1.pt", "weights")
    >>> [(entry.name, entry.size) for entry in folder.entries()]
    [('ep1.pt', 7)]
    """

    name: str
    size: int
    modified: float


class Folder:
    """Files below a URI.

    It connects when it is first used, and reconnects after a failure that may be a lost connection.

    Args:
        uri: URI of the folder, with any scheme that fsspec supports.
        options: Arguments of the file system, see :func:`.filesystem`.

    >>> folder = Folder("memory://run")
    >>> folder.write_text("deep/name.txt", "night")
    >>> folder.read_text("deep/name.txt"), folder.names(), folder.exists("other.txt")
    ('night', ['deep/name.txt'], False)
    >>> folder.remove("deep/name.txt")
    >>> folder.names()
    []
    """

    def __init__(self, uri: str, options: Mapping[str, Any] | None = None) -> None:
        scheme, found, rest = uri.partition("://")
        self.uri = f"{scheme}{found}{rest.rstrip('/')}"
        self._options = dict(options or {})
        self._opened: tuple[AbstractFileSystem, str] | None = None

    def uri_of(self, name: str) -> str:
        """Return the URI of a file.

        Args:
            name: Relative to the folder.
        """
        return join(self.uri, name)

    def upload(self, path: Path | str, name: str, progress: Progress | None = None) -> None:
        """Upload a file atomically; an existing file is replaced.

        Args:
            path: Local path of the file.
            name: Name in the folder.
            progress: Called with the bytes transferred so far and their total.

        Raises:
            ObjectStoreTransientError: The upload is incomplete.
            OSError: The file cannot be read, or the store rejects it.
        """
        path = Path(path)
        with self._files(name) as (files, target):
            is_atomic = not _ATOMIC_SCHEMES.isdisjoint(_protocols(files))
            above, _, last = target.rpartition("/")
            written = target if is_atomic else f"{above}/.{last}.{secrets.token_hex(4)}.tmp"
            if not is_atomic:
                files.makedirs(above or "/", exist_ok=True)
            size = path.stat().st_size
            try:
                files.put_file(str(path), written, callback=_callback(progress))
                files.invalidate_cache()
                arrived = int(files.info(written)["size"])
                # A file that is still being written, such as a log, may have grown.
                if not size <= arrived <= max(size, path.stat().st_size):
                    raise ObjectStoreTransientError(
                        f"{str(path)!r}: only {arrived} of {size} bytes were uploaded to {self._masked_uri(name)!r}."
                    )
                if not is_atomic:
                    _move(files, written, target)
                if progress is not None:  # not every file system calls it
                    progress(arrived, arrived)
            except BaseException:
                if not is_atomic:
                    with contextlib.suppress(Exception):
                        files.rm_file(written)
                raise

    def download(self, name: str, path: Path | str, progress: Progress | None = None) -> None:
        """Download a file atomically; an existing file is replaced.

        Args:
            name: Name in the folder.
            path: Local path; its folder is created.
            progress: Called with the bytes transferred so far and their total.

        Raises:
            FileNotFoundError: The file does not exist.
            ObjectStoreTransientError: The download is incomplete.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        with self._files(name) as (files, source):
            try:
                size = self._info(files, source, name)["size"]
                files.get_file(source, str(part), callback=_callback(progress))
                if size is not None and part.stat().st_size != size:
                    raise ObjectStoreTransientError(
                        f"{self._masked_uri(name)!r}: only {part.stat().st_size} of {size} bytes were downloaded."
                    )
                part.replace(path)
                if progress is not None:
                    progress(path.stat().st_size, path.stat().st_size)
            finally:
                part.unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        """Return whether a file exists.

        Args:
            name: Name in the folder.
        """
        try:
            self.entry(name)
        except FileNotFoundError:
            return False
        return True

    def entry(self, name: str) -> Entry:
        """Return size and modification time of a file.

        Args:
            name: Name in the folder.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        with self._files(name) as (files, path):
            files.invalidate_cache()
            info = self._info(files, path, name)
        return Entry(name, int(info["size"] or 0), _when(info))

    def entries(self, *, deep: bool = False) -> list[Entry]:
        """Return the files in the folder, sorted by name; an empty list if the folder does not exist.

        Args:
            deep: Whether to include files in subfolders.
        """
        with self._files("") as (files, root):
            files.invalidate_cache()
            try:
                found: Any = files.find(root, detail=True) if deep else files.ls(root, detail=True)
            except FileNotFoundError:
                return []
        bare, entries = root.strip("/"), list[Entry]()
        for one in cast("Iterable[dict[str, Any]]", found.values() if deep else found):
            path = str(one["name"])
            name = path.lstrip("/").removeprefix(bare).lstrip("/") if deep else path.rpartition("/")[2]
            if one["type"] == "file" and name:
                entries.append(Entry(name, int(one["size"] or 0), _when(one)))
        return sorted(entries, key=lambda one: one.name)

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all files, at any depth, that start with a prefix.

        Args:
            prefix: The prefix; need not end at a folder.
        """
        above = prefix.rpartition("/")[0]
        with self._files("") as (files, root):
            files.invalidate_cache()
            root = root.rstrip("/")
            try:
                found = cast("list[str]", files.find(f"{root}/{above}" if above else root or "/"))
            except FileNotFoundError:
                return []
        bare = root.lstrip("/")
        names = [str(path).lstrip("/").removeprefix(bare).lstrip("/") for path in found]
        return sorted(name for name in names if name.startswith(prefix))

    def remove(self, name: str) -> None:
        """Delete a file if it exists.

        Args:
            name: Name in the folder.
        """
        with self._files(name) as (files, path), contextlib.suppress(FileNotFoundError):
            files.rm_file(path)

    def remove_all(self) -> None:
        """Delete the folder with all its files, if it exists.

        >>> folder = Folder("memory://run/old")
        >>> folder.write_text("deep/name.txt", "night")
        >>> folder.remove_all()
        >>> folder.names()
        []
        """
        with self._files("") as (files, root), contextlib.suppress(FileNotFoundError):
            files.rm(root, recursive=True)

    def read_text(self, name: str) -> str:
        """Return the content of a small text file.

        Args:
            name: Name in the folder.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        with self._files(name) as (files, path):
            files.invalidate_cache()
            self._info(files, path, name)
            return cast("bytes", files.cat_file(path)).decode(errors="replace")

    def write_text(self, name: str, text: str) -> None:
        """Write a small text file.

        Args:
            name: Name in the folder.
            text: Its content.
        """
        with tempfile.TemporaryDirectory(prefix="composer-") as folder:
            path = Path(folder, "text")
            path.write_text(text, encoding="utf-8")
            self.upload(path, name)

    def probe(self) -> None:
        """Write and delete a small file, to check for write permission.

        Raises:
            OSError: The folder is not writable.
        """
        name = f".composer-{secrets.token_hex(4)}"
        self.write_text(name, "This file may be removed.")
        self.remove(name)

    def close(self) -> None:
        """Close the connection; it is opened again when needed."""
        opened, self._opened = self._opened, None
        # An SFTP connection belongs to this folder; the sessions of object stores are shared.
        if opened is not None and "sftp" in _protocols(opened[0]):
            cast("Any", opened[0]).client.close()

    @contextlib.contextmanager
    def _files(self, name: str) -> Generator[tuple[AbstractFileSystem, str]]:
        """Yield the file system and the path of a name; close a connection that may be broken."""
        opened = self._opened  # another thread may close it meanwhile
        if opened is None:
            opened = self._opened = filesystem(self.uri, self._options)
        files, root = opened
        try:
            yield files, join_path(root, name) if name else root
        except Exception as error:
            if is_transient(error):
                self.close()
            # The errors of clients contain the request, with the password in it.
            if (masked := mask_error(error, secrets_in([self.uri, self._options]))) is not error:
                raise masked from masked.__cause__
            raise

    def _masked_uri(self, name: str) -> str:
        """Return the URI of a file for messages, without secrets."""
        return mask_text(self.uri_of(name))

    def _info(self, files: AbstractFileSystem, path: str, name: str) -> dict[str, Any]:
        info = cast("dict[str, Any]", files.info(path))
        if info["type"] != "file":
            raise FileNotFoundError(f"{self._masked_uri(name)!r} is a {info['type']}, not a file.")
        return info


def _move(files: AbstractFileSystem, source: str, target: str) -> None:
    from fsspec import AbstractFileSystem

    if type(files).mv is AbstractFileSystem.mv:
        # The default implementation would treat names such as [a]* as patterns.
        files.cp_file(source, target)
        files.rm_file(source)
    else:
        files.mv(source, target)


def _protocols(files: AbstractFileSystem) -> tuple[str, ...]:
    protocol = files.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _callback(progress: Progress | None) -> Any:
    from fsspec.callbacks import Callback, NoOpCallback

    if progress is None:
        return NoOpCallback()

    class ProgressCallback(Callback):
        def call(self, hook_name: str | None = None, **kwargs: Any) -> None:
            if self.size:
                progress(int(self.value), int(self.size))

    return ProgressCallback()


def _when(info: Mapping[str, Any]) -> float:
    for key in _TIMES:
        value = info.get(key)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = datetime.datetime.fromisoformat(value)
        if isinstance(value, datetime.datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    commit = info.get("last_commit")
    return commit.date.timestamp() if commit is not None else 0.0
