from __future__ import annotations

import importlib
import re

import pytest
from fsspec import AbstractFileSystem
from hypothesis import given
from hypothesis import strategies as st

from composer._lazy import MissingConditionalImportError
from composer.storage.uris import filesystem, is_remote, join, local_path, parse_uri, split

NAMES = st.lists(st.text("abc.-_0", min_size=1).filter(lambda part: set(part) != {"."}), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://bucket/a/b.pt", ("s3", "bucket", "a/b.pt")),
        ("s3://bucket", ("s3", "bucket", "")),
        ("gs://bucket/", ("gs", "bucket", "")),
        ("oci://bucket@space/a", ("oci", "bucket", "a")),
        ("AZURE_BLOBS://box/a", ("azure", "box", "a")),
        ("sftp://me@server:22/a", ("sftp", "server:22", "a")),
        ("dbfs:/Volumes/a/b", ("dbfs", "", "Volumes/a/b")),
        ("/folder/a.pt", ("", "", "/folder/a.pt")),
        ("folder/a.pt", ("", "", "folder/a.pt")),
    ],
)
def test_parse(uri: str, expected: tuple[str, str, str]) -> None:
    assert parse_uri(uri) == expected


@given(folder=NAMES, name=NAMES)
def test_split_undoes_join(folder: list[str], name: list[str]) -> None:
    uri = join(f"s3://bucket/{'/'.join(folder)}", "/".join(name))
    assert uri == f"s3://bucket/{'/'.join([*folder, *name])}"
    assert split(uri) == (f"s3://bucket/{'/'.join([*folder, *name[:-1]])}", name[-1])
    assert is_remote(uri)


def test_join_does_not_leave_the_bucket() -> None:
    assert join("s3://bucket/a", "../../../b") == "s3://bucket/b"


def test_uri_without_a_file_is_rejected() -> None:
    for uri in ("s3://bucket", "s3://bucket/", "a.pt"):
        with pytest.raises(ValueError, match="has no file name"):
            split(uri)


def test_local() -> None:
    assert not is_remote("file:///a")
    assert local_path("file:///a/b").as_posix() == "/a/b"


def test_mistyped_scheme_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match="Did you mean 'memory'"):
        filesystem("memry://bucket")


@pytest.mark.parametrize(
    ("scheme", "advice"),
    [
        ("gs", "composer-torch[gcs]"),
        ("az", "composer-torch[azure]"),
        ("abfss", "composer-torch[azure]"),
        ("oci", "composer-torch[oci]"),
        ("hf", "composer-torch[hf]"),
        ("s3", "composer-torch[s3]"),
        ("smb", "smbprotocol"),
    ],
)
def test_error_names_the_missing_package(scheme, advice, monkeypatch) -> None:
    import fsspec

    def refuse(uri: str, **options):
        raise ImportError("Install it")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(MissingConditionalImportError, match=re.escape(f"pip install '{advice}'")):
        filesystem(f"{scheme}://bucket")


@pytest.mark.parametrize(
    ("uri", "module", "name", "given", "path"),
    [
        ("az://box/run/a", "adlfs", "AzureBlobFileSystem", {"account_name": "me", "account_key": "key"}, "box/run/a"),
        ("abfss://box/run", "adlfs", "AzureBlobFileSystem", {"account_name": "me", "account_key": "key"}, "box/run"),
        ("abfs://box@you/run", "adlfs", "AzureBlobFileSystem", {"account_key": "key"}, "box@you/run"),
        ("oci://box@space/run", "ocifs", "OCIFileSystem", {"config": "oci.ini"}, "box@space/run"),
        ("hf://me/repo/run", "huggingface_hub", "HfFileSystem", {}, "me/repo/run"),
    ],
)
def test_client_for_a_uri(uri, module, name, given, path, monkeypatch) -> None:
    """Stands in for clients whose services have no server for tests; the class is that of fsspec's own table."""

    class Client(AbstractFileSystem):
        cachable = False

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.partition("://")[2]

    scheme, registry = uri.partition("://")[0].replace("abfss", "abfs"), importlib.import_module("fsspec.registry")
    assert registry.known_implementations[scheme]["class"] == f"{module}.{name}"
    monkeypatch.setitem(registry._registry, scheme, Client)
    monkeypatch.setenv("AZURE_ACCOUNT_NAME", "me")
    monkeypatch.setenv("AZURE_ACCOUNT_ACCESS_KEY", "key")
    monkeypatch.setenv("OCI_CONFIG_FILE", "oci.ini")
    files, found = filesystem(uri)
    assert (type(files), dict(files.storage_options), found) == (Client, given, path)


def test_environment_variables(monkeypatch) -> None:
    import fsspec

    seen = {}
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda uri, **options: (seen.update({uri: options}), ("", ""))[1])
    monkeypatch.setenv("S3_ENDPOINT_URL", "http://here")
    monkeypatch.setenv("S3_CANNED_ACL", "private")
    monkeypatch.setenv("AZURE_ACCOUNT_NAME", "me")
    monkeypatch.setenv("OCI_CONFIG_FILE", "oci.ini")
    filesystem("s3://bucket/a")
    filesystem("s3://bucket/b", {"endpoint_url": "http://there"})
    filesystem("azure://box/a")
    filesystem("oci://bucket@space/a")
    acl = {"s3_additional_kwargs": {"ACL": "private"}}
    assert seen == {
        "s3://bucket/a": {"endpoint_url": "http://here", **acl},
        "s3://bucket/b": {"endpoint_url": "http://there", **acl},
        "az://box/a": {"account_name": "me"},
        "oci://bucket@space/a": {"config": "oci.ini"},
    }
