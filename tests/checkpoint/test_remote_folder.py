from __future__ import annotations

import threading
from pathlib import Path

import pytest

from composer.checkpoint.remote_folder import RemoteCheckpoints
from composer.core.timestamp import Timestamp
from composer.storage.folder import Folder
from composer.warnings import ComposerWarning
from tests.storage.faulty import HalfError, cleared

NAME = "ep{epoch}-ba{batch}.pt"


@pytest.fixture
def faulty():
    yield from cleared()


@pytest.fixture
def remote(faulty):
    remote = RemoteCheckpoints("faulty://bucket/run", num_attempts=3, initial_backoff=0.001, close_timeout=10)
    yield remote
    remote.close()


def newest(remote: RemoteCheckpoints, template: str, latest: str | None) -> str | None:
    """The first that there is."""
    found = [one.name for one in remote.candidates(template, latest)]
    found = [uri for uri in found if remote.folder.names(remote.name_of(uri) or "")]
    return next(iter(found), None)


def save(remote: RemoteCheckpoints, name: str, *to_delete: str, latest: str | None = "latest.pt") -> None:
    (remote.local / name).write_text(f"weights of {name}")
    remote.publish(name, latest, to_delete, NAME)


def test_upload_precedes_link_and_removal(remote, faulty) -> None:
    save(remote, "ep1-ba2.pt")
    save(remote, "ep2-ba4.pt", "ep1-ba2.pt")
    remote.wait()
    assert faulty.order == ["ep1-ba2.pt", "latest.pt.symlink", "ep2-ba4.pt", "latest.pt.symlink"]
    assert remote.folder.names() == ["ep2-ba4.pt", "latest.pt.symlink"]
    assert remote.folder.read_text("latest.pt.symlink") == "ep2-ba4.pt"
    assert newest(remote, NAME, "latest.pt") == "faulty://bucket/run/ep2-ba4.pt"
    assert not [one for one in remote.local.rglob("*") if one.is_file()]


def test_stale_link_is_repaired_before_its_target_is_removed(remote, faulty) -> None:
    """Where a process ends between a checkpoint and its link, the next one is to remove what the link still names."""
    save(remote, "ep1-ba2.pt")
    remote.wait()
    for name in ("ep2-ba4.pt", "ep3-ba6.pt"):
        save(remote, name, latest=None)
    remote.wait()
    faulty.puts.append(PermissionError("quota"))
    left = ["ep1-ba2.pt", "ep2-ba4.pt"]
    remote.finish(NAME, "latest.pt", (), left)
    with pytest.raises(PermissionError):
        remote.wait()
    assert remote.folder.exists("ep1-ba2.pt")  # since the link still names it
    remote.finish(NAME, "latest.pt", (), left)
    remote.wait()
    assert remote.folder.names() == ["ep3-ba6.pt", "latest.pt.symlink"]
    assert remote.folder.read_text("latest.pt.symlink") == "ep3-ba6.pt"
    faulty.order.clear()
    remote.finish(NAME, "latest.pt", (), ["ep3-ba6.pt"])
    remote.wait()
    assert not faulty.order  # nothing to mend, and the newest stays
    assert remote.folder.exists("ep3-ba6.pt")


def test_transient_failures_are_retried(remote, faulty) -> None:
    faulty.puts.extend([HalfError, TimeoutError(), None, ConnectionResetError()])
    save(remote, "ep1-ba2.pt")
    remote.wait()
    assert remote.folder.read_text("ep1-ba2.pt") == "weights of ep1-ba2.pt"
    assert remote.folder.read_text("latest.pt.symlink") == "ep1-ba2.pt"


def test_failed_upload_keeps_the_local_checkpoint(faulty, caplog) -> None:
    remote = RemoteCheckpoints("faulty://bucket/run", num_attempts=2, initial_backoff=0.001)
    save(remote, "ep1-ba2.pt")
    remote.wait()
    faulty.puts.append(PermissionError("quota"))
    save(remote, "ep2-ba4.pt", "ep1-ba2.pt")
    with pytest.raises(PermissionError) as caught:
        remote.wait()
    (note,) = [note for note in caught.value.__notes__ if note.startswith("The checkpoint is in")]
    kept = Path(note.split("'")[1])
    assert newest(remote, NAME, "latest.pt") == "faulty://bucket/run/ep1-ba2.pt"
    remote.close()
    assert kept.read_text() == "weights of ep2-ba4.pt"
    assert "could not be uploaded" in caplog.text


def test_failures_can_be_warnings(faulty) -> None:
    remote = RemoteCheckpoints("faulty://bucket/run", "warn")
    faulty.puts.append(PermissionError("quota"))
    save(remote, "ep1-ba2.pt")
    with pytest.warns(ComposerWarning, match=r"quota.*A checkpoint could not be uploaded"):
        remote.wait()
    save(remote, "ep2-ba4.pt")
    remote.wait()
    remote.poll()
    assert newest(remote, NAME, "latest.pt") == "faulty://bucket/run/ep2-ba4.pt"
    remote.close()


def test_at_most_two_uploads_in_flight(remote, faulty) -> None:
    gates = [threading.Event() for _ in range(2)]
    faulty.puts.extend([gates[0], None, gates[1], None])
    save(remote, "ep1-ba1.pt")
    save(remote, "ep1-ba2.pt")
    third = threading.Thread(target=save, args=(remote, "ep1-ba3.pt"))
    third.start()
    third.join(0.05)
    assert third.is_alive()
    gates[0].set()
    third.join(10)
    assert not third.is_alive()
    gates[1].set()
    remote.wait()


