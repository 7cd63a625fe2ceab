"""Read, write and upload files in local folders, object stores (S3, GCS, Azure, OCI, ...) and on servers.

The modules, in reading order:

    uris: Parse URIs and open file systems (fsspec).
    folder: A local or remote folder with atomic uploads and downloads.
    downloads: Download files, and follow ``.symlink`` files.
    atomic_upload: Copy a finished file to a path, URI or object store.
    errors, retrying: Which errors are transient; retries with exponential backoff.
    uploads, upload_staging: A queue of background uploads, and copies of the files until they are uploaded.
    object_store, object_stores, libcloud_store, sftp: Object stores as classes.
    remote_uploader: Background uploads for scripts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer._lazy import attach

if TYPE_CHECKING:
    from composer.storage.downloads import get_file as get_file
    from composer.storage.errors import ObjectStoreTransientError as ObjectStoreTransientError
    from composer.storage.folder import Folder as Folder
    from composer.storage.libcloud_store import LibcloudObjectStore as LibcloudObjectStore
    from composer.storage.object_store import ObjectStore as ObjectStore
    from composer.storage.object_store import UriObjectStore as UriObjectStore
    from composer.storage.object_stores import GCSObjectStore as GCSObjectStore
    from composer.storage.object_stores import OCIObjectStore as OCIObjectStore
    from composer.storage.object_stores import S3ObjectStore as S3ObjectStore
    from composer.storage.object_stores import SFTPObjectStore as SFTPObjectStore
    from composer.storage.remote_uploader import RemoteUploader as RemoteUploader
    from composer.storage.uploads import UploadQueue as UploadQueue
    from composer.storage.uris import parse_uri as parse_uri

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Folder": "composer.storage.folder",
        "GCSObjectStore": "composer.storage.object_stores",
        "LibcloudObjectStore": "composer.storage.libcloud_store",
        "OCIObjectStore": "composer.storage.object_stores",
        "ObjectStore": "composer.storage.object_store",
        "ObjectStoreTransientError": "composer.storage.errors",
        "RemoteUploader": "composer.storage.remote_uploader",
        "S3ObjectStore": "composer.storage.object_stores",
        "SFTPObjectStore": "composer.storage.object_stores",
        "UploadQueue": "composer.storage.uploads",
        "UriObjectStore": "composer.storage.object_store",
        "get_file": "composer.storage.downloads",
        "parse_uri": "composer.storage.uris",
    },
)
