"""``composer replay`` runs the program of a run up to a step, and shows the step."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from composer.checkpoint.at_step import CheckpointFacts
from composer.cli.main import main
from composer.cli.replay import program_of, words_of
from composer.cli.replay_program import replay_program
from composer.trials.target import Target
from composer.warnings import ComposerWarning
from tests.design import ROOT

PROGRAM = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from composer import Trainer
from composer.models import ComposerClassifier

torch.manual_seed(3)
model = ComposerClassifier(torch.nn.Linear(4, 3), num_classes=3)
data = TensorDataset(torch.randn(22, 4), torch.arange(22) % 3)
trainer = Trainer(
    model=model,
    train_dataloader=DataLoader(data, batch_size=4, shuffle=True),
    optimizers=torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]), momentum=0.9),
    seed=7, save_folder="out", save_interval="5ba", loggers="csv", progress_bar=False, precision="fp32", device="cpu",
)
trainer.fit(duration="2ep")
trainer.fit(duration="1ep")
print("trained to", int(trainer.state.timestamp.batch))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The folder of a program that was run by itself, as a user does."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "train.py").write_text(PROGRAM)
    done = in_folder(folder, str(folder / "train.py"), "0.1")
    assert done.stdout.strip() == "trained to 18"
    return folder


def in_folder(folder: Path, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(folder), "OMP_NUM_THREADS": "1"},
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
    )


def test_in_a_process_of_its_own(run):
    files = sorted(run.rglob("*"))
    done = in_folder(
        run, "-m", "composer", "replay", "out", "--step", "13", "--json", "--pdb", stdin="p step, batch\nc\n"
    )
    found = json.loads(done.stdout)
    assert (found["step"], found["epoch"], found["batch_in_epoch"]) == (13, 2, 1)
    assert found["start"] == "out/ep2-ba12-rank0.pt" and len(found["sample_indices"]) == 4
    assert "(Pdb) (13, [tensor(" in done.stderr.replace("\n", "") and "running" in done.stderr
    assert "trained to" not in done.stderr
    assert [path for path in sorted(run.rglob("*")) if "__pycache__" not in path.parts] == files
    assert logged_losses(run)[13] == pytest.approx(found["losses"]["loss/train/total"], rel=1e-6)


def test_the_prompt_is_in_no_code_of_the_library_and_ends_quietly(run):
    done = in_folder(run, "-m", "composer", "replay", "out", "--step", "13", "--pdb", stdin="p step\nq\n")
    assert "> <before step 13>" in done.stdout and "(Pdb) 13" in done.stdout
    assert "recorder.py" not in done.stdout and "Traceback" not in done.stderr and "Step 13" not in done.stdout


@pytest.mark.parametrize("command", [["replay", "out", "--step", "7"], ["blame", "out", "--step", "7"]])
@pytest.mark.filterwarnings("ignore:The program has changed since the run")
def test_files_of_the_run_are_not_opened_for_writing(here, capsys, monkeypatch, command):
    """By a callback that does not say that it writes, the program itself, or torch.save in C++."""
    writer = """
class Writes(Callback):
    def fit_start(self, state, logger):
        ACTION
