"""Download files and folders from paths, URIs and object stores; follow ``.symlink`` files."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from composer import dist
from composer._secrets.masking import mask_error, mask_text, secrets_in
from composer.storage.errors import is_transient
from composer.storage.folder import Folder, Progress
from composer.storage.retrying import call_with_retries
from composer.storage.uris import is_remote, join, local_path, parse_uri, split

__all__ = ["LINK_SUFFIX", "copy_file", "fetched", "get_file", "link_targets", "modified", "read_link_file", "remove"]

LINK_SUFFIX = ".symlink"
"""Suffix of a small text file with the name of another file, in place of a symlink."""

_MOST_LINKS = 8
_MOST_BYTES_OF_A_NAME = 1 << 14


@contextlib.contextmanager
def fetched(path: Path | str, object_store: Any = None, *, progress_bar: bool = True) -> Generator[Path]:
    """Yield the local path of a file or folder; a remote one is downloaded first and deleted afterwards.

    All ranks must call this; local rank 0 of each node downloads, and the others wait. ``<path>.symlink`` is followed.

    Args:
        path: A path, any URI that fsspec supports, or a name in the object store.
        object_store: An :class:`.ObjectStore` or a logger that stores files; None for a path or URI.
        progress_bar: Whether to show the progress of the transfer.

    Raises:
        FileNotFoundError: The file does not exist.

    >>> import fsspec
    >>> with fsspec.open("memory://downloads/weights.pt", "wb") as file:
    ...     _ = file.write(b"weights")
    >>> with fetched("memory://downloads/weights.pt", progress_bar=False) as local:
    ...     local.read_bytes()
    b'weights'
    """
    if object_store is None and not is_remote(path):
        yield local_path(path)
        return
    path = os.fspath(path)
    last = path.rpartition("/")[2].removesuffix(LINK_SUFFIX)
    with _folder_of_node() as folder:
        local = folder / last
        if dist.get_local_rank() == 0:
            try:
                get_file(path, local, object_store, progress_bar=progress_bar)
            except BaseException as error:
                (folder / ".failed").write_text(mask_text(f"{type(error).__name__}: {error}", secrets_in(path)))
                raise
        else:
            _wait_for(local, path)
        yield local


def get_file(
    path: Path | str,
    destination: Path | str,
    object_store: Any = None,
    overwrite: bool = False,
    progress_bar: bool = True,
) -> None:
    """Download a file or folder to a local path; a local file is symlinked instead.

    If the file does not exist, ``<path>.symlink`` is tried, a text file with the name of another file.

    Args:
        path: A path, any URI that fsspec supports, or a name in the object store.
        destination: Local path; its folder is created.
        object_store: An :class:`.ObjectStore` or a logger that stores files; None for a path or URI.
        overwrite: Whether to replace an existing file.
        progress_bar: Whether to show the progress of the transfer.

    Raises:
        FileNotFoundError: The file does not exist.
        FileExistsError: The destination exists.

    >>> (tmp_path / "a.txt").write_text("text")
    4
    >>> get_file(str(tmp_path / "a.txt"), tmp_path / "deep" / "b.txt")
    >>> (tmp_path / "deep" / "b.txt").read_text()
    'text'
    """
    path, destination = os.fspath(path), Path(destination)
    if os.path.lexists(destination) and not overwrite:
        raise FileExistsError(f"destination={str(destination)!r} exists; give overwrite=True to replace it.")
    destination.parent.mkdir(parents=True, exist_ok=True)

    def get(name: str, follow: int = _MOST_LINKS) -> None:
        if not name.endswith(LINK_SUFFIX):
            try:
                copy_file(name, destination, object_store, progress_bar=progress_bar)
            except FileNotFoundError:
                if not _copy_folder(name, destination, object_store, progress_bar):
                    raise
            return
        with tempfile.TemporaryDirectory(prefix="composer-") as folder:
            text = Path(folder, "link")
            copy_file(name, text, object_store, progress_bar=False)
            content = read_link_file(text)
        if not follow:
            raise FileNotFoundError(f"{path!r} is a chain of more than {_MOST_LINKS} links, which is not followed.")
        targets = link_targets(name, content, in_store=object_store is not None)
        for number, target in enumerate(targets):
            try:
                get(target, follow - 1)
            except FileNotFoundError:
                if number == len(targets) - 1:
                    raise
            else:
                return

    try:
        get(path)
    except FileNotFoundError as error:
        if path.endswith(LINK_SUFFIX):
            raise
        try:
            get(f"{path}{LINK_SUFFIX}")
        except FileNotFoundError:
            raise error from None


def copy_file(path: str, destination: Path, object_store: Any = None, *, progress_bar: bool = True) -> None:
    """Download a file as :func:`get_file` does, without following links, with retries; an existing file is replaced.

    Args:
        path: A path, any URI that fsspec supports, or a name in the object store.
        destination: Local path.
        object_store: An :class:`.ObjectStore` or a logger that stores files; None for a path or URI.
        progress_bar: Whether to show the progress of the transfer.

    Raises:
        FileNotFoundError: The file does not exist.

    >>> _ = (tmp_path / "a.txt").write_text("text")
    >>> copy_file(str(tmp_path / "a.txt"), tmp_path / "b.txt")
    >>> (tmp_path / "b.txt").read_text()
    'text'
    """
    try:
        call_with_retries(lambda: _get(path, destination, object_store, progress_bar), is_transient)
    except Exception as error:
        if (masked := mask_error(error, secrets_in(path))) is not error:
            raise masked from masked.__cause__
        raise


def remove(path: Path | str) -> None:
    """Delete a file if it exists.

    Args:
        path: A path or URI.

    >>> remove(tmp_path / "absent.pt")
    """
    if not is_remote(path):
        local_path(path).unlink(missing_ok=True)
        return
    folder, name = split(os.fspath(path))
    Folder(folder).remove(name)


def modified(path: Path | str) -> float:
    """Return the modification time of a file, in seconds since 1970.

    Args:
        path: A path or URI.

    Raises:
        FileNotFoundError: The file does not exist.

    >>> (tmp_path / "a.pt").touch()
    >>> modified(tmp_path / "a.pt") > 1e9
    True
    """
    if not is_remote(path):
        return local_path(path).stat().st_mtime
    folder, name = split(os.fspath(path))
    return Folder(folder).entry(name).modified


def link_targets(link: str, name: str, *, in_store: bool = False) -> list[str]:
    """Return the possible targets of a link: relative to the link, or, for older runs, relative to the bucket.

    Args:
        link: Path, URI or name in an object store of the text file.
        name: Its content.
        in_store: Whether ``link`` is a name in an object store.

    Raises:
        FileNotFoundError: The target is in another store, or is a local path while the link is remote; such links are
            not followed.

    >>> link_targets("s3://bucket/run/latest.pt.symlink", "ep1.pt")
    ['s3://bucket/run/ep1.pt', 's3://bucket/ep1.pt']
    """
    is_from_store = in_store or is_remote(link)
    if _bucket_uri(name) != _bucket_uri(link) if is_remote(name) else is_from_store and Path(name).is_absolute():
        raise FileNotFoundError(
            mask_text(f"{link!r} points to {name!r}, which is in another location and is not followed.")
        )
    if is_remote(name) or Path(name).is_absolute():
        return [name]
    sibling = f"{link.rpartition('/')[0]}/{name}" if "/" in link else name
    if in_store:
        return list(dict.fromkeys([sibling, name]))
    if not is_remote(link):
        return [os.path.normpath(sibling)]
    scheme, _, rest = link.partition("://")
    return [join(split(link)[0], name), join(f"{scheme}://{rest.partition('/')[0]}", name)]


def _bucket_uri(name: str) -> str | None:
    """Return scheme and bucket or host of a URI; None for other names."""
    scheme, separator, rest = name.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if separator else None


def read_link_file(link: Path) -> str:
    """Return the name in a local ``.symlink`` file; an invalid name if the file is corrupted.

    Args:
        link: The text file.

    >>> _ = (tmp_path / "latest.pt.symlink").write_text("ep1.pt")
    >>> read_link_file(tmp_path / "latest.pt.symlink")
    'ep1.pt'
    """
    with link.open("rb") as file:
        return (
            file.read(_MOST_BYTES_OF_A_NAME).decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}").strip()
        )


def _get(path: str, destination: Path, object_store: Any, progress_bar: bool) -> None:
    if object_store is not None and hasattr(object_store, "download_file"):
        object_store.download_file(path, str(destination), overwrite=True, progress_bar=progress_bar)
        return
    if object_store is None and not is_remote(path):
        _link(local_path(path), destination)
        return
    with _bar(path, progress_bar) as progress:
        if object_store is not None:
            object_store.download_object(path, str(destination), overwrite=True, callback=progress)
        elif parse_uri(path)[0] in ("http", "https"):
            _download(path, destination, progress)
        else:
            folder, name = split(path)
            Folder(folder).download(name, destination, progress)


def _copy_folder(path: str, destination: Path, object_store: Any, progress_bar: bool) -> bool:
    """Download a folder, which appears when all files have arrived; return whether it has any files."""
    if object_store is None:
        is_listed = is_remote(path) and parse_uri(path)[0] not in ("http", "https")
        names = Folder(path).names() if is_listed else []
    elif hasattr(object_store, "list_objects"):
        names = [one.removeprefix(f"{path}/") for one in object_store.list_objects(f"{path}/")]
    else:
        names = object_store.list_files(path) if hasattr(object_store, "list_files") else []
    if not names:
        return False
    with tempfile.TemporaryDirectory(prefix=f".{destination.name}.", suffix=".tmp", dir=destination.parent) as above:
        begun = Path(above, destination.name)
        for name in names:
            if ".." in Path(name).parts or Path(name).is_absolute():
                raise ValueError(f"{path!r} has a file {name!r} outside the folder.")
            (begun / name).parent.mkdir(parents=True, exist_ok=True)
            copy_file(f"{path}/{name}", begun / name, object_store, progress_bar=progress_bar)
        begun.rename(destination)
    return True


def _link(path: Path, destination: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(f"The file {str(path)!r} does not exist.")
    destination.unlink(missing_ok=True)
    try:
        destination.symlink_to(path.resolve())
    except (OSError, NotImplementedError):
        shutil.copy2(path, destination)


def _download(url: str, destination: Path, progress: Progress | None) -> None:
    """Download over HTTP without further packages."""
    import urllib.error
    import urllib.request

    part = destination.with_name(f".{destination.name}.tmp")
    try:
        with urllib.request.urlopen(url, timeout=60) as response, part.open("wb") as file:
            total = int(response.headers.get("Content-Length") or 0)
            while block := response.read(1 << 20):
                file.write(block)
                if progress is not None:
                    progress(file.tell(), total)
            if total and file.tell() != total:
                raise ConnectionError(f"{mask_text(url)!r}: only {file.tell()} of {total} bytes were received.")
        part.replace(destination)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (404, 410):
            raise FileNotFoundError(f"The file {mask_text(url)!r} does not exist.") from error
        if error.code in (401, 403):
            raise PermissionError(f"Access to {mask_text(url)!r} is denied: {error}.") from error
        raise
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _bar(path: str, shown: bool) -> Generator[Progress | None]:
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(mask_text(path.rpartition("/")[2]), total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total or None)


@contextlib.contextmanager
def _folder_of_node() -> Generator[Path]:
    """Yield a temporary folder visible to all ranks of this node."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        with tempfile.TemporaryDirectory(prefix="composer-") as name:
            yield Path(name)
        return
    # A name that nobody can guess; only processes of this user can write to it.
    folder = Path(tempfile.gettempdir(), f"composer{dist.get_node_signal_file_name()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        yield folder
    finally:
        dist.barrier()
        if dist.get_local_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _wait_for(local: Path, path: str) -> None:
    """Poll for the file, since a long download would exceed the timeout of a collective."""
    failed = local.with_name(".failed")
    while not local.exists():
        if failed.exists() or not local.parent.exists():
            reason = failed.read_text() if failed.exists() else "its folder was deleted"
            raise RuntimeError(f"{mask_text(path)!r} could not be downloaded by local rank 0 of this node: {reason}")
        time.sleep(0.1)
