"""Object stores through Apache Libcloud, for providers that fsspec does not support."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from composer._lazy import import_extra
from composer._numbers import whole_number
from composer.storage.folder import Progress
from composer.storage.object_store import ObjectStore

__all__ = ["LibcloudObjectStore"]


class LibcloudObjectStore(ObjectStore):
    """A container of an Apache Libcloud provider.

    Args:
        provider: Name of the provider in upper case with underscores, such as "BACKBLAZE_B2", or Libcloud's own value.
        container: Name of the container.
        chunk_size: Number of bytes to read from a file or from the provider at once.
        key_environ: Environment variable with the key.
        secret_environ: Environment variable with the secret.
        provider_kwargs: Further arguments of the provider's driver.

    Raises:
        MissingConditionalImportError: The package apache-libcloud is not installed.
        ValueError: The provider is unknown, or an environment variable is not set.

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
            raise ValueError(f"provider={provider!r} is not a Libcloud provider.") from error
        arguments = dict(provider_kwargs or {})
        if key_environ is not None:
            arguments["key"] = _variable("key_environ", key_environ)
        if secret_environ is not None:
            arguments["secret"] = _variable("secret_environ", secret_environ)
        self.chunk_size = whole_number("chunk_size", chunk_size, minimum=1)
        self.provider = provider
        self.container = container
        self._driver = driver(**arguments)
        self._missing: type[Exception] = types.ObjectDoesNotExistError

    def get_uri(self, object_name: str) -> str:
        """Return a URI with provider, container and name.

        Args:
            object_name: The name.
        """
        return f"{self.provider}://{self.container}/{object_name}"

    def upload_object(self, object_name: str, filename: str | Path, callback: Progress | None = None) -> None:
        """Upload a file to the container; an existing object is replaced.

        Args:
            object_name: Name in the container.
            filename: Local path of the file.
            callback: Called with the bytes read so far and their total.
        """
        self._container().upload_object_via_stream(_blocks(Path(filename), self.chunk_size, callback), object_name)

    def get_object_size(self, object_name: str) -> int:
        """Return the size of an object in bytes.

        Args:
            object_name: Name in the container.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        return int(self._object(object_name).size)

    def download_object(
        self, object_name: str, filename: str | Path, overwrite: bool = False, callback: Progress | None = None
    ) -> None:
        """Download an object.

        Args:
            object_name: Name in the container.
            filename: Local path.
            overwrite: Whether to replace an existing file.
            callback: Called with the bytes received so far and their total.

        Raises:
            FileExistsError: ``filename`` exists.
            FileNotFoundError: The object does not exist.
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
        """Return the names of the objects in the container.

        Args:
            prefix: Prefix of the names; None returns all.
        """
        # Some drivers treat a prefix as a folder.
        found = (str(one.name) for one in self._driver.iterate_container_objects(self._container()))
        return sorted(name for name in found if name.startswith(prefix or ""))

    def _container(self) -> Any:
        return self._driver.get_container(self.container)

    def _object(self, name: str) -> Any:
        try:
            return self._driver.get_object(self.container, name)
        except self._missing as error:
            raise FileNotFoundError(f"The object {self.get_uri(name)!r} does not exist.") from error


def _variable(argument: str, name: str) -> str:
    if name not in os.environ:
        raise ValueError(f"{argument}={name!r}: this environment variable is not set.")
    return os.environ[name]


def _blocks(path: Path, size: int, callback: Progress | None) -> Iterator[bytes]:
    total = path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(size):
            yield block
            if callback is not None:
                callback(file.tell(), total)
