"""Write checkpoints synchronously or in the background."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from composer.checkpoint import file_format
from composer.checkpoint.async_writer import CheckpointWriter
from composer.warnings import ComposerWarning
from tests.checkpoint.disks import full

both = pytest.mark.parametrize("background", [False, True])


class Gate:
    """Holds writing up until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        write = file_format.write

        def wait(content: dict[str, Any], path: Path) -> None:
            self.reached.set()
            assert self.opened.wait(10)
            write(content, path)

        monkeypatch.setattr(file_format, "write", wait)


@both
def test_jobs_run_in_order_then_the_callback(background, tmp_path) -> None:
    writer, done = CheckpointWriter(background=background), []
    for number in range(5):
        path = tmp_path / f"{number}.pt"
        writer.write({"number": number}, path, lambda path=path: done.append((path.name, path.exists())))
        assert len(done) >= number  # the one before is complete
    writer.close()
    assert done == [(f"{number}.pt", True) for number in range(5)]
    assert [file_format.read(tmp_path / f"{number}.pt")["number"] for number in range(5)] == list(range(5))


def test_training_continues_while_the_copy_is_written(tmp_path, monkeypatch) -> None:
    gate = Gate(monkeypatch)
    writer, weight = CheckpointWriter(background=True), torch.ones(3)
    writer.write({"weight": weight, "list": (values := [1])}, tmp_path / "a.pt")
    assert gate.reached.wait(10)
    weight.zero_()
    values.append(2)
    writer.poll()  # nothing to report yet
    assert not (tmp_path / "a.pt").exists()
    gate.opened.set()
    writer.close()
    read = file_format.read(tmp_path / "a.pt")
    assert read["weight"].tolist() == [1.0, 1.0, 1.0]
    assert read["list"] == [1]


def test_next_copy_waits_for_the_previous_write(tmp_path, monkeypatch) -> None:
    gate = Gate(monkeypatch)
    writer, weight = CheckpointWriter(background=True), torch.ones(1)
    writer.write({"weight": weight}, tmp_path / "a.pt")
    weight.fill_(2.0)
    threading.Timer(0.05, gate.opened.set).start()
    writer.write({"weight": weight}, tmp_path / "b.pt")
    assert (tmp_path / "a.pt").exists()
    writer.close()
    assert [file_format.read(tmp_path / name)["weight"].item() for name in ("a.pt", "b.pt")] == [1.0, 2.0]


def test_background_failure_is_raised_at_next_poll(tmp_path, monkeypatch) -> None:
    writer, told = CheckpointWriter(background=True), []
    with full("fsync", monkeypatch):
        writer.write({}, tmp_path / "a.pt", lambda: told.append("then"), lambda: told.append("otherwise"))
        running = writer._running
        assert running is not None
        assert isinstance(running[0].exception(60), OSError)
    with pytest.raises(OSError, match="No space left") as error:
        writer.poll()
    assert error.value.__notes__ == [
        f"The checkpoint '{tmp_path / 'a.pt'}' could not be written; earlier checkpoints are unchanged."
    ]
    assert told == ["otherwise"]
    writer.poll()  # the error is raised once
    writer.close()


@pytest.mark.parametrize("by", ["wait", "close"])
def test_background_failure_is_raised_at_close(by, tmp_path, monkeypatch) -> None:
    before = set(threading.enumerate())
    writer = CheckpointWriter(background=True)
    with full("write", monkeypatch):
        writer.write({}, tmp_path / "a.pt")
        with pytest.raises(OSError, match="No space left"):
            getattr(writer, by)()
    writer.write({"later": 1}, tmp_path / "a.pt")
    writer.close()
    assert file_format.read(tmp_path / "a.pt") == {"later": 1}
    assert not [t for t in set(threading.enumerate()) - before if t.name.startswith("composer-checkpoint")]


@both
def test_failure_can_be_a_warning(background, tmp_path, monkeypatch) -> None:
    writer, told = CheckpointWriter(background=background, on_failure="warn"), []
    with full("rename", monkeypatch), pytest.warns(ComposerWarning, match="could not be written .*No space left"):
        writer.write({}, tmp_path / "a.pt", lambda: told.append("then"), lambda: told.append("otherwise"))
        writer.wait()
    assert told == ["otherwise"]
    writer.close()


@both
def test_failure_of_the_follow_up_callback(background, tmp_path) -> None:
    def fail() -> None:
        raise OSError("no link")

    writer, told = CheckpointWriter(background=background), []
    with pytest.raises(OSError, match="no link") as error:
        writer.write({}, tmp_path / "a.pt", fail, lambda: told.append("otherwise"))
        writer.wait()
    assert "is written, but a step after it failed" in error.value.__notes__[0]
    assert not told
    assert (tmp_path / "a.pt").exists()
    writer.close()


def test_close_twice_and_close_unused() -> None:
    for background in (False, True):
        writer = CheckpointWriter(background=background)
        writer.close()
        writer.close()
