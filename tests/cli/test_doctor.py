"""``composer doctor``: exit codes, what is printed, and what is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from composer.cli.main import main
from composer.diagnosis.remedies import REMEDIES
from composer.trials import ForkServer
from composer.trials.fork_server import can_fork
from tests import leaked_processes
from tests.design import ROOT
from tests.trials.programs import gone, script

PROGRAM = """
import argparse, os, time
import torch
from composer import Callback, Trainer
from composer.loggers import CSVLogger
from composer.models import ComposerClassifier
from torch.utils.data import DataLoader, TensorDataset

class Slow(Callback):
    def batch_end(self, state, logger):
        time.sleep(given.sleep)

parser = argparse.ArgumentParser()
parser.add_argument("--sleep", type=float, default=0.0)
given = parser.parse_args()
print("printed by the program")
rows = TensorDataset(torch.randn(512, 64), torch.randint(2, (512,)))
net = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 2))
model = ComposerClassifier(net, num_classes=2)
trainer = Trainer(
    model=model, train_dataloader=DataLoader(rows, 256), max_duration="400ep", callbacks=[Slow()], run_name="mine",
    save_folder="saved", save_interval="400ep", progress_bar=False, loggers=[CSVLogger("mine.csv")],
    optimizers=torch.optim.SGD(model.parameters(), 0.1, fused=True))
trainer.fit()
open("after", "w")
"""
YAML = """
model:
  class_path: tests.common.Regression
train_dataloader:
  class_path: tests.trials.test_target.Data
