"""When a process started."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from composer.ledger import process_start

LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("process_start", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""

STARTED = f"""
import time
print(time.monotonic())
{LOAD}
print(time.monotonic() - module.process_age())
"""

CODE = f"""
import time
time.sleep(0.3)
{LOAD}
print(module.process_age(), module.claim_start() is None, module.claim_start() is None)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell when a process started")
def test_counts_from_the_start_of_the_process() -> None:
    """By a clock that processes share: the wall clock jumps, and the time of boot is known in whole seconds only."""
    before = time.monotonic()
    command = [sys.executable, "-c", STARTED, str(Path(process_start.__file__))]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    first_line, started = map(float, result.stdout.split())
    assert before - 0.02 <= started <= first_line + 0.02  # two clock ticks


@pytest.mark.parametrize(("options", "is_taken"), [([], [False, True]), (["-i"], [True, True])])
def test_the_first_trainer_of_a_script_has_the_start(options, is_taken) -> None:
    command = [sys.executable, *options, "-c", CODE, str(Path(process_start.__file__))]
    result = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    age, *taken = result.stdout.split()
    assert float(age) > 0.3
    assert taken == [str(one) for one in is_taken]


@pytest.mark.parametrize("text", ["", "1 (a b) c) S", "1 (python) S " + "x " * 40])
def test_falls_back_to_the_import(monkeypatch, text) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self, errors=None: text)
    assert 0 < process_start.process_age() <= time.perf_counter() - process_start._imported
    assert process_start.process_name() == process_start.process_name()


def test_a_start_in_the_future_is_not_believed(monkeypatch) -> None:
    monkeypatch.setattr(process_start, "_start_ticks", lambda: 10**12)
    assert process_start.process_age() <= time.perf_counter() - process_start._imported
