"""The peak of the resident memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from composer import _resident_memory
from composer._resident_memory import resident_peak

SIZE = 400 << 20
FREED = """
from composer._resident_memory import resident_peak
before = resident_peak()
held = bytearray({size})
high = resident_peak()
del held
print(before, high, resident_peak())
"""
PROGRAM = """
from composer._resident_memory import resident_peak
first = resident_peak()
held = bytearray({size})
print(first, resident_peak())
"""


def test_memory_that_was_freed_counts() -> None:
    # In a process of its own: this one may have had more before, and may be large.
    done = subprocess.run([sys.executable, "-c", FREED.format(size=SIZE)], check=True, capture_output=True, text=True)
    before, high, last = map(int, done.stdout.split())
    assert high >= before + 0.9 * SIZE
    assert last >= 0.99 * high  # the kernel counts pages in batches


@pytest.mark.skipif(sys.platform != "linux", reason="other systems report the peak of the program alone")
def test_the_peak_of_the_parent_does_not_count() -> None:
    held = bytearray(SIZE)
    parent = resident_peak()
    program = PROGRAM.format(size=SIZE // 4)
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    first, second = map(int, done.stdout.split())
    assert first < parent - SIZE / 2
    assert second - first == pytest.approx(SIZE / 4, rel=0.1)
    assert len(held) == SIZE


def test_systems_without_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = resident_peak()
    monkeypatch.setattr(_resident_memory, "_STATUS", "/nowhere/status")
    _resident_memory._inherited_peak.cache_clear()
    try:
        assert resident_peak() >= 0.9 * peak
    finally:
        _resident_memory._inherited_peak.cache_clear()
