"""Studies run trials, keep their records, and go on with what is missing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from composer.trials import ForkServer, Record, Study, Target, Trial
from composer.trials.fork_server import can_fork
from tests.design import ROOT
from tests.trials.programs import PROBE, gone, script

pytestmark = pytest.mark.skipif(not can_fork(), reason="forks processes")


class Names:
    """A display that notes what it is told."""

    def __init__(self) -> None:
        self.run: list[str] = []
        self.known: list[str] = []

    def started(self, trial: Trial) -> None:
        self.run.append(trial.name)

    def ended(self, trial: Trial, record: Record, *, known: bool) -> None:
        assert trial.name == record.name
        if known:
            self.known.append(trial.name)


def trial(name: str, target: Target, *after: str, **arguments) -> Trial:
    return Trial(name, target, PROBE, after=after, **{"time_limit": 60.0, **arguments})


def study(folder: Path, trials: list[Trial], server: ForkServer | None, **arguments) -> tuple[dict[str, Record], Names]:
    names = Names()
    return Study(folder, display=names, server=server, **arguments).run(trials), names


def test_a_second_start_runs_what_is_missing(
    tmp_path: Path, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = script(tmp_path / "program", "from lr import LR\nif LR: trainer().fit()")
    module = tmp_path / "program" / "lr.py"
    module.write_text("LR = 0.1\n")
    monkeypatch.chdir(tmp_path)
    trials = [trial("a", target), trial("b", target, "a"), trial("c", target)]
    done, names = study(Path("study"), trials[:2], server)
    assert [record.outcome for record in done.values()] == ["completed"] * 2
    assert names.run == ["a", "b"]
    monkeypatch.chdir(tmp_path / "program")  # records do not depend on the current folder, nor on where the study is
    shutil.move(tmp_path / "study", tmp_path / "moved")
    again, names = study(Path("../moved"), trials, server)
    assert (names.known, names.run) == (["a", "b"], ["c"])
    assert again["a"].path.is_dir()

    shutil.rmtree(tmp_path / "moved" / "c")  # its files are needed
    _, names = study(tmp_path / "moved", trials, server)
    assert names.run == ["c"]

    # An edited module of the program; of another length, since cached bytecode is told by seconds and length.
    module.write_text("LR = 0\n")
    done, names = study(tmp_path / "moved", trials[:2], server)
    assert names.run == ["a"]
    assert done["b"].error == "a did not complete: The program ended without a call of Trainer.fit."
    module.write_text("LR = 0.1\n")  # the folder of `a` is now that of the other program, and `b` reads it
    _, names = study(tmp_path / "moved", trials[:2], server)
    assert names.run == ["a", "b"]

    script(tmp_path / "program", "trainer().fit()  # edited")
    _, names = study(tmp_path / "moved", trials, server)
    assert names.run == ["a", "b", "c"]


def test_trials_that_wait_run_after_those_they_need(tmp_path: Path, server: ForkServer) -> None:
    first = script(tmp_path, "time.sleep(0.5); trainer().fit()", "first.py")
    second = script(tmp_path, "trainer().fit()", "second.py")
    done, names = study(
        tmp_path / "s", [trial("a", first), trial("b", second, "a"), trial("c", second)], server, parallel=3
    )
    assert all(record.is_completed for record in done.values())
    assert names.run == ["a", "c", "b"]


def test_failures_are_run_again_and_out_of_memory_is_not(tmp_path: Path, server: ForkServer) -> None:
    full = script(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", "full.py")
    fails = script(tmp_path, "1 / 0", "fails.py")
    trials = [trial("full", full), trial("fails", fails)]
    study(tmp_path / "s", trials, server)
    _, names = study(tmp_path / "s", trials, server)
    assert (names.known, names.run) == (["full"], ["fails"])


def test_two_studies_in_one_folder(tmp_path: Path, server: ForkServer) -> None:
    target = script(tmp_path, "time.sleep(1.5); trainer().fit()")
    first = threading.Thread(target=study, args=(tmp_path / "s", [trial("a", target)], server))
    first.start()
    while not (tmp_path / "s" / "trials.lock").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    with pytest.raises(RuntimeError, match=r"Another process runs trials in .*: wait until it has ended, or choose"):
        study(tmp_path / "s", [trial("a", target)], None)
    first.join()
    assert study(tmp_path / "s", [trial("a", target)], None)[1].known == ["a"]


def test_folders_of_others_are_not_removed(tmp_path: Path, server: ForkServer) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "images.bin").write_text("precious")
    with pytest.raises(ValueError, match="is not the folder of a trial: choose another folder"):
        study(tmp_path, [trial("data", script(tmp_path, ""))], server)
    assert (tmp_path / "data" / "images.bin").exists()


def test_trials_that_cannot_be_ordered(tmp_path: Path) -> None:
    target = Target("script", "train.py")
    with pytest.raises(ValueError, match="Two of the 2 trials have the name 'a'"):
        Study(tmp_path).run([trial("a", target), trial("a", target)])
    with pytest.raises(ValueError, match=r"'a' waits for \['b'\], which must come before it"):
        Study(tmp_path).run([trial("a", target, "b"), trial("b", target)])
    with pytest.raises(ValueError, match="parallel must be at least 1"):
        Study(tmp_path, parallel=0)


STUDY = """
import sys
from pathlib import Path
from composer.trials import ForkServer, Study
from tests.trials.test_study import trial
from composer.trials import Target
with ForkServer() as server:
    done = Study(Path({folder!r}), server=server).run(
        [trial("quick", Target("script", {quick!r})), trial("hangs", Target("script", {hangs!r}))])
