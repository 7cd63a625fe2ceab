"""Logs that are too long are shortened, and lose nothing that is written meanwhile."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from composer.trials import leader


@pytest.mark.skipif(sys.platform != "linux", reason="frees a part of a file")
def test_lines_that_are_written_while_a_log_is_shortened_are_kept(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(leader, "_MAX_LOG_BYTES", 2**20)
    monkeypatch.setattr(leader, "_KEPT_LOG_BYTES", 2**16)
    log, number, largest = tmp_path / "log.txt", 100_000, 0

    def write() -> None:
        with log.open("ab", buffering=0) as file:
            for index in range(number):
                file.write(b"%099d\n" % index)

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        leader._free_beginning(log)
        largest = max(largest, log.stat().st_blocks * 512 if log.exists() else 0)
    writer.join()
    leader._shorten(log)
    first, *lines = log.read_text().splitlines()
    assert first == "... (the beginning was removed)"
    kept = [int(line) for line in lines[1:]]  # the first is cut
    assert kept == list(range(kept[0], number))
    assert len(kept) > 600
    assert log.stat().st_size < 2**17
    assert largest < 5 * 2**20
