from __future__ import annotations

import pytest

from tests.storage.faulty import cleared


@pytest.fixture
def faulty():
    yield from cleared()


@pytest.fixture(autouse=True)
def _memory():
    from fsspec.implementations.memory import MemoryFileSystem

    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not sleep between retries."""
    monkeypatch.setattr("composer.storage.retrying.sleep", lambda seconds: None)
