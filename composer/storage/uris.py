"""Parse URIs (``s3://``, ``gs://``, ``sftp://``, ...), and open their file systems with fsspec."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from composer._lazy import MissingConditionalImportError
from composer._secrets.masking import mask_error, mask_text, secrets_in
from composer._text import did_you_mean

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["filesystem", "is_remote", "join", "join_path", "local_path", "parse_uri", "split"]

_LOCAL: Final = ("file", "local")
# Schemes that fsspec names differently.
_ALIASES: Final = {"abfss": "abfs", "azure": "az", "AZURE_BLOBS": "az"}
# What a scheme requires: an extra of this package and the package in it, or only a package.
_PACKAGES: Final = {
    "abfs": ("azure", "adlfs"),
    "az": ("azure", "adlfs"),
    "ftp": ("", "fsspec"),
    "gcs": ("gcs", "gcsfs"),
    "gs": ("gcs", "gcsfs"),
    "hf": ("hf", "huggingface_hub"),
    "http": ("", "fsspec[http]"),
    "https": ("", "fsspec[http]"),
    "oci": ("oci", "ocifs"),
    "s3": ("s3", "s3fs"),
    "s3a": ("s3", "s3fs"),
    "sftp": ("sftp", "paramiko"),
    "smb": ("", "smbprotocol"),
    "ssh": ("sftp", "paramiko"),
}
# Environment variables of MosaicML Composer; clients read their other variables themselves.
_AZURE: Final = {"account_name": "AZURE_ACCOUNT_NAME", "account_key": "AZURE_ACCOUNT_ACCESS_KEY"}
_VARIABLES: Final = {
    "abfs": _AZURE,
    "az": _AZURE,
    "oci": {"config": "OCI_CONFIG_FILE"},
    "s3": {"endpoint_url": "S3_ENDPOINT_URL"},
}


def is_remote(path: Path | str) -> bool:
    """Return whether a path is a remote URI.

    Args:
        path: A path or URI.

    >>> is_remote("s3://bucket/run/ep1.pt"), is_remote("runs/ep1.pt"), is_remote("file:///runs/ep1.pt")
    (True, False, False)
    """
    scheme, found, _ = str(path).partition("://")
    return bool(found) and scheme not in _LOCAL


def local_path(path: Path | str) -> Path:
    """Return the path of a local URI, or the path itself.

    Args:
        path: A path, or a URI for which :func:`is_remote` is false.

    >>> local_path("file:///runs/ep1.pt").as_posix(), local_path("runs/ep1.pt").as_posix()
    ('/runs/ep1.pt', 'runs/ep1.pt')
    """
    text = os.fspath(path)
    for scheme in _LOCAL:
        text = text.removeprefix(f"{scheme}://")
    return Path(text)


def parse_uri(uri: Path | str) -> tuple[str, str, str]:
    """Return scheme, bucket and path of a URI; a local path has neither scheme nor bucket.

    Args:
        uri: A URI or path. For ``bucket@namespace`` only the bucket is returned.

    >>> parse_uri("s3://bucket/run/ep1.pt"), parse_uri("runs/ep1.pt")
    (('s3', 'bucket', 'run/ep1.pt'), ('', '', 'runs/ep1.pt'))
    """
    uri = os.fspath(uri)
    scheme, found, rest = uri.partition("://")
    if not found:
        if uri.startswith("dbfs:/"):
            return "dbfs", "", uri.removeprefix("dbfs:/")
        return "", "", uri
    scheme = "azure" if scheme == "AZURE_BLOBS" else scheme
    netloc, _, path = rest.partition("/")
    bucket = netloc.rpartition("@")[2] if scheme in ("sftp", "ssh", "ftp") else netloc.partition("@")[0]
    return scheme, bucket, path


def join(folder: str, name: str) -> str:
    """Return the URI of a name in a folder.

    Args:
        folder: A URI, with or without a slash at the end.
        name: A relative name, which may have ``..``; a leading slash is ignored.

    >>> join("s3://bucket/run/", "ep1.pt"), join("s3://bucket/run", "../other/ep1.pt")
    ('s3://bucket/run/ep1.pt', 's3://bucket/other/ep1.pt')
    """
    scheme, _, rest = folder.partition("://")
    return f"{scheme}://{join_path(rest, name)}"


def join_path(folder: str, name: str) -> str:
    """Return the path of a name in a folder, as :func:`join` does without the scheme.

    Args:
        folder: A path; its first component is the bucket or the root, which ``..`` does not leave.
        name: A name relative to it.

    >>> join_path("/run", "deep/ep1.pt")
    '/run/deep/ep1.pt'
    """
    root, *parts = folder.rstrip("/").split("/")
    for part in name.strip("/").split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", ".", ".."):
            parts.append(part)
    return "/".join([root, *parts])


def split(uri: str) -> tuple[str, str]:
    """Return the URI of the folder of a file, and the name of the file.

    Args:
        uri: The URI of a file.

    Raises:
        ValueError: The URI has no file name.

    >>> split("s3://bucket/run/ep1.pt")
    ('s3://bucket/run', 'ep1.pt')
    """
    scheme, found, rest = uri.partition("://")
    folder, slash, name = rest.rpartition("/")
    if not (found and slash and name):
        raise ValueError(f"{mask_text(uri)!r} has no file name: give <scheme>://<bucket or server>/<path>.")
    return f"{scheme}://{folder}", name


def filesystem(uri: str, options: dict[str, Any] | None = None) -> tuple[AbstractFileSystem, str]:
    """Return the fsspec file system of a URI, and the path in it.

    Args:
        uri: A URI with any scheme that fsspec supports.
        options: Arguments of the file system; defaults come from the environment and the configuration files of its
            client.

    Raises:
        MissingConditionalImportError: The package for the scheme is not installed.
        ValueError: The scheme is unknown.

    >>> files, path = filesystem("memory://run/weights.pt")
    >>> files.protocol, path
    ('memory', '/run/weights.pt')
    """
    import fsspec

    scheme, found, rest = uri.partition("://")
    scheme = _ALIASES.get(scheme, scheme)
    variables = {key: os.environ.get(name) for key, name in _VARIABLES.get(scheme, {}).items()}
    if scheme == "abfs" and "@" in rest:
        variables.pop("account_name")  # given as container@account
    given = {**{key: value for key, value in variables.items() if value}, **(options or {})}
    if scheme == "s3" and "s3_additional_kwargs" not in given and (acl := os.environ.get("S3_CANNED_ACL")):
        given["s3_additional_kwargs"] = {"ACL": acl}
    try:
        if scheme in ("sftp", "ssh"):
            from composer.storage.sftp import sftp_filesystem

            return sftp_filesystem(uri, given)
        return fsspec.core.url_to_fs(f"{scheme}{found}{rest}", **given)
    except ImportError as error:
        extra, package = _PACKAGES.get(scheme, ("", scheme))
        alone = None if extra else package
        raise MissingConditionalImportError(extra, package, purpose=f"{scheme}://", install=alone) from error
    except ValueError as error:
        mask_error(error, secrets_in([uri, given]))
        known = {*fsspec.available_protocols(), *fsspec.registry, *_ALIASES}
        if scheme in known:
            raise
        raise ValueError(
            f"{mask_text(uri)!r}: the scheme {scheme!r} is unknown.{did_you_mean(scheme, known)}"
        ) from error
