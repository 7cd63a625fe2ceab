"""Trials end in time whatever their program does, tell why, and leave no process behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from composer.trials import ForkServer, Target
from composer.trials.fork_server import can_fork
from tests.trials.programs import RANK, gone, processes_with, run, script

pytestmark = pytest.mark.skipif(not can_fork(), reason="forks processes")

SIGNALS = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"

FAILED = [
    ("raise KeyError('lr')", "failed", "KeyError: 'lr'"),
    ("import no_such_module", "failed", "ModuleNotFoundError: No module named 'no_such_module'"),
    ("x = = 1", "failed", "SyntaxError: invalid syntax (train.py, line "),
    ("", "failed", "The program ended without a call of Trainer.fit."),
    ("sys.exit(3)", "failed", "The program exited with 3 before it called Trainer.fit"),
    ("sys.stderr.write('usage: x\\nx: error: --lr is missing\\n'); sys.exit(2)", "failed", "x: error: --lr is missing"),
    ("os._exit(0)", "failed", "It exited with code 0 before Trainer.fit returned"),
    ("os._exit(7)", "failed", "It exited with code 7 before Trainer.fit returned"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", "killed", "It was ended by SIGSEGV."),
    ("os.abort()", "killed", "It was ended by SIGABRT."),
    ("os.kill(os.getpid(), signal.SIGKILL)", "out_of_memory", "killed by SIGKILL, which the system sends when memory"),
    ("raise torch.OutOfMemoryError('CUDA out of memory. Tried')", "out_of_memory", "OutOfMemoryError: CUDA out of mem"),
    ("trainer(max_duratoin='1ep')", "failed", "TypeError: "),
    ("trainer(callbacks=At(lambda: 1 / 0)).fit()", "failed", "ZeroDivisionError: division by zero"),
    ("trainer(callbacks=At(lambda: sys.exit(2))).fit()", "failed", "The program exited with 2 during Trainer.fit"),
    ("raise ValueError('one\\ntwo')", "failed", "ValueError: one"),
    ("raise ValueError", "failed", "ValueError"),
]


@pytest.mark.parametrize(("program", "outcome", "error"), FAILED, ids=[program[:40] for program, _, _ in FAILED])
def test_a_program_that_fails_tells_why(
    tmp_path: Path, server: ForkServer, program: str, outcome: str, error: str
) -> None:
    record = run(tmp_path, script(tmp_path, program), server)
    assert (record.outcome, error in record.error) == (outcome, True), record
    assert "\n" not in record.error


def test_a_missing_script_and_an_unknown_probe_are_told(tmp_path: Path, server: ForkServer) -> None:
    assert "FileNotFoundError" in run(tmp_path, Target("script", "no.py"), server).error
    assert "no_such" in run(tmp_path, script(tmp_path, ""), server, probe="no_such:Probe").error
    assert "Probe has no argument 'x'" in run(tmp_path, script(tmp_path, ""), server, probe_arguments={"x": 1}).error


def test_a_crash_leaves_a_stack_trace_and_what_was_printed(tmp_path: Path, server: ForkServer) -> None:
    record = run(tmp_path, script(tmp_path, "print('before'); os.kill(os.getpid(), signal.SIGSEGV)"), server)
    assert "before" in record.details
    assert "Segmentation fault" in record.details
    assert "train.py" in record.details


@pytest.mark.parametrize(
    "hang",
    [
        f"{SIGNALS}; time.sleep(600)",
        f"{SIGNALS}\nwhile True: pass",
        "threading.Thread(target=time.sleep, args=(600,)).start(); threading.Event().wait()",
        f"import re; {SIGNALS}; re.match(r'(a+)+$', 'a' * 60 + 'b')",  # in C, holding the interpreter lock
        "signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals)); time.sleep(600)",
        "sys.stdin.read(); trainer(train_dataloader=loader(collate_fn=lambda b: time.sleep(600))).fit()",
    ],
    ids=["sleep", "loop", "threads", "C", "blocked", "loader"],
)
def test_a_program_that_hangs_is_ended(tmp_path: Path, server: ForkServer, hang: str) -> None:
    start = time.monotonic()
    marker = f"hang-{os.getpid()}-{time.monotonic_ns()}"
    target = script(tmp_path, f"os.environ['MARKER'] = '{marker}'\n{hang}")
    record = run(tmp_path, target, server, time_limit=1.0)
    assert record.outcome == "timed_out"
    assert record.error.startswith("It did not end within 1 s: shortly before, it was in "), record
    assert re.search(r"train\.py:\d+ \(", record.error), record
    assert time.monotonic() - start < 8
    assert "train.py" in record.details, "the stack trace says where it waited"
    assert gone(str(record.path))


def test_threads_and_data_workers_are_not_waited_for(tmp_path: Path, server: ForkServer) -> None:
    target = script(
        tmp_path,
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "trainer(train_dataloader=loader(num_workers=1, persistent_workers=True)).fit()",
    )
    record = run(tmp_path, target, server)
    assert record.is_completed, record
    assert record.seconds < 20


DAEMONS = """
command = [sys.executable, "-S", "-c", "import time; time.sleep(600)", {marker!r}]
subprocess.Popen(command, start_new_session=True, env={{}})  # not found by its environment
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, command, {{}})
    os._exit(0)
{end}
"""


@pytest.mark.parametrize("end", ["trainer().fit()", "time.sleep(600)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_daemons_are_ended(tmp_path: Path, server: ForkServer, end: str) -> None:
    marker = f"daemon-{os.getpid()}-{time.monotonic_ns()}"
    run(tmp_path, script(tmp_path, DAEMONS.format(marker=marker, end=end)), server, time_limit=3.0)
    assert gone(marker)


@pytest.mark.parametrize(
    ("ending", "outcome", "error"),
    [
        ("raise ValueError('of rank 1')", "failed", "of rank 1"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "killed", "SIGSEGV"),
        ("os._exit(3)", "failed", "code 3"),
        ("time.sleep(600)", "timed_out", "within 4 s"),
    ],
)
def test_one_of_two_ranks_ends_the_trial(
    tmp_path: Path, server: ForkServer, ending: str, outcome: str, error: str
) -> None:
    target = script(tmp_path, f"def act():\n    if {RANK} == 1: {ending}\ntrainer(callbacks=At(act)).fit()")
    limit = 4.0 if outcome == "timed_out" else 60.0
    record = run(tmp_path, target, server, ranks=2, time_limit=limit)
    assert record.outcome == outcome, record
    assert error in record.error, record
    assert record.seconds < limit + 5
    assert gone(str(record.path))


def test_two_ranks_complete(tmp_path: Path, server: ForkServer) -> None:
    text = f"print('rank', {RANK}, 'of', os.environ['WORLD_SIZE']); trainer().fit()"
    record = run(tmp_path, script(tmp_path, text), server, ranks=2)
    assert record.is_completed, record
    log = (record.path / "log.txt").read_text()
    assert "rank 0 of 2" in log and "rank 1 of 2" in log


def test_nothing_of_the_program_runs_after_the_fit_that_is_meant(tmp_path: Path, server: ForkServer) -> None:
    written = tmp_path / "written"
    text = f"""
