from __future__ import annotations

import pytest

pytest.importorskip("libcloud")

from composer.storage.libcloud_store import LibcloudObjectStore


@pytest.fixture
def store(tmp_path) -> LibcloudObjectStore:
    pytest.importorskip("fasteners")
    (tmp_path / "cloud" / "box").mkdir(parents=True)
    return LibcloudObjectStore("LOCAL", "box", 4, provider_kwargs={"key": str(tmp_path / "cloud")})


def test_round_trip(store, tmp_path) -> None:
    path = tmp_path / "a"
    path.write_text("some text")
    told: list[tuple[int, int]] = []
    store.upload_object("run/a", path, lambda done, total: told.append((done, total)))
    assert told == [(4, 9), (8, 9), (9, 9)]
    assert store.get_object_size("run/a") == 9
    assert store.list_objects("run") == ["run/a"]
    assert store.get_uri("run/a") == "LOCAL://box/run/a"
    store.download_object("run/a", tmp_path / "b", callback=lambda done, total: told.append((done, total)))
    assert (tmp_path / "b").read_text() == "some text"
    assert told[-1] == (9, 9)
    with pytest.raises(FileExistsError):
        store.download_object("run/a", tmp_path / "b")
    with pytest.raises(FileNotFoundError):
        store.download_object("absent", tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_key_and_secret_from_environment_variables(monkeypatch) -> None:
    monkeypatch.setenv("MY_KEY", "k")
    monkeypatch.setenv("MY_SECRET", "s")
    store = LibcloudObjectStore("S3", "box", key_environ="MY_KEY", secret_environ="MY_SECRET")
    assert (store._driver.key, store._driver.secret) == ("k", "s")
    with pytest.raises(ValueError, match="key_environ='NO_KEY'"):
        LibcloudObjectStore("S3", "box", key_environ="NO_KEY")


def test_invalid_arguments() -> None:
    with pytest.raises(ValueError, match="provider='NOBODY'"):
        LibcloudObjectStore("NOBODY", "box")
    with pytest.raises(ValueError, match="chunk_size"):
        LibcloudObjectStore("LOCAL", "box", 0)
