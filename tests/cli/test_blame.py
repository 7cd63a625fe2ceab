"""``composer blame``: from the folder of a run to the rows of its steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from composer.cli.main import main
from composer.trials.target import Target

BAD = 17
PROGRAM = f"""
import torch
from torch.utils.data import DataLoader, TensorDataset
from composer import Trainer
from composer.models import ComposerClassifier

torch.manual_seed(3)
model = ComposerClassifier(torch.nn.Linear(4, 3), num_classes=3)
x = torch.randn(24, 4)
x[{BAD}] = 200.0
trainer = Trainer(
    model=model,
    train_dataloader=DataLoader(TensorDataset(x, torch.arange(24) % 3), batch_size=4, shuffle=True),
    optimizers=torch.optim.SGD(model.parameters(), lr=1e-3),
    seed=7, save_folder="out", save_interval="5ba", progress_bar=False, precision="fp32", device="cpu", run_name="one",
)
trainer.fit(duration="1ep")
trainer.fit(duration="1ep")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "train.py").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", list(sys.argv))
        patch.setattr(sys, "path", list(sys.path))
        Target("script", "train.py").run()
    return folder


@pytest.fixture(autouse=True)
def _in_folder(folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_names_the_row_of_a_range_that_spans_two_fits(folder, capsys) -> None:
    before = sorted(folder.rglob("*"))
    assert main(["blame", "out", "--from", "3", "--to", "10", "--top", "1", "--", "train.py"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("Steps 3 to 10: losses from ")
    assert printed[0].endswith("32 rows.")
    assert f"dataset index {BAD}: " in printed[1]
    assert len([line for line in printed if line[:1].isdigit()]) == 1
    assert sorted(folder.rglob("*")) == before


def test_json(capsys) -> None:
    assert main(["blame", "out", "--step", "2", "--json", "--", "train.py"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [step["step"] for step in found["steps"]] == [2]
    assert sorted(row["row"] for row in found["rows"]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give either --step N, or --from N and --to N."),
        (["--step", "3", "--to", "4"], "Give either --step N"),
        (["--from", "3"], "Give either --step N"),
        (["--from", "3", "--to", "2"], "--to must not be before --from 3; got 2"),
        (["--from", "-3", "--to", "2"], "--from must not be negative"),
        (["--step", "3", "--top", "0"], "--top must be at least 1"),
        (["--step", "3", "trian.py"], "There is no script 'trian.py'. Did you mean 'train.py'?"),
    ],
)
def test_usage_errors(arguments, message, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["blame", "out", *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.endswith(" See composer blame --help.\n")
    assert error.count("\n") == 1


def test_a_step_after_the_end(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["blame", "out", "--step", "300", "train.py"])
    assert ended.value.code == 2
    assert "ends at batch 12" in capsys.readouterr().err


@pytest.mark.parametrize("step", [8, 11])
def test_the_row_that_broke_the_weights_is_blamed_for_all_that_follows(tmp_path, monkeypatch, capsys, step) -> None:
    """Checkpoints between have broken weights."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM.replace("= 200.0", "= float('nan')").replace('"5ba"', '"3ba"'))
    Target("script", "train.py").run()
    capsys.readouterr()
    assert main(["blame", "out", "--step", str(step), "--json", "train.py"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["rows"][0]["index"] == BAD
    first = found["rows"][0]["step"]
    assert [one["step"] for one in found["steps"]] == [first] and first < 6
    assert (f"looking at step {first}" in err) == (step != first)
    assert main(["blame", "out", "--from", "0", "--to", "11", "train.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Before step {first + 1}, parameters were NaN or infinite already."
    assert f"dataset index {BAD}: " in next(line for line in lines if line.startswith("1. "))
