"""Stores that Apache Libcloud knows and fsspec does not."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from composer._lazy import import_extra
from composer._text import positive
from composer.storage.folder import Progress
from composer.storage.object_store import ObjectStore

__all__ = ["LibcloudObjectStore"]


class LibcloudObjectStore(ObjectStore):
    """A container of a provider of Apache Libcloud.

    Args:
        provider: Its name there in upper case with underscores, such as "BACKBLAZE_B2", or as Libcloud has it.
        container: Name of the container.
        chunk_size: How many bytes are read from a file or from the provider at once.
        key_environ: Variable that holds the key.
        secret_environ: Variable that holds the secret.
        provider_kwargs: Further arguments of the provider's driver.

    Raises:
        MissingConditionalImportError: The package apache-libcloud is not installed.
        ValueError: There is no such provider, or no such variable in the environment.

    >>> LibcloudObjectStore(
    ...     "S3", "container", key_environ="CLOUD_KEY", secret_environ="CLOUD_SECRET"
    ... )  # doctest: +SKIP
    """

    def __init__(
        self,
        provider: str,
        container: str,
        chunk_size: int = 1_048_576,
        key_environ: str | None = None,
        secret_environ: str | None = None,
        provider_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        install = "apache-libcloud"
        types = import_extra("libcloud.storage.types", install, "LibcloudObjectStore", install=install)
        providers = import_extra("libcloud.storage.providers", install, "LibcloudObjectStore", install=install)
        try:
            driver = providers.get_driver(getattr(types.Provider, provider, provider))
        except AttributeError as error:
            raise ValueError(f"provider={provider!r} is not one that Libcloud knows.") from error
        arguments = dict(provider_kwargs or {})
        if key_environ is not None:
            arguments["key"] = _variable("key_environ", key_environ)
        if secret_environ is not None:
            arguments["secret"] = _variable("secret_environ", secret_environ)
        self.chunk_size = positive("chunk_size", chunk_size)
        self.provider = provider
        self.container = container
        self._driver = driver(**arguments)
        self._missing: type[Exception] = types.ObjectDoesNotExistError

    def get_uri(self, object_name: str) -> str:
        """Return a URI that tells provider, container and name.

        Args:
            object_name: The name.
        """
        return f"{self.provider}://{self.container}/{object_name}"

    def upload_object(self, object_name: str, filename: str | Path, callback: Progress | None = None) -> None:
        """Put a file into the container; one of the same name is replaced.

        Args:
            object_name: Its name in the container.
            filename: Where it lies on this machine.
            callback: Called with the bytes read so far and their total.
        """
        self._container().upload_object_via_stream(_blocks(Path(filename), self.chunk_size, callback), object_name)

    def get_object_size(self, object_name: str) -> int:
        """Return the size of a file in bytes.

        Args:
            object_name: Its name in the container.

        Raises:
            FileNotFoundError: There is no such file.
        """
        return int(self._object(object_name).size)

    def download_object(
        self, object_name: str, filename: str | Path, overwrite: bool = False, callback: Progress | None = None
    ) -> None:
        """Fetch a file.

        Args:
            object_name: Its name in the container.
            filename: Where to on this machine.
            overwrite: Whether a file that is there may be replaced.
            callback: Called with the bytes received so far and their total.

        Raises:
            FileExistsError: There is a file at ``filename``.
            FileNotFoundError: There is no such file in the container.
        """
        path = Path(filename)
        if not overwrite and os.path.lexists(path):
            raise FileExistsError(f"filename={str(filename)!r} exists; give overwrite=True to replace it.")
        found = self._object(object_name)
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            with part.open("wb") as file:
                for block in self._driver.download_object_as_stream(found, chunk_size=self.chunk_size):
                    file.write(block)
                    if callback is not None:
                        callback(file.tell(), int(found.size))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def list_objects(self, prefix: str | None = None) -> list[str]:
        """Return the names of the files in the container.

        Args:
            prefix: What they begin with; None is all.
        """
        # Some drivers take a prefix for a folder.
        found = (str(one.name) for one in self._driver.iterate_container_objects(self._container()))
        return sorted(name for name in found if name.startswith(prefix or ""))

    def _container(self) -> Any:
        return self._driver.get_container(self.container)

    def _object(self, name: str) -> Any:
        try:
            return self._driver.get_object(self.container, name)
        except self._missing as error:
            raise FileNotFoundError(f"There is no file {self.get_uri(name)!r}.") from error


def _variable(argument: str, name: str) -> str:
    if name not in os.environ:
        raise ValueError(f"{argument}={name!r}: there is no such variable in the environment.")
    return os.environ[name]


def _blocks(path: Path, size: int, callback: Progress | None) -> Iterator[bytes]:
    total = path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(size):
            yield block
            if callback is not None:
                callback(file.tell(), total)
