"""One fork server for all tests of trials: it takes seconds to start, and a trial a third of one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from composer.trials import ForkServer
from tests import leaked_processes


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with ForkServer() as one:
        leaked_processes.kept.add(one.pid)
        yield one