import atexit
atexit.register(lambda: open({str(written)!r}, "w"))
try:
    trainer(callbacks=At(lambda: 1 / 0) if {{fails}} else None).fit()
except:
    open({str(written)!r}, "w")
finally:
    open({str(written)!r}, "w")
"""
    assert run(tmp_path, script(tmp_path, text.format(fails=False)), server).is_completed
    assert "ZeroDivisionError" in run(tmp_path, script(tmp_path, text.format(fails=True)), server).error
    assert not written.exists()


def test_the_call_of_fit_that_is_meant(tmp_path: Path, server: ForkServer) -> None:
    program = script(
        tmp_path, "one = trainer(); one.fit(duration='1ba'); two = trainer()\nwhile True: two.fit(duration='1ba')"
    )
    second = Target("script", program.name, fit=3)
    assert run(tmp_path, second, server).is_completed
    ends = script(tmp_path, "trainer().fit()")
    record = run(tmp_path, Target("script", ends.name, fit=2), server)
    assert record.error == "The program called Trainer.fit 1 times; the trial is about call 2."


def test_a_long_log_is_shortened(tmp_path: Path, server: ForkServer) -> None:
    target = script(
        tmp_path, "for i in range(80):\n    print('x' * 2**20)\n    time.sleep(0.01)\nprint('end'); sys.exit('over')"
    )
    record = run(tmp_path, target, server)
    assert "over" in record.error
    log = record.path / "log.txt"
    assert log.stat().st_size < 64 * 2**20
    assert log.read_text().rstrip().endswith("end")


def test_fresh_processes(tmp_path: Path) -> None:
    """Without a fork server: the hash seed differs, daemons are ended, and so are both ranks when one fails."""
    marker = f"daemon-{os.getpid()}-{time.monotonic_ns()}"
    end = f"if {RANK} == 1: os.kill(os.getpid(), signal.SIGABRT)\ntrainer().fit()"
    target = script(tmp_path, DAEMONS.format(marker=marker, end=end))
    record = run(tmp_path, target, None, ranks=2)
    assert (record.outcome, record.error) == ("killed", "It was ended by SIGABRT."), record
    assert gone(marker)
    assert gone(str(record.path))


def test_fresh_processes_have_the_hashes_that_are_asked_for(tmp_path: Path) -> None:
    target = script(tmp_path, "print('hash', hash('a')); trainer().fit()")
    logs = [(run(tmp_path, target, None, fresh=True, hash_seed=3).path / "log.txt").read_text() for _ in range(2)]
    assert re.findall(r"hash -?\d+", logs[0]) == re.findall(r"hash -?\d+", logs[1]) != []
    with pytest.raises(ValueError, match="hash_seed=3 requires fresh=True"):
        run(tmp_path, target, None, hash_seed=3)


LEADER = """
import subprocess, sys, time, os
subprocess.Popen([sys.executable, "-m", "composer.trials.leader", {folder!r}, "1", "60", str(os.getpid())])
time.sleep(600)
"""


def test_trials_end_when_the_study_is_killed(tmp_path: Path) -> None:
    """The leader notices that its parent has ended; the import of torch by the rank is under way."""
    study = subprocess.Popen([sys.executable, "-c", textwrap.dedent(LEADER.format(folder=str(tmp_path)))])
    end = time.monotonic() + 20
    while not any("trials.worker" in line for line in processes_with(str(tmp_path))):
        assert time.monotonic() < end
        time.sleep(0.05)
    study.kill()
    study.wait()
    assert gone(str(tmp_path))