"""
    text = PROGRAM.replace("import Trainer", "import Callback, Trainer").replace(
        "torch.manual", f"{writer}\ntorch.manual", 1
    )
    text = text.replace("seed=7,", "seed=7, callbacks=Writes(),")
    (here / "metrics.txt").write_text("step,loss")
    for action in (
        "self.file = open('metrics.txt', 'w')",
        "self.file = open('metrics.txt', 'a')",
        "torch.save(1, 'metrics.txt')",
        "__import__('os').replace(__file__, 'metrics.txt')",
        "__import__('os').remove('metrics.txt')",
    ):
        (here / "writes.py").write_text(text.replace("ACTION", action))
        assert main([*command, "writes.py", "0.1"]) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert "Writes.fit_start (" in error and "writes.py, line " in error
        assert "set writes_output = True in the class Writes" in error
        declared = text.replace("(Callback):", "(Callback):\n    writes_output = True").replace("ACTION", action)
        (here / "writes.py").write_text(declared)
        assert main([*command, "writes.py", "0.1"]) == 0
        capsys.readouterr()
    (here / "writes.py").write_text("open('metrics.txt', 'w')")
    assert main([*command, "writes.py"]) == 1
    assert "writes.py, line 1, opens 'metrics.txt' for writing, a file that exists." in capsys.readouterr().err
    assert (here / "metrics.txt").read_text() == "step,loss"
    tells = "import os\nif 'COMPOSER_TRIAL' not in os.environ:\n    open('metrics.txt', 'w')\n"
    (here / "writes.py").write_text(tells + PROGRAM + "open('metrics.txt', 'w')\n")
    assert main([*command, "writes.py", "0.1"]) == 0
    assert (here / "metrics.txt").read_text() == "step,loss"


@pytest.mark.filterwarnings("ignore:The program has changed since the run")
def test_a_run_that_was_killed_does_not_go_on_after_fit(here, capsys):
    """Its checkpoints do not show that it ended; the step is beyond its end, and what follows fit is not run."""
    (here / "killed").mkdir()
    shutil.copy(here / "out/ep1-ba10-rank0.pt", here / "killed")
    (here / "saves.py").write_text(PROGRAM + "open('after.txt', 'w')\n")
    assert main(["replay", "killed", "--step", "40", "saves.py", "0.1"]) == 1
    assert "Step 40 is not part of the run, which ends at batch 12" in capsys.readouterr().err
    assert not (here / "after.txt").exists()


def logged_losses(run: Path) -> dict[int, float]:
    """The losses in the log of the run, by step."""
    rows = [line.split(",") for line in next(run.rglob("*.csv")).read_text().splitlines()]
    step, column = rows[0].index("step"), rows[0].index("loss/train/total")
    return {int(row[step]): float(row[column]) for row in rows[1:] if row[column]}


@pytest.fixture
def here(run, monkeypatch):
    monkeypatch.chdir(run)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return run


def test_in_this_process(here, capsys):
    assert main(["replay", "out", "--step", "3"]) == 0
    recorded = capsys.readouterr().out
    assert recorded.startswith("Step 3, replayed from seed 7") and "gradient norm" in recorded
    assert main(["replay", str(here / "out"), "--step", "3", "--", "train.py", "0.1"]) == 0
    assert capsys.readouterr().out == recorded
    assert main(["replay", "out", "--step", "3", "--", "train.py", "0.2"]) == 0
    assert capsys.readouterr().out != recorded


def test_several_calls_of_fit(here, capsys):
    """The checkpoint at the end of the first call, and one in the second; a run that another trainer precedes."""
    target = Target("script", "train.py", ("0.1",))
    steps = {step: replay_program(target, "out", step, last_fit=2) for step in (12, 14, 16)}
    starts = [record.start for record in steps.values()]
    assert starts == ["out/ep2-ba12-rank0.pt", "out/ep2-ba12-rank0.pt", "out/ep2-ba15-rank0.pt"]
    logged = logged_losses(here)
    assert [record.loss for record in steps.values()] == pytest.approx([logged[step] for step in steps], rel=1e-6)
    first = PROGRAM.partition("trainer.fit(")[0].replace("lr=float(sys.argv[1])", "lr=0.01")
    (here / "after.py").write_text(f"{first}trainer.fit(duration='2ba')\n{PROGRAM}")
    with pytest.warns(ComposerWarning, match=r"changed since the run: train\.py is now after\.py, with other content"):
        record = replay_program(Target("script", "after.py", ("0.1",), fit=2), "out", 16, last_fit=3)
    assert record.loss == steps[16].loss
    for options in ([], ["--fit", "2"]):  # the checkpoints tell which calls are those of the trainer
        assert main(["replay", "out", "--step", "16", "--json", *options]) == 0
        assert json.loads(capsys.readouterr().out)["losses"] == dict(steps[16].losses)
    assert main(["replay", "out", "--step", "16", "--json", "--fit", "2", "after.py", "0.1"]) == 1
    assert "Step 16 is not part of the run" in capsys.readouterr().err


def test_changed_programs(here, capsys):
    """Other data and other initial weights are errors, a changed source is a warning; a renamed script is the same."""
    (here / "renamed.py").write_text(PROGRAM)
    assert main(["replay", "out", "--step", "6", "--", "renamed.py", "0.1"]) == 0
    unseeded = PROGRAM.replace("torch.manual_seed(3)", "torch.manual_seed(4)")
    (here / "unseeded.py").write_text(unseeded)
    capsys.readouterr()
    assert main(["replay", "out", "--step", "6", "--", "unseeded.py", "0.1"]) == 1
    assert "dataset.tensors.0 (float32 (22, 4)) has other elements" in capsys.readouterr().err
    assert main(["blame", "out", "--step", "3", "--", "unseeded.py", "0.1"]) == 1
    error = capsys.readouterr().err
    assert "training starts from seed 7; different: module.weight, module.bias." in error
    assert "at batch 5" in error
    assert "The program has changed since the run: train.py is now unseeded.py, with other content. Restore" in error
    with pytest.warns(ComposerWarning) as warned:
        assert main(["replay", "out", "--step", "6", "--allow-changes", "--", "unseeded.py", "0.1"]) == 0
    assert len(warned) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["out", "--step", "3", "--fit", "3"], "after 2 calls of Trainer.fit, before call 3"),
        (["out", "--step", "3", "--", "exits.py"], "exited with 4 before step 3"),
    ],
)
def test_errors(here, capsys, arguments, message):
    (here / "exits.py").write_text("raise SystemExit(4)")
    assert main(["replay", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--step", "3"], "no folder or checkpoint 'nowhere'"),
        (["out", "--step", "18"], "ends at batch 18: its last step is 17"),
        (["out/ep2-ba12-rank0.pt", "--step", "3"], "batch 12, which is after step 3. Give its folder, 'out'"),
        (["out/ep2-ba12-rank0.pt", "--step", "7"], "an earlier checkpoint of the run, such as 'out/ep0-ba5-rank0.pt'"),
        (["out", "--step", "3", "nothing.txt"], "There is no script 'nothing.txt'"),
        (["out", "--step", "3", "trian.py"], "Did you mean 'train.py'?"),
        (["out", "--step", "3", "-m", "trian"], "There is no module 'trian'. Did you mean 'train'?"),
        (["out", "--step", "3", "-m"], "No module was given"),
        (["out", "--step", "-1"], "--step must not be negative"),
        (["out", "--step", "3", "--fit", "0"], "fit must be at least 1"),
        (["out", "--stpe", "3"], "required: --step"),
        (["out", "--step", "3", "--jsn"], "no option '--jsn'. Did you mean '--json'?"),
        (["--step", "3"], "required: RUN"),
    ],
)
def test_usage_errors(here, capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(["replay", *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.endswith(" See composer replay --help.\n")
    assert error.count("\n") == 1


def test_ways_to_name_the_program(here, capsys):
    for words in ("", "-- train.py 0.1", "train.py 0.1", "-m train 0.1", "-- -m train 0.1"):
        assert main(["replay", "out", "--step", "3", *words.split()]) == 0
        sys.modules.pop("train", None)
    first, *others = ("Step" + text for text in capsys.readouterr().out.split("Step")[1:])
    assert others == [first] * 4


@pytest.mark.parametrize("words", [["verify", "--list"], ["replay", "out", "--step", "3"]])
def test_the_reader_of_the_output_may_end(run, words):
    """As head does: there is no message, whether the command or the program prints to the closed pipe."""
    (run / "prints.py").write_text("print('a' * 100_000)\n" + PROGRAM)
    program = ["prints.py", "0.1"] if words[0] == "replay" else []
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(run), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "composer", *words, *program],
        cwd=run,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        lines = process.stderr.read().decode().splitlines()
        assert all(line.startswith("composer: running") for line in lines), lines
        assert process.wait() == 141


def test_a_program_that_fails(here, capsys):
    (here / "fails.py").write_text("1 / 0")
    with pytest.raises(SystemExit):
        main(["replay", "out", "--step", "3", "--", "fails.py"])
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_programs_are_for_commands_that_run_them(capsys):
    with pytest.raises(SystemExit):
        main(["env", "--", "train.py"])
    assert "takes no program" in capsys.readouterr().err


def test_recorded_programs_that_are_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    good = {"kind": "script", "name": "train.py", "arguments": ["--lr", "1"], "folder": str(tmp_path)}
    assert words_of(program_of(CheckpointFacts("a.pt", 1, program=good))) == ["train.py", "--lr", "1"]
    for changed, message in (
        ({"folder": "/elsewhere"}, "started in '/elsewhere'"),
        ({"arguments": ["--key", "***"]}, "leaves out the secrets"),
        ({"kind": "pickle"}, "does not say which script"),
        ({"arguments": [3]}, "does not say which script"),
        ({"name": None}, "does not say which script"),
        ({"name": "trian.py"}, "no script 'trian.py'. Did you mean 'train.py'"),
        ({"name": "old.py"}, "If the script has another name now, add it and its arguments"),
    ):
        with pytest.raises((FileNotFoundError, ValueError), match=message):
            program_of(CheckpointFacts("a.pt", 1, program={**good, **changed}))
    with pytest.raises(ValueError, match="a notebook"):
        program_of(CheckpointFacts("a.pt", 1))
