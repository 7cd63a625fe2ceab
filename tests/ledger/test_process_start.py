"""When a process started."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from composer.ledger import process_start

CODE = """
import time
time.sleep(0.3)
import importlib.util, sys
spec = importlib.util.spec_from_file_location("process_start", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.process_age(), module.claim_start() is None, module.claim_start() is None)
"""


def test_counts_from_the_start_of_the_process() -> None:
    created, before = psutil.Process().create_time(), time.time()
    age = process_start.process_age()
    # However long a busy machine takes between two lines.
    assert before - created - 0.1 <= age <= time.time() - created + 0.1


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
