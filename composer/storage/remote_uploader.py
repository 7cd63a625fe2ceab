"""Upload files in background threads, for scripts (``RemoteUploader``) and loggers."""

from __future__ import annotations

import enum
import posixpath
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from composer._secrets.masking import mask_text
from composer.storage.downloads import LINK_SUFFIX
from composer.storage.errors import is_transient
from composer.storage.object_store import (
    ObjectStore,
    build_remote_backend,
    maybe_create_object_store_from_uri,
    validate_credentials,
)
from composer.storage.upload_staging import Staging
from composer.storage.uploads import Job, UploadQueue
from composer.storage.uris import parse_uri

__all__ = ["RemoteFilesExistingCheckStatus", "RemoteUploader", "Uploads", "store_of"]


class RemoteFilesExistingCheckStatus(enum.Enum):
    """Result of waiting for remote files to exist.

    >>> RemoteFilesExistingCheckStatus.EXIST.value
    1
    """

    EXIST = 1
    TIMEOUT = 2
    ERROR = 3


def store_of(uri: str, backend_kwargs: Mapping[str, Any] | None = None) -> ObjectStore:
    """Return the object store of a URI.

    Args:
        uri: URI of a bucket; its path is ignored.
        backend_kwargs: Arguments of the store's class in addition to the bucket, see :func:`.build_remote_backend`.

    Raises:
        ValueError: It is a local path.

    >>> store_of("memory://bucket").get_uri("a")
    'memory://bucket/a'
    """
    scheme, bucket, _ = parse_uri(uri)
    given = dict(backend_kwargs or {})
    if scheme == "libcloud":
        return build_remote_backend(scheme, given)
    if scheme == "sftp":
        return build_remote_backend(scheme, {"host": uri.partition("://")[2].partition("/")[0], **given})
    if given and scheme in ("s3", "gs", "oci"):
        return build_remote_backend(scheme, {"bucket": bucket, **given})
    if given:
        return build_remote_backend("uri", {"uri": f"{scheme}://{bucket}", "options": given})
    store = maybe_create_object_store_from_uri(uri)
    if store is None:
        raise ValueError(f"{mask_text(uri)!r} is a local path; give a URI such as s3://bucket.")
    return store


class Uploads:
    """Uploads files to an object store; the local files may be deleted as soon as they are added.

    Files of the same name are uploaded in order. A link (a text file whose name ends in ``.symlink``, with the relative
    name of another file) is uploaded after everything that was added before it, and is skipped if the last upload of
    its target failed.

    Args:
        store: The object store.
        queue: Runs the uploads.
        staging: Keeps the files until they are uploaded.

    >>> from composer.storage.object_store import UriObjectStore
    >>> store, queue, staging = UriObjectStore("memory://uploads"), UploadQueue(), Staging()
    >>> path = tmp_path / "a.txt"
    >>> _ = path.write_text("text")
    >>> _ = Uploads(store, queue, staging).add("docs/a.txt", path, overwrite=True)
    >>> path.unlink()
    >>> queue.close()
    >>> staging.clear()
    >>> store.get_object_size("docs/a.txt")
    4
    """

    def __init__(self, store: ObjectStore, queue: UploadQueue, staging: Staging) -> None:
        self.store = store
        self.queue = queue
        self.staging = staging
        self._newest: dict[str, Job] = {}  # last upload of each name, unless it has succeeded

    def add(self, name: str, path: Path | str, *, overwrite: bool) -> list[Job]:
        """Upload a file, or a folder with all its files, in the background.

        Args:
            name: Name in the store.
            path: Local path.
            overwrite: Whether to replace an existing file.

        Raises:
            FileExistsError: A file of that name is being uploaded, and ``overwrite`` is not set.
            FileNotFoundError: The file does not exist.
        """
        path = Path(path)
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.is_file())
            jobs = [self.add(f"{name}/{one.relative_to(path).as_posix()}", one, overwrite=overwrite) for one in inside]
            return [job for group in jobs for job in group]
        self._newest = {known: job for known, job in self._newest.items() if not job.done or job.error is not None}
        earlier = self._newest.get(name)
        if earlier is not None and not earlier.done and not overwrite:
            raise FileExistsError(f"{name!r} is being uploaded already; give overwrite=True to replace it.")
        after: list[Job] = []
        after_any = [] if earlier is None else [earlier]
        if name.endswith(LINK_SUFFIX):
            after, after_any = self._of_target(name, path), self.queue.pending
        kept = self.staging.add(path, name)

        shown = mask_text(self.store.get_uri(name))

        def upload() -> None:
            if not overwrite and _exists(self.store, name):
                self.staging.remove(kept)
                raise FileExistsError(f"{shown!r} exists; give overwrite=True to replace it.")
            self.store.upload_object(name, kept)
            self.staging.remove(kept)

        job = self._newest[name] = self.queue.submit(f"upload of {shown}", upload, after, after_any)
        return [job]

    def _of_target(self, name: str, path: Path) -> list[Job]:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), text))
        return [job for known, job in self._newest.items() if known == target or known.startswith(f"{target}/")]


