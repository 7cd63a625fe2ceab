"""Object stores for S3, Google Cloud Storage, Oracle Cloud and SFTP, each a thin layer over :class:`.Folder`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from composer._text import one_of
from composer.storage.folder import Folder
from composer.storage.object_store import ObjectStore

__all__ = ["GCSObjectStore", "OCIObjectStore", "S3ObjectStore", "SFTPObjectStore"]

_TRANSFER: Final = ("max_concurrency", "multipart_chunksize")


class S3ObjectStore(ObjectStore):
    """A bucket of S3, or of an S3-compatible service.

    Defaults come from the environment and the configuration files of AWS. ``S3_ENDPOINT_URL`` and
    ``S3_CANNED_ACL`` are read too.

    Args:
        bucket: Name of the bucket.
        prefix: Prefix of all object names.
        region_name: Region of the bucket.
        endpoint_url: URL of an S3-compatible service; None is AWS.
        aws_access_key_id: Access key.
        aws_secret_access_key: Secret of the key.
        aws_session_token: Session token of temporary credentials.
        client_config: Arguments of botocore's ``Config``, such as ``{"retries": {"max_attempts": 5}}``.
        transfer_config: ``max_concurrency``, the number of parts of a multipart upload that are sent at once, and
            ``multipart_chunksize``, their size in bytes.

    Raises:
        ValueError: ``transfer_config`` has other keys.

    >>> store = S3ObjectStore("bucket", prefix="team")
    >>> store.get_uri("run/ep1.pt"), store.get_key("run/ep1.pt")
    ('s3://bucket/team/run/ep1.pt', 'team/run/ep1.pt')
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        region_name: str | None = None,
        endpoint_url: str | None = None,
        aws_access_key_id: str | None = None,
        aws_secret_access_key: str | None = None,
        aws_session_token: str | None = None,
        client_config: Mapping[str, Any] | None = None,
        transfer_config: Mapping[str, Any] | None = None,
    ) -> None:
        transfer = {one_of("transfer_config", key, _TRANSFER): value for key, value in (transfer_config or {}).items()}
        options = {
            "endpoint_url": endpoint_url,
            "key": aws_access_key_id,
            "secret": aws_secret_access_key,
            "token": aws_session_token,
            "client_kwargs": None if region_name is None else {"region_name": region_name},
            "config_kwargs": None if client_config is None else dict(client_config),
            "max_concurrency": transfer.get("max_concurrency"),
            "default_block_size": transfer.get("multipart_chunksize"),
        }
        self.bucket = _bucket(bucket)
        self.prefix = prefix
        super().__init__(_folder("s3", self.bucket, prefix, options))

    def get_key(self, object_name: str) -> str:
        """Return the key of an object in the bucket, including the prefix.

        Args:
            object_name: Its name.
        """
        return self.get_uri(object_name).partition("://")[2].partition("/")[2]


class GCSObjectStore(ObjectStore):
    """A bucket of Google Cloud Storage.

    If ``GCS_KEY`` and ``GCS_SECRET`` are set, the S3-compatible API is used; otherwise the default credentials of the
    environment.

    Args:
        bucket: Name of the bucket.
        prefix: Prefix of all object names.

    >>> GCSObjectStore("bucket").get_uri("run/ep1.pt")
    'gs://bucket/run/ep1.pt'
    """

    def __init__(self, bucket: str, prefix: str = "") -> None:
        self.bucket = self.bucket_name = _bucket(bucket)
        self.prefix = prefix
        key, secret = os.environ.get("GCS_KEY"), os.environ.get("GCS_SECRET")
        if key and secret:
            given = {"endpoint_url": "https://storage.googleapis.com", "key": key, "secret": secret}
            super().__init__(_folder("s3", self.bucket, prefix, given))
        else:
            super().__init__(_folder("gs", self.bucket, prefix, {}))

    def get_uri(self, object_name: str) -> str:
        """Return the URI of an object.

        Args:
            object_name: Its name.
        """
        return f"gs://{super().get_uri(object_name).partition('://')[2]}"

    def get_key(self, object_name: str) -> str:
        """Return the key of an object in the bucket, including the prefix.

        Args:
            object_name: Its name.
        """
        return self.get_uri(object_name).partition("://")[2].partition("/")[2]


class OCIObjectStore(ObjectStore):
    """A bucket of Oracle Cloud; ``OCI_CONFIG_FILE`` may be the path of the file with the credentials.

    Args:
        bucket: Name of the bucket, or ``bucket@namespace``.
        prefix: Prefix of all object names.

    >>> OCIObjectStore("bucket@space").get_uri("run/ep1.pt")
    'oci://bucket@space/run/ep1.pt'
    """

    def __init__(self, bucket: str, prefix: str = "") -> None:
        self.bucket = _bucket(bucket)
        self.prefix = prefix
        super().__init__(_folder("oci", self.bucket, prefix, {}))


class SFTPObjectStore(ObjectStore):
    """The files of an SFTP server.

    Args:
        host: The server, or ``sftp://user@server:port/path``.
        port: Its port.
        username: User name; the local user by default.
        password: Password.
        known_hosts_filename: File with the known host keys; that of the user by default.
        known_hosts_filename_environ: Environment variable with the default of ``known_hosts_filename``.
        key_filename: File with the private key.
        key_filename_environ: Environment variable with the default of ``key_filename``.
        missing_host_key_policy: What to do with an unknown host key: "RejectPolicy", "AutoAddPolicy" or
            "WarningPolicy".
        cwd: Folder that names are relative to.
        connect_kwargs: Further arguments of paramiko's ``SSHClient.connect``.

    Raises:
        ValueError: The policy is unknown.

    >>> SFTPObjectStore("server.org", cwd="/data").get_uri("run/ep1.pt")
    'sftp://server.org:22/data/run/ep1.pt'
    """

    def __init__(
        self,
        host: str,
        port: int = 22,
        username: str | None = None,
        password: str | None = None,
        known_hosts_filename: str | None = None,
        known_hosts_filename_environ: str = "COMPOSER_SFTP_KNOWN_HOSTS_FILE",
        key_filename: str | None = None,
        key_filename_environ: str = "COMPOSER_SFTP_KEY_FILE",
        missing_host_key_policy: str = "RejectPolicy",
        cwd: str = "",
        connect_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        from composer.storage.sftp import POLICIES, server_of

        server, path = server_of(host, port)
        if username is not None and "@" not in server:
            server = f"{quote(username, safe='')}@{server}"
        self.known_hosts_filename = known_hosts_filename or os.environ.get(known_hosts_filename_environ)
        self.key_filename = key_filename or os.environ.get(key_filename_environ)
        self.cwd = cwd
        options = {
            "username": username,
            "password": password,
            "known_hosts_filename": self.known_hosts_filename,
            "key_filename": self.key_filename,
            "missing_host_key_policy": one_of("missing_host_key_policy", missing_host_key_policy, POLICIES),
            **(connect_kwargs or {}),
        }
        self.host = host
        super().__init__(_folder("sftp", server, f"{path}/{cwd.strip('/')}", options))


def _bucket(name: str) -> str:
    """Return the name of a bucket, which may be given as a URI."""
    return name.partition("://")[2].strip("/") if "://" in name else name.strip("/")


def _folder(scheme: str, bucket: str, prefix: str, options: Mapping[str, Any]) -> Folder:
    given = {key: value for key, value in options.items() if value is not None}
    return Folder(f"{scheme}://{bucket}/{prefix.strip('/')}", given)
