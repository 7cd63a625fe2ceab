"""One fork server for the trials of all tests of this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from composer.trials import ForkServer
from composer.trials.fork_server import can_fork
from tests import leaked_processes


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    """A server that has imported the probe."""
    if not can_fork():
        pytest.skip("processes cannot be forked here; each trial would take seconds")
    with ForkServer(["composer.estimation.recorder", "tests.estimation.programs"]) as one:
        leaked_processes.kept.add(one.pid)
        yield one


@pytest.fixture
def one_server(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all estimates of a test use it."""
    monkeypatch.setattr("composer.trials.workspace.ForkServer", lambda *_: contextlib.nullcontext(server))
