"""One server for the trials of all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from composer.exploration.trial_runner import PROBE
from composer.trials import ForkServer
from composer.trials.fork_server import can_fork
from tests import leaked_processes


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    """A server that has imported the probe."""
    if not can_fork():
        pytest.skip("processes cannot be forked here; each trial would take seconds")
    with ForkServer([PROBE.partition(":")[0]]) as one:
        leaked_processes.kept.add(one.pid)
        yield one
