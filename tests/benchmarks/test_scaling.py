"""A step of several processes."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import scaling


@pytest.mark.slow
def test_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    """One group of two processes times its loops; the others, which differ in arguments only, take this process."""
    apart: list[tuple[Any, ...]] = []
    ask = scaling.ask

    def ask_once(size: int, *arguments: Any) -> list[float]:
        if size == 2 and not apart:
            apart.append(arguments)
            return ask(size, *arguments)
        _, *others = arguments
        return scaling.time_loops("single", *others)

    monkeypatch.setattr(scaling, "ask", ask_once)
    report = scaling.measure(rounds=1, width=16, depth=1, batch=4, steps=3, strategies=("single", "fsdp"))
    assert [each[:2] for each in apart] == [("fsdp", scaling.ORDER)]
    assert [row[0] for row in report.rows] == [f"{s}: {loop}" for s in ("single", "fsdp") for loop in scaling.LOOPS]
    assert all(value > 0 for row in report.rows for value in row[1:2] + row[3:])
    assert len(report.goals) == 1
