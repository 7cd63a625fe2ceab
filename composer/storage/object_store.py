"""Object stores as classes that scripts use and subclass, and their construction from names and URIs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer._secrets.masking import mask_text
from composer._text import one_of
from composer.storage.folder import Folder, Progress
from composer.storage.uris import is_remote, parse_uri

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = [
    "ObjectStore",
    "UriObjectStore",
    "build_remote_backend",
    "list_remote_objects",
    "maybe_create_object_store_from_uri",
    "validate_credentials",
]


class ObjectStore:
    """An object store: remote files by name.

    The built-in stores access a :class:`.Folder` that is given to the constructor. Custom stores override the methods.

    Args:
        folder: The folder that names are relative to; None for a store that overrides the methods.

    >>> with ObjectStore(Folder("memory://bucket")) as store:
    ...     _ = (tmp_path / "a.txt").write_text("text")
    ...     store.upload_object("run/a.txt", tmp_path / "a.txt")
    ...     store.list_objects("run/"), store.get_object_size("run/a.txt"), store.get_uri("run/a.txt")
    (['run/a.txt'], 4, 'memory://bucket/run/a.txt')
    """

    folder: Folder | None = None

    def __init__(self, folder: Folder | None = None) -> None:
        self.folder = folder

    def get_uri(self, object_name: str) -> str:
        """Return the URI of an object.

        Args:
            object_name: Its name.
        """
        return self._folder().uri_of(object_name)

    def upload_object(self, object_name: str, filename: str | Path, callback: Progress | None = None) -> None:
        """Upload a file; an existing object is replaced.

        Args:
            object_name: Name in the store.
            filename: Local path of the file.
            callback: Called with the bytes transferred so far and their total.

        Raises:
            ObjectStoreTransientError: The upload failed, but a retry may succeed.
        """
        self._folder().upload(filename, object_name, callback)

    def get_object_size(self, object_name: str) -> int:
        """Return the size of an object in bytes.

        Args:
            object_name: Name in the store.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        return self._folder().entry(object_name).size

    def download_object(
        self, object_name: str, filename: str | Path, overwrite: bool = False, callback: Progress | None = None
    ) -> None:
        """Download an object.

        Args:
            object_name: Name in the store.
            filename: Local path.
            overwrite: Whether to replace an existing file.
            callback: Called with the bytes transferred so far and their total.

        Raises:
            FileExistsError: ``filename`` exists.
            FileNotFoundError: The object does not exist.
            ObjectStoreTransientError: The download failed, but a retry may succeed.
        """
        if not overwrite and os.path.lexists(filename):
            raise FileExistsError(f"filename={str(filename)!r} exists; give overwrite=True to replace it.")
        self._folder().download(object_name, filename, callback)

    def list_objects(self, prefix: str | None = None) -> list[str]:
        """Return the names of the objects in the store.

        Args:
            prefix: Prefix of the names; None returns all.
        """
        return self._folder().names(prefix or "")

    def close(self) -> None:
        """Close the connection; it is opened again when needed."""
        if self.folder is not None:
            self.folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _folder(self) -> Folder:
        if self.folder is None:
            raise NotImplementedError(
                f"{type(self).__name__} must override get_uri, upload_object, get_object_size, download_object and "
                f"list_objects, or pass a Folder to super().__init__()."
            )
        return self.folder


