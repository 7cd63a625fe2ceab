"""Keeping the files of a run in a bucket or on a server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer import dist
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
    """Uploads the files that loggers and callbacks keep, such as logs, traces and checkpoints, while training goes on.

    Files are kept until they have arrived, so whoever wrote them may remove them. A failed upload is tried again; one
    that fails for good is raised at the next batch. Of two files of one name the later comes last, and a name that
    ends in ``.symlink`` after all before it.

    Args:
        bucket_uri: ``<scheme>://<bucket>``, and a path if names are to be relative to one. With the scheme "libcloud"
            the rest is in ``backend_kwargs``.
        backend_kwargs: Arguments of the store's class beside the bucket, such as those of :class:`.S3ObjectStore`; for
            other schemes those of fsspec's file system.
        file_path_format_string: The name in the bucket, with ``{remote_file_name}``, ``{run_name}``, ``{rank}`` and the
            like.
        num_concurrent_uploads: How many files are on their way at once.
        upload_staging_folder: Where files are kept until they have arrived; None is the system's temporary folder.
        use_procs: For scripts that give it: threads do the uploads in any case, since a transfer leaves the interpreter
            free.
        num_attempts: How often an upload is tried.

    Raises:
        ValueError: The URI is a path of this machine, a name has an unknown placeholder, or a number is not positive.

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
        self.num_attempts = num_attempts
        self._queue = UploadQueue(num_concurrent_uploads, num_attempts)
        self._uploads = Uploads(self.remote_backend, self._queue, Staging(upload_staging_folder))
        self._run_name: str | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Put a small file into the bucket, to learn now whether that is allowed.

        Raises:
            OSError: It is not.
        """
        self._run_name = state.run_name
        if dist.get_local_rank() == 0:
            validate_credentials(self.remote_backend, self._name(".credentials_validated_successfully"))

    def batch_end(self, state: State, logger: Logger) -> None:
        """Raise the failure of an upload."""
        self._queue.poll()

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Raise the failure of an upload."""
        self._queue.poll()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Wait until everything has arrived."""
        self._queue.wait()

    def eval_standalone_end(self, state: State, logger: Logger) -> None:
        """Wait until everything has arrived."""
        self._queue.wait()

    def predict_end(self, state: State, logger: Logger) -> None:
        """Wait until everything has arrived."""
        self._queue.wait()

    def close(self, state: State, logger: Logger) -> None:
        """Wait until everything has arrived, and end the threads."""
        self._close()

    def wait_for_workers(self, device: Device | None = None) -> None:
        """Wait until everything has arrived.

        Args:
            device: Accepted for old callers: nothing is sent through the device.
        """
        self._queue.wait()

    def post_close(self) -> None:
        """Do the same for what others have handed in when they were closed."""
        self._close()

    def can_upload_files(self) -> bool:
        """Tell that files are kept."""
        return True

    def upload_file(self, state: State, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        """Upload a file, or a folder with all that is in it.

        Args:
            state: The state of the run.
            remote_file_name: Its name, or its whole URI; a URI of another bucket is for another logger.
            file_path: Where it lies.
            overwrite: Whether a file of that name may be replaced.

        Raises:
            FileExistsError: One of that name is on its way, and may not be replaced.
        """
        self._run_name = state.run_name
        name = self._own(remote_file_name)
        if name is not None:
            self._uploads.add(self._name(name), file_path, overwrite=overwrite)

    def download_file(
        self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True
    ) -> None:
        """Fetch a file that was uploaded.

        Args:
            remote_file_name: Its name, or its whole URI.
            destination: Where to put it.
            overwrite: Whether a file there may be replaced.
            progress_bar: Whether to show the progress.

        Raises:
            FileNotFoundError: There is no such file.
            FileExistsError: There is a file at the destination.
        """
        name = self._own(remote_file_name)
        if name is None:
            raise FileNotFoundError(f"{mask_text(remote_file_name)!r} is not in {mask_text(self.bucket_uri)!r}.")
        if os.path.lexists(destination) and not overwrite:
            raise FileExistsError(f"destination={destination!r} exists; give overwrite=True to replace it.")
        copy_file(self._name(name), Path(destination), self.remote_backend, progress_bar=progress_bar)

    def has_file(self, remote_file_name: str) -> bool:
        """Tell whether there is a file.

        Args:
            remote_file_name: Its name, or its whole URI.

        Raises:
            OSError: The bucket cannot be asked.
        """
        name = self._own(remote_file_name)
        if name is None:
            return False
        try:
            self.remote_backend.get_object_size(self._name(name))
        except FileNotFoundError:
            return False
        return True

    def list_files(self, folder: str) -> list[str]:
        """Return the names of the files in a folder that was uploaded, relative to it; none if there is no such folder.

        Args:
            folder: Its name, or its whole URI.

        Raises:
            OSError: The bucket cannot be asked.
        """
        own = self._own(folder)
        above = None if own is None else f"{self._name(own)}/"
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

    def _own(self, name: str) -> str | None:
        """The name relative to the bucket, None where it is the URI of another place."""
        if not is_remote(name):
            return name
        return name.removeprefix(f"{self.bucket_uri}/") if name.startswith(f"{self.bucket_uri}/") else None

    def _name(self, remote_file_name: str) -> str:
        if "{run_name}" in self.file_path_format_string and self._run_name is None:
            raise RuntimeError("The name of the run, which is part of the names of files, is known from INIT on.")
        check_remote_name("remote_file_name", remote_file_name)
        name = format_name(self.file_path_format_string, self._run_name or "", remote_file_name=remote_file_name)
        return join_path(f"/{self._above}", name).lstrip("/")


def maybe_create_remote_uploader_downloader_from_uri(
    uri: str, loggers: Sequence[LoggerDestination]
) -> RemoteUploaderDownloader | None:
    """Return a logger that uploads to the bucket of a URI; None for a path of this machine, or if there is one already.

    Args:
        uri: A URI, of which the path in the bucket is not looked at, or a path.
        loggers: Those that there are.

    Raises:
        NotImplementedError: There is no store for the scheme.

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
