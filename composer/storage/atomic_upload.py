"""Putting a finished file to where it is to be."""

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
    """Refuse a place that :func:`deliver` cannot reach, before the work is done that makes the file.

    Args:
        destination: A path, a URI, or with an object store a name in it.
        object_store: Where to; None where the destination says all.

    Raises:
        MissingConditionalImportError: The package for the scheme of the URI is not installed.
        OSError: The place does not answer, or refuses to.
        TypeError: The object store cannot take files.
        ValueError: The URI names no file, or its scheme is unknown.

    >>> check_destination("models/net.onnx")
    >>> check_destination("net.onnx", object_store="s3://models")
    Traceback (most recent call last):
    TypeError: An object store must have upload_object(object_name, filename), but 's3://models' has not.
    """
    if object_store is not None:
        if not callable(getattr(object_store, "upload_object", None)):
            raise TypeError(
                f"An object store must have upload_object(object_name, filename), but {object_store!r} has not."
            )
    elif is_remote(destination):
        uri, name = split(str(destination))
        folder = Folder(uri)
        folder.exists(name)
        folder.close()


def deliver(file: Path, destination: Path | str, object_store: Any = None) -> None:
    """Put a copy of a file to where it is to be, where it appears when it is complete; what is there is replaced.

    A transfer that fails is tried again.

    Args:
        file: A file of this machine.
        destination: A path, whose folder is made, a URI, or with an object store a name in it.
        object_store: Has ``upload_object(object_name, filename)``; None where the destination says all.

    Raises:
        OSError: The place cannot be written to.

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