def test_checkpoints_with_one_name(remote, faulty) -> None:
    """The later is written while the earlier is on its way."""
    gate = threading.Event()
    faulty.puts.append(gate)
    save(remote, "model.pt")
    (remote.local / "model.pt").write_text("newer weights")
    remote.publish("model.pt")
    gate.set()
    remote.wait()
    assert remote.folder.read_text("model.pt") == "newer weights"


def test_newest(faulty) -> None:
    folder, remote = Folder("faulty://bucket/run"), RemoteCheckpoints("faulty://bucket/run")
    assert newest(remote, NAME, "latest.pt") is None
    folder.write_text("other.txt", "x")
    folder.write_text("ep1-ba9.pt", "x")
    folder.write_text("ep1-ba10.pt", "x")
    assert newest(remote, NAME, None) == newest(remote, NAME, "latest.pt") == "faulty://bucket/run/ep1-ba10.pt"
    folder.write_text("latest.pt.symlink", "run/ep1-ba9.pt")  # as the predecessor wrote it, from the bucket
    assert newest(remote, NAME, "latest.pt") == "faulty://bucket/run/ep1-ba9.pt"
    folder.write_text("ep0-ba3.pt", "x")  # later by the clock, of an earlier time
    assert newest(remote, NAME, "latest.pt") == "faulty://bucket/run/ep1-ba9.pt"
    folder.write_text("ep1-ba11.pt", "x")  # a crash came before its link
    assert newest(remote, NAME, "latest.pt") == "faulty://bucket/run/ep1-ba11.pt"
    folder.write_text("latest.pt.symlink", "gone.pt")
    assert newest(remote, NAME, "latest.pt") == "faulty://bucket/run/ep1-ba11.pt"


def test_checkpoints_of_another_run(faulty) -> None:
    remote = RemoteCheckpoints("faulty://bucket/run")
    Folder("faulty://bucket/run").write_text("ep3-ba9.pt", "x")
    remote.raise_if_later(NAME, Timestamp(epoch=3, batch=9), ())
    remote.raise_if_later(NAME, Timestamp(epoch=1), ("ep3-ba9.pt",))
    with pytest.raises(FileExistsError, match=r"'faulty://bucket/run/ep3-ba9\.pt' is later than this run"):
        remote.raise_if_later(NAME, Timestamp(epoch=1), ())


def test_partial_uploads_are_removed(faulty) -> None:
    folder = Folder("faulty://bucket/run")
    for name in (".ep1-ba2.pt.0123abcd.tmp", ".latest.pt.symlink.0123abcd.tmp", ".other.0123abcd.tmp", "ep1-ba2.pt"):
        folder.write_text(name, "x")
    RemoteCheckpoints("faulty://bucket/run").remove_partial_files(NAME, "latest.pt")
    assert folder.names() == [".other.0123abcd.tmp", "ep1-ba2.pt"]


def test_wrong_credentials_fail_immediately(faulty) -> None:
    faulty.puts.append(PermissionError("wrong key"))
    with pytest.raises(PermissionError, match="wrong key"):
        RemoteCheckpoints("faulty://bucket/run").probe()


def save_files(remote: RemoteCheckpoints, name: str, *to_delete: str) -> None:
    (remote.local / name).mkdir()
    for part in ("__0_0.distcp", ".metadata", "composer.pt"):
        (remote.local / name / part).write_text(f"{part} of {name}")
    remote.create_group()
    remote.publish(name, "latest.pt", to_delete, "ep{epoch}-ba{batch}")


def test_metadata_is_uploaded_last(remote, faulty) -> None:
    save_files(remote, "ep1-ba2")
    save_files(remote, "ep2-ba4", "ep1-ba2")
    remote.wait()
    assert faulty.order == [".metadata", "__0_0.distcp", "composer.pt", "latest.pt.symlink"] * 2
    assert remote.folder.names() == [
        "ep2-ba4/.metadata",
        "ep2-ba4/__0_0.distcp",
        "ep2-ba4/composer.pt",
        "latest.pt.symlink",
    ]
    assert newest(remote, "ep{epoch}-ba{batch}", "latest.pt") == "faulty://bucket/run/ep2-ba4"
    assert newest(remote, "ep{epoch}-ba{batch}", None) == "faulty://bucket/run/ep2-ba4"
    assert not [one for one in remote.local.rglob("*") if one.is_file()]
    with pytest.raises(FileExistsError, match="is later than this run"):
        remote.raise_if_later("ep{epoch}-ba{batch}", Timestamp(epoch=1, batch=2), ())


def test_partially_uploaded_folder_is_not_a_checkpoint(faulty) -> None:
    remote = RemoteCheckpoints("faulty://bucket/run", num_attempts=2, initial_backoff=0.001)
    save_files(remote, "ep1-ba2")
    remote.wait()
    faulty.puts.append(PermissionError("quota"))
    save_files(remote, "ep2-ba4", "ep1-ba2")
    with pytest.raises(PermissionError, match="quota"):
        remote.wait()
    assert not remote.folder.exists("ep2-ba4/composer.pt")
    assert newest(remote, "ep{epoch}-ba{batch}", "latest.pt") == "faulty://bucket/run/ep1-ba2"
    assert remote.folder.exists("ep1-ba2/composer.pt")
    remote.close()


def test_uploads_of_a_killed_process_are_removed(remote) -> None:
    for name in (".composer-0123abcd", "..composer-0123abcd.4567cdef.tmp", ".composer-notes", "ep1-ba2.pt"):
        remote.folder.write_text(name, "text")
    remote.remove_partial_files(NAME, "latest.pt")
    assert remote.folder.names() == [".composer-notes", "ep1-ba2.pt"]
