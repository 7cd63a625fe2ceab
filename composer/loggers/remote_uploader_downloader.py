"""RemoteUploaderDownloader: upload the files of a run to object storage (S3, GCS, ...) and download them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer import dist
from composer._numbers import whole_number
from composer._secrets.masking import mask_text
from composer.core.logger_destination import LoggerDestination
from composer.core.name_placeholders import check_remote_name, check_template, format_name
from composer.storage.downloads import copy_file
from composer.storage.object_store import validate_credentials
from composer.storage.remote_uploader import Uploads, store_of
from composer.storage.upload_staging import Staging
from composer.storage.uploads import UploadQueue
from composer.storage.uris import is_remote, join_path, parse_uri

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State
    from composer.devices import Device

__all__ = ["RemoteUploaderDownloader", "maybe_create_remote_uploader_downloader_from_uri"]


class RemoteUploaderDownloader(LoggerDestination):
    """Uploads files of loggers and callbacks, such as logs, traces and checkpoints, in background threads.

    Files are staged until they are uploaded, so the originals may be removed. Failed uploads are retried; one that
    fails for good is raised at the next batch. Of two uploads of the same name the later one wins, and a name that ends
    in ``.symlink`` is uploaded after everything queued before it.

    Args:
        bucket_uri: ``<scheme>://<bucket>``, optionally followed by a path to which names are relative. With the scheme
            "libcloud" the rest is in ``backend_kwargs``.
        backend_kwargs: Further arguments of the store's class, such as those of :class:`.S3ObjectStore`; for other
            schemes those of the fsspec file system.
        file_path_format_string: The name in the bucket, with placeholders such as ``{remote_file_name}``,
            ``{run_name}`` and ``{rank}``.
        num_concurrent_uploads: Number of simultaneous uploads.
        upload_staging_folder: Where files are staged; None is the system's temporary folder.
        use_procs: Ignored, accepted for compatibility: uploads always use threads, as a transfer releases the GIL.
        num_attempts: Number of attempts per upload.

    Raises:
        ValueError: The URI is a local path, a name has an unknown placeholder, or a number is not positive.

    >>> uploader = RemoteUploaderDownloader(
    ...     "memory://kept", file_path_format_string="{run_name}/{remote_file_name}"
    ... )
    >>> from composer import Logger, State
    >>> state = State(torch.nn.Linear(1, 1), run_name="night")
    >>> logger = Logger(state, uploader)
    >>> uploader.init(state, logger)
    >>> (tmp_path / "notes.txt").write_text("text")
    4
    >>> logger.upload_file("notes.txt", tmp_path / "notes.txt", overwrite=True)
    >>> uploader.close(state, logger)
    >>> uploader.remote_backend.list_objects("night/n")
    ['night/notes.txt']
    """

    def __init__(
        self,
        bucket_uri: str,
        backend_kwargs: Mapping[str, Any] | None = None,
        file_path_format_string: str = "{remote_file_name}",
        num_concurrent_uploads: int = 1,
        upload_staging_folder: str | None = None,
        use_procs: bool = True,
        num_attempts: int = 3,
    ) -> None:
        check_template("file_path_format_string", file_path_format_string, more=("remote_file_name",))
        self.bucket_uri = bucket_uri.rstrip("/")
        self.file_path_format_string = file_path_format_string
        self.remote_backend = store_of(bucket_uri, backend_kwargs)
        self.remote_backend_name, self.remote_bucket_name, self._above = parse_uri(self.bucket_uri)
        self.backend_kwargs = dict(backend_kwargs or {})
        self.num_attempts = whole_number("num_attempts", num_attempts, minimum=1)
        self._queue = UploadQueue(num_concurrent_uploads, self.num_attempts)
        self._uploads = Uploads(self.remote_backend, self._queue, Staging(upload_staging_folder))
        self._run_name: str | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Upload a small file, to fail early without write access.

        Raises:
            OSError: The bucket is not writable.
        """
        self._run_name = state.run_name
        if dist.get_local_rank() == 0:
            validate_credentials(self.remote_backend, self._name(".credentials_validated_successfully"))

    def batch_end(self, state: State, logger: Logger) -> None:
        """Raise the error of a failed upload."""
        self._queue.poll()

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Raise the error of a failed upload."""
        self._queue.poll()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Wait for all uploads."""
        self._queue.wait()

    def eval_standalone_end(self, state: State, logger: Logger) -> None:
        """Wait for all uploads."""
        self._queue.wait()

    def predict_end(self, state: State, logger: Logger) -> None:
        """Wait for all uploads."""
        self._queue.wait()

    def close(self, state: State, logger: Logger) -> None:
        """Wait for all uploads, and end the threads."""
        self._close()

    def wait_for_workers(self, device: Device | None = None) -> None:
        """Wait for all uploads.

        Args:
            device: Ignored, accepted for compatibility.
        """
        self._queue.wait()

    def post_close(self) -> None:
        """Wait for uploads that other callbacks added when they were closed, and end the threads."""
        self._close()

    def can_upload_files(self) -> bool:
        """Return True: files are uploaded."""
        return True

    def upload_file(self, state: State, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        """Upload a file, or a folder with its contents.

        Args:
            state: The state of the run.
            remote_file_name: Its name, or its full URI; a URI in another bucket is ignored.
            file_path: Local path of the file.
            overwrite: Whether to replace a file of the same name.

        Raises:
            FileExistsError: A file of the same name is being uploaded, and ``overwrite`` is False.
        """
        self._run_name = state.run_name
        name = self._relative_name(remote_file_name)
        if name is not None:
            self._uploads.add(self._name(name), file_path, overwrite=overwrite)

    def download_file(
        self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True
    ) -> None:
        """Download a file that was uploaded.

        Args:
            remote_file_name: Its name, or its full URI.
            destination: Local path of the file.
            overwrite: Whether to replace an existing file.
            progress_bar: Whether to show a progress bar.

        Raises:
            FileNotFoundError: The file does not exist.
            FileExistsError: The destination exists.
        """
        name = self._relative_name(remote_file_name)
        if name is None:
            raise FileNotFoundError(f"{mask_text(remote_file_name)!r} is not in {mask_text(self.bucket_uri)!r}.")
        if os.path.lexists(destination) and not overwrite:
            raise FileExistsError(f"destination={destination!r} exists; pass overwrite=True to replace it.")
        copy_file(self._name(name), Path(destination), self.remote_backend, progress_bar=progress_bar)

    def has_file(self, remote_file_name: str) -> bool:
        """Return whether a file exists.

        Args:
            remote_file_name: Its name, or its full URI.

        Raises:
            OSError: The bucket cannot be read.
        """
        name = self._relative_name(remote_file_name)
        if name is None:
            return False
        try:
            self.remote_backend.get_object_size(self._name(name))
        except FileNotFoundError:
            return False
        return True

    def list_files(self, folder: str) -> list[str]:
        """Return the names of the files in an uploaded folder, relative to it; empty if the folder does not exist.

        Args:
            folder: Its name, or its full URI.

        Raises:
            OSError: The bucket cannot be read.
        """
        relative = self._relative_name(folder)
        above = None if relative is None else f"{self._name(relative)}/"
        names = [] if above is None else self.remote_backend.list_objects(above)
        return [name.removeprefix(above or "") for name in names]

    def get_uri_for_file(self, remote_file_name: str) -> str:
        """Return the URI of a file.

        Args:
            remote_file_name: Its name.
        """
        return self.remote_backend.get_uri(self._name(remote_file_name))

    def _close(self) -> None:
        try:
            self._queue.close()
        finally:
            self._uploads.staging.clear()

    def _relative_name(self, name: str) -> str | None:
        """Return a name or URI relative to the bucket, or None for a URI elsewhere."""
        if not is_remote(name):
            return name
        return name.removeprefix(f"{self.bucket_uri}/") if name.startswith(f"{self.bucket_uri}/") else None

    def _name(self, remote_file_name: str) -> str:
        if "{run_name}" in self.file_path_format_string and self._run_name is None:
            raise RuntimeError("The names of files contain {run_name}, which is not known before INIT.")
        check_remote_name("remote_file_name", remote_file_name)
        name = format_name(self.file_path_format_string, self._run_name or "", remote_file_name=remote_file_name)
        return join_path(f"/{self._above}", name).lstrip("/")


def maybe_create_remote_uploader_downloader_from_uri(
    uri: str, loggers: Sequence[LoggerDestination]
) -> RemoteUploaderDownloader | None:
    """Return an uploader to the bucket of a URI; None for a local path, or if one of the loggers uploads to it already.

    Args:
        uri: A URI, whose path in the bucket is ignored, or a local path.
        loggers: The existing loggers.

    Raises:
        NotImplementedError: The scheme is not supported.

    >>> maybe_create_remote_uploader_downloader_from_uri("memory://bucket/run", []).bucket_uri
    'memory://bucket'
    >>> maybe_create_remote_uploader_downloader_from_uri("runs/one", []) is None
    True
    """
    if not is_remote(uri):
        return None
    scheme, _, rest = uri.partition("://")
    bucket = f"{scheme}://{rest.partition('/')[0]}"
    known = [logger.bucket_uri for logger in loggers if isinstance(logger, RemoteUploaderDownloader)]
    return None if bucket in known else RemoteUploaderDownloader(bucket)