"""


def test_an_interrupt_ends_all_and_a_second_start_goes_on(tmp_path: Path, server: ForkServer) -> None:
    quick = script(tmp_path, "trainer().fit()", "quick.py")
    hangs = script(tmp_path, f"open({str(tmp_path / 'begun')!r}, 'w'); os.fork(); time.sleep(600)", "hangs.py")
    trials = [trial("quick", quick), trial("hangs", hangs)]

    def interrupt() -> None:
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "s", trials, server)
    assert gone(str(tmp_path / "hangs.py"))
    records = [json.loads(line) for line in (tmp_path / "s" / "trials.jsonl").read_text().splitlines()]
    assert [record["name"] for record in records] == ["quick"]
    _, names = study(tmp_path / "s", [trials[0], trial("hangs", hangs, time_limit=0.5)], server)
    assert (names.known, names.run) == (["quick"], ["hangs"])


def test_a_study_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    quick = script(tmp_path, "trainer().fit()", "quick.py")
    pids = tmp_path / "pids"
    hangs = script(
        tmp_path, f"os.fork(); print(os.getpid(), file=open({str(pids)!r}, 'a')); time.sleep(600)", "hangs.py"
    )
    text = STUDY.format(folder=str(tmp_path / "s"), quick=quick.name, hangs=hangs.name)
    process = subprocess.Popen([sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": str(ROOT)})
    while not pids.exists() or pids.read_text().count("\n") < 2:
        time.sleep(0.05)
        assert process.poll() is None
    process.kill()
    process.wait()
    end = time.monotonic() + 5
    while left := [pid for pid in pids.read_text().split() if psutil.pid_exists(int(pid))]:
        assert time.monotonic() < end, left
        time.sleep(0.05)


def test_a_server_that_starts_is_ended_at_once() -> None:
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), ForkServer():
        raise KeyboardInterrupt
    assert time.monotonic() - start < 2


def test_a_server_that_has_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with ForkServer() as server, pytest.raises(RuntimeError, match="fork server of the trials has ended; its error"):
        study(tmp_path / "s", [trial("a", script(tmp_path, ""))], server)
    assert server.exit_code(1) == -signal.SIGKILL