class UriObjectStore(ObjectStore):
    """A store with any scheme that fsspec supports: ``az://``, ``hf://``, ``memory://`` and many others.

    Args:
        uri: URI of the bucket, or of a folder in it.
        options: Arguments of fsspec's file system for the scheme.

    >>> UriObjectStore("memory://bucket").get_uri("run/ep1.pt")
    'memory://bucket/run/ep1.pt'
    """

    def __init__(self, uri: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(Folder(uri, options))


def build_remote_backend(remote_backend_name: str, backend_kwargs: Mapping[str, Any]) -> ObjectStore:
    """Create an object store by the name of its backend.

    Args:
        remote_backend_name: "s3", "gs", "oci", "sftp", "libcloud", or "uri" for :class:`UriObjectStore`.
        backend_kwargs: Arguments of its class.

    Raises:
        ValueError: The backend is unknown.

    >>> build_remote_backend("uri", {"uri": "memory://bucket"}).list_objects("none")
    []
    """
    from composer.storage import object_stores
    from composer.storage.libcloud_store import LibcloudObjectStore

    classes: dict[str, type[ObjectStore]] = {
        "s3": object_stores.S3ObjectStore,
        "gs": object_stores.GCSObjectStore,
        "oci": object_stores.OCIObjectStore,
        "sftp": object_stores.SFTPObjectStore,
        "libcloud": LibcloudObjectStore,
        "uri": UriObjectStore,
    }
    return classes[one_of("remote_backend_name", remote_backend_name, tuple(classes))](**backend_kwargs)


def maybe_create_object_store_from_uri(uri: Path | str) -> ObjectStore | None:
    """Return the object store of a URI; None for a local path.

    Args:
        uri: A URI, whose path in the bucket is ignored, or a path.

    Raises:
        NotImplementedError: The scheme is not supported.

    >>> maybe_create_object_store_from_uri("memory://bucket/run/ep1.pt").get_uri("a")
    'memory://bucket/a'
    >>> maybe_create_object_store_from_uri("runs/ep1.pt") is None
    True
    """
    import fsspec

    from composer.storage.object_stores import GCSObjectStore, OCIObjectStore, S3ObjectStore

    uri = os.fspath(uri)
    scheme, bucket, _ = parse_uri(uri)
    if not is_remote(uri) and scheme in ("", "file", "local"):
        return None
    classes: dict[str, type[Any]] = {"s3": S3ObjectStore, "gs": GCSObjectStore, "oci": OCIObjectStore}
    if scheme in classes:
        bucket = uri.partition("://")[2].partition("/")[0] if scheme == "oci" else bucket
        return classes[scheme](bucket=bucket)
    known = {*fsspec.available_protocols(), *fsspec.registry, "azure"} - {"dbfs", "wandb"}
    if scheme not in known:
        raise NotImplementedError(
            f"{mask_text(uri)!r}: {scheme}:// is not supported. Use a scheme that fsspec supports; for an experiment "
            f"tracker use its logger, and for a volume the path where it is mounted."
        )
    bucket = uri.partition("://")[2].partition("/")[0]
    return UriObjectStore(f"{scheme}://{bucket}")


def list_remote_objects(remote_path: str) -> list[str]:
    """Return the names, relative to the bucket, of the files below a URI.

    Args:
        remote_path: The URI; may end in a name prefix.

    Raises:
        ValueError: It is a local path.

    >>> Folder("memory://listed").write_text("run/ep1.pt", "weights")
    >>> list_remote_objects("memory://listed/run")
    ['run/ep1.pt']
    """
    store = maybe_create_object_store_from_uri(remote_path)
    if store is None:
        shown = mask_text(remote_path)
        raise ValueError(f"remote_path={shown!r} is a local path; give a URI such as s3://bucket/run.")
    return store.list_objects(parse_uri(remote_path)[2])


def validate_credentials(remote_backend: ObjectStore, remote_file_name_to_test: str) -> None:
    """Upload a small file to a store, to check the credentials.

    Args:
        remote_backend: The store.
        remote_file_name_to_test: Name of the file.

    Raises:
        OSError: The upload is denied, or the store does not exist.

    >>> store = UriObjectStore("memory://bucket")
    >>> validate_credentials(store, ".credentials_validated")
    >>> store.list_objects(".cred")
    ['.credentials_validated']
    """
    with tempfile.TemporaryDirectory(prefix="composer-") as folder:
        path = Path(folder, "text")
        path.write_text("Written by composer to check write access; can be deleted.", encoding="utf-8")
        remote_backend.upload_object(remote_file_name_to_test, path)
