"""Files here and elsewhere, under the name that scripts import; see :mod:`composer.storage`."""

from __future__ import annotations

from composer.checkpoint.folders import ensure_folder_has_no_conflicting_files, ensure_folder_is_empty
from composer.checkpoint.latest import create_symlink_file, extract_path_from_symlink
from composer.core.file_names import (
    FORMAT_NAME_WITH_DIST_AND_TIME_TABLE,
    FORMAT_NAME_WITH_DIST_TABLE,
    format_name_with_dist,
    format_name_with_dist_and_time,
)
from composer.loggers.remote_uploader_downloader import maybe_create_remote_uploader_downloader_from_uri
from composer.storage.object_store import (
    list_remote_objects,
    maybe_create_object_store_from_uri,
    validate_credentials,
)
from composer.storage.transfer import get_file
from composer.storage.uris import parse_uri

__all__ = [
    "FORMAT_NAME_WITH_DIST_AND_TIME_TABLE",
    "FORMAT_NAME_WITH_DIST_TABLE",
    "create_symlink_file",
    "ensure_folder_has_no_conflicting_files",
    "ensure_folder_is_empty",
    "extract_path_from_symlink",
    "format_name_with_dist",
    "format_name_with_dist_and_time",
    "get_file",
    "list_remote_objects",
    "maybe_create_object_store_from_uri",
    "maybe_create_remote_uploader_downloader_from_uri",
    "parse_uri",
    "validate_credentials",
]
