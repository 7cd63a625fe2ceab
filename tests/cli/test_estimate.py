"""``composer estimate``: exit codes, and what is printed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from composer.cli.main import main
from composer.estimation import Device
from composer.estimation.estimate import as_device
from composer.trials import ForkServer
from composer.trials.fork_server import can_fork

DEVICES = {"tiny": Device("tiny", 1000), "large": Device("large", 2**30)}
PROGRAM = """
import sys, torch
from composer import Trainer
from composer.models import ComposerClassifier
from torch.utils.data import DataLoader, TensorDataset
model = ComposerClassifier(torch.nn.Linear(int(sys.argv[1]), 2), num_classes=2)
data = DataLoader(TensorDataset(torch.randn(8, int(sys.argv[1])), torch.randint(2, (8,))), batch_size=4)
Trainer(model=model, train_dataloader=data, max_duration="1ep", save_folder="never").fit()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the program, and a server for all trials."""
    if not can_fork():
        pytest.skip("processes cannot be forked here; each trial would take seconds")
    path = tmp_path_factory.mktemp("estimate")
    (path / "train.py").write_text(PROGRAM)
    with ForkServer(["composer.estimation.recorder"]) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr("composer.trials.workspace.ForkServer", lambda *_: contextlib.nullcontext(server))
        for module in ("estimate", "grid"):
            patch.setattr(f"composer.estimation.{module}.as_device", lambda name: DEVICES.get(name) or as_device(name))
        patch.chdir(path)
        yield path


def exit_code(*words: str) -> int:
    try:
        return main(["estimate", *words])
    except SystemExit as left:
        assert isinstance(left.code, int)
        return left.code


def test_fits(folder: Path, capsys) -> None:
    assert exit_code("--device", "large", "train.py", "64") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("fits: the peak is ")
    assert printed.err.splitlines()[0].startswith("program ")
    assert {path.name for path in folder.iterdir()} == {"train.py"}


def test_does_not_fit(folder: Path, capsys) -> None:
    records = str(folder.parent / "records")
    assert exit_code("--device", "tiny", "--json", "--folder", records, "--set", "seed=1", "train.py", "64") == 1
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert not told["fits"] and told["margin"] < 0 and told["changes"] == ["seed=1"]
    # The same command goes on with the records.
    assert exit_code("--device", "tiny", "--json", "--folder", records, "--set", "seed=1", "train.py", "64") == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["peak"] == told["peak"]
    assert all("(measured before)" in line or "failed" in line for line in printed.err.splitlines())


def test_grid(folder: Path, capsys) -> None:
    assert exit_code("--grid", "--device", "tiny,large", "--processes", "1", "train.py", "64") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[2:4]] == ["-", "4"]
    assert exit_code("--grid", "--device", "tiny", "--processes", "1", "--json", "train.py", "64") == 1
    assert json.loads(capsys.readouterr().out)["cells"][0]["largest_microbatch"] is None


def test_program_that_fails(folder: Path, capsys) -> None:
    assert exit_code("--device", "large", "train.py") == 1
    assert "composer: The program does not train: IndexError: list index out of range" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "h1000-80gb"], "Did you mean 'H100-80GB'?"),
        (["--strategy", "dpp", "--processes", "2"], "Did you mean 'ddp'?"),
        (["--processes", "two"], "--processes must be an integer"),
        (["--set", "precison=fp32"], "Did you mean 'precision'?"),
        (["--grid", "--device", "1GiB,H1000-80GB"], "Did you mean 'H100-80GB'?"),
        (["--device", "1GiB,2GiB"], "--device takes several values with --grid only"),
        (["--strategy", "ddp,fsdp", "--processes", "2"], "--strategy takes several values with --grid only"),
        (["--microbatch", "x"], "invalid int value"),
        (["--devise", "1GiB"], "no option '--devise'. Did you mean '--device'?"),
    ],
)
def test_invalid_options(words, message, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    assert exit_code(*words, "train.py") == 2
    assert message in capsys.readouterr().err


def test_without_a_program(capsys) -> None:
    assert exit_code() == 2
    assert "No script was given" in capsys.readouterr().err
