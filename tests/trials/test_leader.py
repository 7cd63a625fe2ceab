"""Logs that are too long are shortened, and lose nothing that is written meanwhile."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from composer.trials import leader


@pytest.mark.skipif(sys.platform != "linux", reason="frees a part of a file")
def test_the_beginning_is_freed_while_processes_append(tmp_path: Path, monkeypatch) -> None:
    """The log is not truncated before they have ended: what is written in between would be lost."""
    monkeypatch.setattr(leader, "_MAX_LOG_BYTES", 2**20)
    monkeypatch.setattr(leader, "_KEPT_LOG_BYTES", 2**16)
    log = tmp_path / "log.txt"
    lines = [b"%099d\n" % index for index in range(40_000)]
    with log.open("ab", buffering=0) as process:
        process.write(b"".join(lines))
        leader._free_beginning(log)
        assert log.stat().st_size == 4_000_000
        assert log.stat().st_blocks * 512 < 2**18
        assert log.read_bytes()[-(2**16) :] == b"".join(lines)[-(2**16) :]
        process.write(b"end\n")
    leader._shorten(log)
    assert log.stat().st_size < 2**17
    first, _, *kept = log.read_bytes().splitlines(keepends=True)  # the second line is cut
    assert first == b"... (the beginning was removed)\n"
    assert kept == [*lines[40_001 - len(kept) :], b"end\n"]


def test_short_logs_stay(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("line\n" * 1000)
    leader._free_beginning(log)
    leader._shorten(log)
    assert log.read_text() == "line\n" * 1000
    leader._free_beginning(tmp_path / "none.txt")
    leader._shorten(tmp_path / "none.txt")
