"""Names of places: URIs, and what opens them."""

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
# Names of schemes that fsspec has another name for.
_ALIASES: Final = {"abfss": "abfs", "azure": "az", "AZURE_BLOBS": "az"}
# What a scheme needs: the extra of ours and its package, or the package alone.
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
# Variables that scripts of the predecessor set; everything else is left to the clients, which have their own.
_AZURE: Final = {"account_name": "AZURE_ACCOUNT_NAME", "account_key": "AZURE_ACCOUNT_ACCESS_KEY"}
_VARIABLES: Final = {
    "abfs": _AZURE,
    "az": _AZURE,
    "oci": {"config": "OCI_CONFIG_FILE"},
    "s3": {"endpoint_url": "S3_ENDPOINT_URL"},
}


def is_remote(path: Path | str) -> bool:
    """Tell whether a path is a URI of another place than this machine's folders.

    Args:
        path: A path or URI.

    >>> is_remote("s3://bucket/run/ep1.pt"), is_remote("runs/ep1.pt"), is_remote("file:///runs/ep1.pt")
    (True, False, False)
    """
    scheme, found, _ = str(path).partition("://")
    return bool(found) and scheme not in _LOCAL


def local_path(path: Path | str) -> Path:
    """Return the path that a URI of this machine's folders names, or the path itself.

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
    """Return the scheme, the bucket and the path in it; a path of this machine has neither scheme nor bucket.

    Args:
        uri: A URI or path. Of ``bucket@namespace`` only the bucket is returned.

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
        name: A name relative to it, which may have ``..``; one that starts with a slash is taken relative all the same.

    >>> join("s3://bucket/run/", "ep1.pt"), join("s3://bucket/run", "../other/ep1.pt")
    ('s3://bucket/run/ep1.pt', 's3://bucket/other/ep1.pt')
    """
    scheme, _, rest = folder.partition("://")
    return f"{scheme}://{join_path(rest, name)}"


def join_path(folder: str, name: str) -> str:
    """Return the path of a name in a folder, as :func:`join` does without the scheme.

    Args:
        folder: A path; its first part is the bucket or the root, which ``..`` does not leave.
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
    """Return the URI of the folder that something is in, and its name there.

    Args:
        uri: The URI of a file.

    Raises:
        ValueError: It names no file in a bucket, or on a server.

    >>> split("s3://bucket/run/ep1.pt")
    ('s3://bucket/run', 'ep1.pt')
    """
    scheme, found, rest = uri.partition("://")
    folder, slash, name = rest.rpartition("/")
    if not (found and slash and name):
        raise ValueError(f"{mask_text(uri)!r} names no file: give <scheme>://<bucket or server>/<path>.")
    return f"{scheme}://{folder}", name


def filesystem(uri: str, options: dict[str, Any] | None = None) -> tuple[AbstractFileSystem, str]:
    """Return what opens the place that a URI names, and the path there.

    Args:
        uri: A URI of any scheme that fsspec knows.
        options: Arguments of the file system of that scheme; those not given come from the environment and the
            configuration files of its client.

    Raises:
        MissingConditionalImportError: The package for the scheme is not installed.
        ValueError: There is no such scheme.

    >>> files, path = filesystem("memory://run/weights.pt")
    >>> files.protocol, path
    ('memory', '/run/weights.pt')
    """
    import fsspec

    scheme, found, rest = uri.partition("://")
    scheme = _ALIASES.get(scheme, scheme)
    variables = {key: os.environ.get(name) for key, name in _VARIABLES.get(scheme, {}).items()}
    if scheme == "abfs" and "@" in rest:
        variables.pop("account_name")  # container@account says it
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
            f"{mask_text(uri)!r}: the scheme {scheme!r} is not known.{did_you_mean(scheme, known)}"
        ) from error
