"""``composer verify`` as a command: mistakes in its options, and signals, which end all processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from composer.cli.main import main
from composer.cli.usage import CommandParser, split_program
from composer.cli.verify import add_to
from composer.trials.fork_server import can_fork
from composer.trials.termination import Terminated, terminate_cleanly
from tests.design import ROOT
from tests.trials.programs import gone, script

SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


@pytest.mark.slow
@pytest.mark.skipif(not can_fork(), reason="forks processes")
@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_ends_all_and_leaves_no_folder(tmp_path: Path, signum: signal.Signals) -> None:
    begun, temporary = tmp_path / "begun", tmp_path / "temporary"
    temporary.mkdir()
    target = script(tmp_path / "program", f"open({str(begun)!r}, 'w'); os.fork(); time.sleep(600)")
    command = [sys.executable, "-m", "composer.cli", "verify", target.name]
    given = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    before = {each: signal.signal(each, signal.SIG_DFL) for each in SIGNALS}  # nohup ignores SIGHUP
    try:
        process = subprocess.Popen(command, env=given, stderr=subprocess.PIPE, text=True)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    with process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signum)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 128 + signum
    assert error.endswith("composer: interrupted; all runs were ended.\n")
    assert not list(temporary.glob("composer-*"))
    assert gone(str(tmp_path))


def test_signals_are_handled_in_the_block_only() -> None:
    before = [signal.getsignal(signum) for signum in SIGNALS]
    with pytest.raises(Terminated, match="SIGTERM") as caught, terminate_cleanly():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.signum == signal.SIGTERM
    assert [signal.getsignal(signum) for signum in SIGNALS] == before


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminate_cleanly():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nosuch.py"], "There is no script 'nosuch.py'."),
        (["trian.py"], "There is no script 'trian.py'. Did you mean 'train.py'?"),
        (["-m", "trian"], "There is no module 'trian'. Did you mean 'train'?"),
        (["folder"], "'folder' is a folder."),
        ([], "No script was given"),
        (["--checks", "resum,same", "train.py"], "'resum'. Did you mean 'resume'?"),
        (["--steps", "2", "train.py"], "steps must be at least 3"),
        (["--steps", "x", "train.py"], "--steps: invalid int value: 'x'"),
        (["--step", "4", "train.py"], "no option '--step'. Did you mean '--steps'?"),
        (["--parallel", "0", "train.py"], "--parallel must be greater than 0"),
        (["--time-limit", "0", "train.py"], "--time-limit must be greater than 0"),
        (["--fit", "0", "train.py"], "fit must be at least 1"),
    ],
)
def test_usage_errors(words, message, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("1 / 0")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["verify", *words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.endswith(" See composer verify --help.\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "options", "program"),
    [
        ("--steps 4 train.py --steps 5", "--steps 4", "train.py --steps 5"),
        ("--steps=4 -m package.train -x", "--steps=4", "-m package.train -x"),
        ("--json -- train.py -- x", "--json", "train.py -- x"),
        ("train run.yaml", "", "train run.yaml"),
        ("--list", "--list", None),
    ],
)
def test_where_the_program_begins(words, options, program) -> None:
    commands = CommandParser().add_subparsers()
    add_to(commands)
    found = split_program(commands.choices["verify"], words.split(), 0)
    assert found == (options.split(), None if program is None else program.split())
