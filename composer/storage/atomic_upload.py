"""Copy a finished file to a path, URI or object store, so that it only appears when it is complete."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Any

from composer.storage.errors import is_transient
from composer.storage.folder import Folder
from composer.storage.retrying import call_with_retries
from composer.storage.uris import is_remote, local_path, split

__all__ = ["check_destination", "deliver"]


def check_destination(destination: Path | str, object_store: Any = None) -> None:
    """Raise if :func:`deliver` cannot reach a destination, before the file is created.

    Args:
        destination: A path or URI; with an object store, a name in it.
        object_store: The object store; None for a path or URI.

    Raises:
        MissingConditionalImportError: The package for the scheme of the URI is not installed.
        OSError: The destination does not respond, or denies access.
        TypeError: The object store has no method for uploads.
        ValueError: The URI has no file name, or its scheme is unknown.

    >>> check_destination("models/net.onnx")
    >>> check_destination("net.onnx", object_store="s3://models")
    Traceback (most recent call last):
    TypeError: object_store must have a method upload_object(object_name, filename); got 's3://models'.
    """
    if object_store is not None:
        if not callable(getattr(object_store, "upload_object", None)):
            raise TypeError(
                f"object_store must have a method upload_object(object_name, filename); got {object_store!r}."
            )
    elif is_remote(destination):
        uri, name = split(str(destination))
        folder = Folder(uri)
        folder.exists(name)
        folder.close()


def deliver(file: Path, destination: Path | str, object_store: Any = None) -> None:
    """Copy a file to its destination atomically; an existing file is replaced.

    A failed transfer is retried.

    Args:
        file: A local file.
        destination: A path, whose folder is created, or a URI; with an object store, a name in it.
        object_store: Has ``upload_object(object_name, filename)``; None for a path or URI.

    Raises:
        OSError: The destination is not writable.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = Path(folder, "made")
    ...     _ = made.write_text("weights")
    ...     deliver(made, Path(folder, "models/net.txt"))
    ...     Path(folder, "models/net.txt").read_text()
    'weights'
    """
    call_with_retries(lambda: _put(file, destination, object_store), is_transient)


def _put(file: Path, destination: Path | str, object_store: Any) -> None:
    if object_store is not None:
        object_store.upload_object(str(destination), str(file))
        return
    if is_remote(destination):
        folder, name = split(str(destination))
        Folder(folder).upload(file, name)
        return
    target = local_path(destination)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        shutil.copyfile(file, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
