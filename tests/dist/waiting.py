"""Wait for conditions that take long on a busy host."""

from __future__ import annotations

import time
from collections.abc import Callable

# Seconds after which it will not come any more.
LONG = 200.0


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