class RemoteUploader:
    """Uploads files in background threads.

    Args:
        remote_folder: A URI; file names are relative to its bucket.
        backend_kwargs: Arguments of the store's class in addition to the bucket.
        num_concurrent_uploads: Number of concurrent uploads.
        num_attempts: Maximum number of attempts per file.

    Raises:
        ValueError: ``remote_folder`` is a local path, or a number is not positive.

    >>> uploader = RemoteUploader("memory://uploader/run")
    >>> uploader.init()
    >>> path = tmp_path / "a.txt"
    >>> _ = path.write_text("text")
    >>> uploader.upload_file_async("run/a.txt", path, overwrite=True)
    >>> uploader.wait_and_close()
    >>> uploader.remote_backend.get_object_size("run/a.txt")
    4
    """

    def __init__(
        self,
        remote_folder: str,
        backend_kwargs: Mapping[str, Any] | None = None,
        num_concurrent_uploads: int = 2,
        num_attempts: int = 3,
    ) -> None:
        self.remote_folder = remote_folder
        self.remote_backend = store_of(remote_folder, backend_kwargs)
        self.remote_backend_name, self.remote_bucket_name, self.path = parse_uri(remote_folder)
        self.backend_kwargs = dict(backend_kwargs or {})
        self.num_attempts = num_attempts
        self._queue = UploadQueue(num_concurrent_uploads, num_attempts)
        self._uploads = Uploads(self.remote_backend, self._queue, Staging())
        self._checks: ThreadPoolExecutor | None = None

    def init(self) -> None:
        """Upload a small file, to check the credentials.

        Raises:
            OSError: The upload is denied.
        """
        validate_credentials(self.remote_backend, ".credentials_validated_successfully")

    def upload_file_async(self, remote_file_name: str, file_path: Path | str, overwrite: bool) -> None:
        """Upload a file in the background; the local file may be deleted immediately.

        Args:
            remote_file_name: Name in the bucket.
            file_path: Local path.
            overwrite: Whether to replace an existing file.

        Raises:
            FileExistsError: A file of that name is being uploaded, and ``overwrite`` is not set.
        """
        self._uploads.add(remote_file_name, file_path, overwrite=overwrite)

    def check_workers(self) -> None:
        """Raise the error of a failed upload, if there is one."""
        self._queue.poll()

    def wait(self) -> None:
        """Wait until all uploads are finished.

        Raises:
            Exception: An upload failed.
        """
        self._queue.wait()

    def wait_and_close(self) -> None:
        """Wait until all uploads are finished, and stop the threads.

        Raises:
            Exception: An upload failed.
        """
        try:
            self._queue.close()
        finally:
            self._uploads.staging.clear()
            checks, self._checks = self._checks, None
            if checks is not None:
                checks.shutdown()

    def check_remote_files_exist_async(
        self,
        remote_checkpoint_file_names: Sequence[str],
        max_wait_time_in_seconds: float = 3600,
        wait_before_next_trial_in_seconds: float = 30,
    ) -> Future[RemoteFilesExistingCheckStatus]:
        """Poll in the background until remote files exist, which other ranks may upload; return a future.

        Args:
            remote_checkpoint_file_names: Names of the files in the bucket.
            max_wait_time_in_seconds: Maximum time to wait.
            wait_before_next_trial_in_seconds: Time between checks.
        """
        if self._checks is None:
            self._checks = ThreadPoolExecutor(1, thread_name_prefix="composer-check")
        end = time.monotonic() + max_wait_time_in_seconds

        def look() -> RemoteFilesExistingCheckStatus:
            missing = list(remote_checkpoint_file_names)
            while missing:
                try:
                    missing = [name for name in missing if not _exists(self.remote_backend, name)]
                except Exception as error:
                    if not is_transient(error):
                        return RemoteFilesExistingCheckStatus.ERROR
                if missing:
                    left = end - time.monotonic()
                    if left <= 0:
                        return RemoteFilesExistingCheckStatus.TIMEOUT
                    time.sleep(min(left, wait_before_next_trial_in_seconds))
            return RemoteFilesExistingCheckStatus.EXIST

        return self._checks.submit(look)


def _exists(store: ObjectStore, name: str) -> bool:
    try:
        store.get_object_size(name)
    except FileNotFoundError:
        return False
    return True