max_duration: 1ba
"""
NAMES = {"train.py", "crashes.py", "ends.py", "run.yaml"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Any:
    """A folder with programs, and a server for all trials."""
    if not can_fork():
        pytest.skip("processes cannot be forked here; each trial would take seconds")
    path = tmp_path_factory.mktemp("doctor")
    (path / "train.py").write_text(PROGRAM)
    (path / "crashes.py").write_text("raise KeyError('no data')")
    (path / "run.yaml").write_text(YAML)
    (path / "ends.py").write_text("print('nothing to train')")
    with (
        ForkServer(["composer.diagnosis.recorder", "composer.diagnosis.block_recorder"]) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        leaked_processes.kept.add(server.pid)
        patch.setattr("composer.trials.workspace.ForkServer", lambda *_: contextlib.nullcontext(server))
        patch.chdir(path)
        yield path


def exit_code(*words: str) -> int:
    """The exit code of the command."""
    try:
        return main(["doctor", "--steps", "5", "--remedies", "none", *words])
    except SystemExit as left:
        assert isinstance(left.code, int)
        return left.code


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != "__pycache__"}


def test_a_healthy_program(folder: Path, capsys: Any) -> None:
    assert exit_code("--steps", "30", "train.py") == 0  # of five, other programs may interrupt each
    printed = capsys.readouterr()
    assert printed.out.startswith("No bottleneck: forward, loss and backward take ")
    assert printed.err.startswith("composer doctor: measured ")
    assert "printed by the program" not in printed.out + printed.err
    assert left_in(folder) == NAMES  # no checkpoints, metrics or files of what follows fit


def test_what_is_wrong_as_json(folder: Path, capsys: Any) -> None:
    assert exit_code("--json", "train.py", "--sleep", "0.1") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"]["cause"], report["verdict"]["where"]) == ("callback", "Slow")
    assert sum(report["shares"].values()) == pytest.approx(1)
    assert report["remedies"] == []
    assert left_in(folder) == NAMES


def test_changes_are_measured(folder: Path, capsys: Any) -> None:
    exit_code("--set", "callbacks-=Slow", "train.py", "--sleep", "0.1")
    printed = capsys.readouterr().out
    assert "A step takes" in printed
    assert "Slow" not in printed


def test_a_module(folder: Path, capsys: Any) -> None:
    assert exit_code("-m", "train", "--sleep", "0.1") == 1
    assert "Bound by the callback Slow" in capsys.readouterr().out


def test_a_configuration(folder: Path, capsys: Any) -> None:
    pytest.importorskip("jsonargparse")
    assert exit_code("--json", "train", "run.yaml") in (0, 1)
    report = json.loads(capsys.readouterr().out)
    assert report["facts"]["data"]["loader"] == "Data"
    assert sum(report["shares"].values()) == pytest.approx(1)


def test_two_ranks(folder: Path, capsys: Any) -> None:
    assert exit_code("--ranks", "2", "--json", "train.py", "--sleep", "0.1") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"]["cause"], report["facts"]["ranks"]) == ("callback", 2)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]


@pytest.mark.parametrize(
    ("program", "message"),
    [("crashes.py", "KeyError: 'no data'"), ("ends.py", "ended without a call of Trainer.fit")],
)
def test_programs_that_do_not_train(program: str, message: str, folder: Path, capsys: Any) -> None:
    assert exit_code(program) == 1
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


def test_the_records_are_kept_in_a_folder(folder: Path, tmp_path: Path) -> None:
    assert exit_code("--folder", str(tmp_path / "kept"), "train.py") in (0, 1)
    assert (tmp_path / "kept" / "measure").is_dir()
    assert left_in(folder) == NAMES


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nosuch.py"], "There is no script 'nosuch.py'."),
        (["trian.py"], "There is no script 'trian.py'. Did you mean 'train.py'?"),
        ([], "No script was given"),
        (["--remedies", "worker,fused", "train.py"], "'worker'. Did you mean 'workers'?"),
        (["--steps", "2", "train.py"], "steps must be at least 5"),
        (["--ranks", "0", "train.py"], "ranks must be at least 1"),
        (["--ranks", "x", "train.py"], "--ranks: invalid int value: 'x'"),
        (["--time-limit", "0", "train.py"], "--time-limit must be greater than 0"),
        (["--set", "callbacks", "train.py"], "An assignment has the form NAME=VALUE"),
        (["--set", "optimizer.lr=1", "train.py"], "'optimizer'. Did you mean 'optimizers'?"),
        (["--remedy", "fused", "train.py"], "no option '--remedy'. Did you mean '--remedies'?"),
    ],
)
def test_usage_errors(words: list[str], message: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("1 / 0")
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_list_names_all_remedies(capsys: Any) -> None:
    assert main(["doctor", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(REMEDIES)
    assert all(len(line.split()) > 2 for line in lines)


@pytest.mark.skipif(not can_fork(), reason="forks processes")
def test_an_interruption_ends_all_processes(tmp_path: Path) -> None:
    begun, temporary = tmp_path / "begun", tmp_path / "temporary"
    temporary.mkdir()
    target = script(tmp_path / "program", f"open({str(begun)!r}, 'w'); os.fork(); time.sleep(600)")
    command = [sys.executable, "-m", "composer.cli", "doctor", target.name]
    given = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    with subprocess.Popen(command, env=given, stderr=subprocess.PIPE, text=True) as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert error.endswith("composer: interrupted; all runs were ended.\n")
    assert not list(temporary.glob("composer-trials-*"))
    assert gone(str(tmp_path))


_WORKERS = """
class Begun(TensorDataset):
    def __getitem__(self, index):
        time.sleep(WAIT)
        open({begun!r}, "w")
        return super().__getitem__(index)

loader = lambda: DataLoader(Begun(torch.randn(64, 4), torch.randint(2, (64,))), 4, num_workers=2)
trainer(train_dataloader=loader()).fit()
"""


@pytest.mark.skipif(not can_fork(), reason="forks processes")
# Both run programs by the same probe; each combination takes 20 seconds.
@pytest.mark.parametrize(
    ("command", "signum"),
    [
        (["doctor", "--remedies", "none"], 0),
        (["doctor", "--remedies", "none"], signal.SIGINT),
        (["estimate", "--device", "16GB"], signal.SIGTERM),
    ],
)
def test_data_workers_leave_nothing_in_the_temporary_folder(tmp_path: Path, command: list[str], signum: int) -> None:
    """Each makes a folder for its sockets, and is killed."""
    begun = tmp_path / "begun"
    temporary = Path(tempfile.mkdtemp())  # with a short path, as sockets need
    text = _WORKERS.format(begun=str(begun)).replace("WAIT", "0.02" if signum else "0")
    target = script(tmp_path / "program", text)
    given = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-m", "composer.cli", *command, target.name], env=given) as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.05)
        if signum:
            time.sleep(0.3)  # a batch has come
            process.send_signal(signum)
        # A fast one may be at its end, where the signal has its default action.
        assert process.wait(240) in ({128 + signum, -signum} if signum else {0, 1})
    # A cache of the compiler of PyTorch, which stays after any program.
    assert [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")] == []
    shutil.rmtree(temporary)
