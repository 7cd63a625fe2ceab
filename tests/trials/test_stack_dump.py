"""The line at which a trial that hangs waits, from the stack trace in its log."""

from __future__ import annotations

import threading
from pathlib import Path

from composer.trials import ForkServer
from composer.trials.stack_dump import waiting_at
from tests.trials.programs import RANK, run, script

LIBRARY = threading.__file__
DUMP = f"""epoch 1
Timeout (0:04:55)!
Thread 0x00007f01 (most recent call first):
  File "{LIBRARY}", line 331 in wait

Thread 0x00007f02 (most recent call first):
  File "{LIBRARY}", line 629 in wait
  File "/project/src/data.py", line 7 in Rows.__getitem__
  File "/project/src/train.py", line 30 in <module>
"""
COLLECTIVE = """Timeout (0:04:55)!
Thread 0x00007f02 (most recent call first):
  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/project/src/train.py", line 30 in <module>
"""


def found(tmp_path: Path, text: str) -> str:
    log = tmp_path / "log.txt"
    log.write_text(text)
    return waiting_at(log)


def test_the_main_thread_counts_and_who_called_the_library(tmp_path: Path) -> None:
    told = "threading.py:629 (wait), called by data.py:7 (Rows.__getitem__)"
    assert found(tmp_path, DUMP) == told
    assert found(tmp_path, f'{DUMP}the program prints on\n  File "/project/other.py", line 1 in f\n') == told


def test_a_line_of_the_program_is_named_alone(tmp_path: Path) -> None:
    dump = 'Timeout (0:00:01)!\nThread 0x01 (most recent call first):\n  File "/project/a b.py", line 3 in <module>\n'
    assert found(tmp_path, dump) == "a b.py:3 (<module>)"


def test_a_rank_that_waits_for_others_is_not_the_one(tmp_path: Path) -> None:
    own = DUMP.replace("data.py", "late.py")
    for text in (COLLECTIVE + own, own + COLLECTIVE):
        assert "late.py:7" in found(tmp_path, text)
    assert "distributed_c10d.py:2810 (all_reduce), called by train.py:30" in found(tmp_path, COLLECTIVE * 2)


def test_a_log_without_a_stack_trace_names_nothing(tmp_path: Path) -> None:
    for text in ("", "epoch 1\n", 'Fatal Python error\n  File "/project/a.py", line 3 in f\n', "Timeout (0:00:01)!\n"):
        assert found(tmp_path, text) == ""


def test_the_rank_that_hangs_is_named(tmp_path: Path, server: ForkServer) -> None:
    text = f"def act():\n    if {RANK} == 1: time.sleep(600)\ntrainer(callbacks=At(act)).fit()"
    record = run(tmp_path, script(tmp_path, text), server, ranks=2, time_limit=8.0)
    assert record.outcome == "timed_out"
    assert "(act)" in record.error, record
