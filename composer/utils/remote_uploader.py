"""Uploads in the background, under the name that scripts import; see :mod:`composer.storage.remote_uploader`."""

from __future__ import annotations

from composer.storage.remote_uploader import RemoteFilesExistingCheckStatus, RemoteUploader

__all__ = ["RemoteFilesExistingCheckStatus", "RemoteUploader"]
