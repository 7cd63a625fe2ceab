from __future__ import annotations

import time
import types

import pytest


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """A clock that only the test moves."""
    clock = types.SimpleNamespace(now=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    clock.tick = lambda seconds=1.0: setattr(clock, "now", clock.now + seconds)
    return clock


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
