"""A folder anywhere, in which a file is there as a whole or not at all."""

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

# Stores in which an object appears when it is complete. Elsewhere a file is renamed when it is.
_ATOMIC_SCHEMES: Final = frozenset({"abfs", "abfss", "adl", "az", "gcs", "gs", "hf", "oci", "s3", "s3a"})
_TIMES: Final = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")


@dataclass(frozen=True)
class Entry:
    """A file of a folder.

    Attributes:
        name: Relative to the folder.
        size: In bytes.
        modified: When it was written, in seconds since 1970; 0 where the store does not tell.

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

    It connects when it is first used, and anew after a failure that may be one of the connection.

    Args:
        uri: Of the folder, of any scheme that fsspec knows.
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
        """Put a file here; one of the same name is replaced when all of it has arrived.

        Args:
            path: Where it lies on this machine.
            name: Its name here.
            progress: Told how far it is.

        Raises:
            ObjectStoreTransientError: Not all of it has arrived.
            OSError: It cannot be read, or the store refuses it.
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
                # A file that is written to meanwhile, such as a log, has grown.
                if not size <= arrived <= max(size, path.stat().st_size):
                    raise ObjectStoreTransientError(
                        f"Of {str(path)!r}, {size} bytes, {arrived} have arrived at {self._masked_uri(name)!r}."
                    )
                if not is_atomic:
                    _move(files, written, target)
                if progress is not None:  # of which not every file system tells
                    progress(arrived, arrived)
            except BaseException:
                if not is_atomic:
                    with contextlib.suppress(Exception):
                        files.rm_file(written)
                raise

    def download(self, name: str, path: Path | str, progress: Progress | None = None) -> None:
        """Fetch a file; what is at the path is replaced when all of it has arrived.

        Args:
            name: Its name here.
            path: Where to on this machine; the folder is made.
            progress: Told how far it is.

        Raises:
            FileNotFoundError: There is no such file.
            ObjectStoreTransientError: Not all of it has arrived.
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
                        f"Of {self._masked_uri(name)!r}, {size} bytes, {part.stat().st_size} have arrived."
                    )
                part.replace(path)
                if progress is not None:
                    progress(path.stat().st_size, path.stat().st_size)
            finally:
                part.unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        """Tell whether there is a file.

        Args:
            name: Its name here.
        """
        try:
            self.entry(name)
        except FileNotFoundError:
            return False
        return True

    def entry(self, name: str) -> Entry:
        """Return what the store tells of a file.

        Args:
            name: Its name here.

        Raises:
            FileNotFoundError: There is no such file.
        """
        with self._files(name) as (files, path):
            files.invalidate_cache()
            info = self._info(files, path, name)
        return Entry(name, int(info["size"] or 0), _when(info))

    def entries(self, *, deep: bool = False) -> list[Entry]:
        """Return the files in the folder, by their names; none if there is no folder.

        Args:
            deep: Whether those at any depth are among them, rather than those that lie directly in the folder.
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
        """Return the names of all files at any depth that begin with some text.

        Args:
            prefix: The text; need not be a whole name of a folder.
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
        """Remove a file, if it is there.

        Args:
            name: Its name here.
        """
        with self._files(name) as (files, path), contextlib.suppress(FileNotFoundError):
            files.rm_file(path)

    def remove_all(self) -> None:
        """Remove the folder with everything that is in it, if it is there.

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
            name: Its name here.

        Raises:
            FileNotFoundError: There is no such file.
        """
        with self._files(name) as (files, path):
            files.invalidate_cache()
            self._info(files, path, name)
            return cast("bytes", files.cat_file(path)).decode(errors="replace")

    def write_text(self, name: str, text: str) -> None:
        """Write a small text file.

        Args:
            name: Its name here.
            text: Its content.
        """
        with tempfile.TemporaryDirectory(prefix="composer-") as folder:
            path = Path(folder, "text")
            path.write_text(text, encoding="utf-8")
            self.upload(path, name)

    def probe(self) -> None:
        """Write a small file and remove it, to learn now whether that is allowed.

        Raises:
            OSError: It is not.
        """
        name = f".composer-{secrets.token_hex(4)}"
        self.write_text(name, "This file may be removed.")
        self.remove(name)

    def close(self) -> None:
        """Let go of the connection, which is made again when it is needed."""
        opened, self._opened = self._opened, None
        # A server's connection is this folder's own; the sessions of stores are shared.
        if opened is not None and "sftp" in _protocols(opened[0]):
            cast("Any", opened[0]).client.close()

    @contextlib.contextmanager
    def _files(self, name: str) -> Generator[tuple[AbstractFileSystem, str]]:
        """Give the file system and the path of a name; forget a connection that may be broken."""
        opened = self._opened  # another thread may close it meanwhile
        if opened is None:
            opened = self._opened = filesystem(self.uri, self._options)
        files, root = opened
        try:
            yield files, join_path(root, name) if name else root
        except Exception as error:
            if is_transient(error):
                self.close()
            # Clients say what they were asked for, with the password in it.
            if (masked := mask_error(error, secrets_in([self.uri, self._options]))) is not error:
                raise masked from masked.__cause__
            raise

    def _masked_uri(self, name: str) -> str:
        """The URI of a file for messages."""
        return mask_text(self.uri_of(name))

    def _info(self, files: AbstractFileSystem, path: str, name: str) -> dict[str, Any]:
        info = cast("dict[str, Any]", files.info(path))
        if info["type"] != "file":
            raise FileNotFoundError(f"{self._masked_uri(name)!r} is a {info['type']}, not a file.")
        return info


def _move(files: AbstractFileSystem, source: str, target: str) -> None:
    from fsspec import AbstractFileSystem

    if type(files).mv is AbstractFileSystem.mv:
        # Which takes names such as [a]* for patterns.
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
