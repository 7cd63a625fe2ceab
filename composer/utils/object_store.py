"""Stores of files by name, under the name that scripts import; see :mod:`composer.storage`."""

from __future__ import annotations

from composer.storage.errors import ObjectStoreTransientError
from composer.storage.libcloud import LibcloudObjectStore
from composer.storage.object_store import ObjectStore, build_remote_backend
from composer.storage.object_stores import GCSObjectStore, OCIObjectStore, S3ObjectStore, SFTPObjectStore

__all__ = [
    "GCSObjectStore",
    "LibcloudObjectStore",
    "OCIObjectStore",
    "ObjectStore",
    "ObjectStoreTransientError",
    "S3ObjectStore",
    "SFTPObjectStore",
    "build_remote_backend",
]
