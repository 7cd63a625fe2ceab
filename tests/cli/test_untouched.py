"""Replay, blame and fork change no file of the run: not its checkpoints, links, logs, exports or traces."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from composer.cli.main import main

# Two trainers, the second of which is meant; everything that composer can write, some of it in the folder of the run.
PROGRAM = """
import os
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from composer import Trainer
from composer.callbacks import CheckpointSaver, ExportForInferenceCallback, SpikeRecorder
from composer.loggers import CSVLogger, FileLogger, JSONLinesLogger
from composer.models import ComposerClassifier
from composer.profiler import JSONTraceHandler, Profiler, cyclic_schedule

assert os.environ.get("WANDB_MODE") == os.environ.get("EXPECTED_MODE")
name = "{run_name}" if "fork" in sys.argv else "night"
data = TensorDataset(torch.randn(22, 4, generator=torch.Generator().manual_seed(1)), torch.arange(22) % 3)

def made(run_name, lr, seed, **more):
    torch.manual_seed(seed)
    model = ComposerClassifier(torch.nn.Linear(4, 3), num_classes=3)
    return Trainer(
        model=model, train_dataloader=DataLoader(data, batch_size=4, shuffle=True), max_duration="2ep",
        optimizers=torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9), seed=seed, run_name=run_name,
        progress_bar=False, **more,
    )

path = "first/last.pt"
if "fork" not in sys.argv:
    first = made("first", 0.2, 1, save_folder="first", save_interval="3ba")
    first.fit()
    path = first.save_checkpoint("first/last.pt")
    first.close()

trainer = made(
    "night", 0.1, 7, save_folder="out", save_interval="5ba", load_path=path, load_weights_only=True, log_traces=True,
    loggers=[CSVLogger(f"out/{name}.csv"), FileLogger(f"out/{name}.txt"), JSONLinesLogger(f"out/{name}.jsonl")],
    callbacks=[
        CheckpointSaver(f"more/{name}", save_interval="4ba"), SpikeRecorder(filename=f"out/{name}-spikes.jsonl"),
        ExportForInferenceCallback("torchscript", f"out/{name}-model.pt"),
    ],
    profiler=Profiler(
        cyclic_schedule(0, 1, 1, 1), [JSONTraceHandler(f"out/{name}-traces", overwrite=True)],
        torch_prof_memory_filename=None, torch_prof_with_flops=False, torch_prof_profile_memory=False,
    ),
)
trainer.fit()
trainer.save_checkpoint("out/final.pt")
trainer.export_for_inference("torchscript", "out/final-model.pt")
trainer.close()
"""

File = tuple[bytes | str, int]


def files() -> dict[str, File]:
    """Contents and times of all files, targets of links."""
    found: dict[str, File] = {}
    for path in sorted(Path().rglob("*")):
        if path.is_symlink():
            found[str(path)] = str(path.readlink()), path.lstat().st_mtime_ns
        elif path.is_file():
            found[str(path)] = path.read_bytes(), path.stat().st_mtime_ns
    return found


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    Path("train.py").write_text(PROGRAM)
    from composer.trials.target import Target

    Target("script", "train.py").run()
    return tmp_path


def test_no_file_of_a_run_changes(here, monkeypatch) -> None:
    before = files()
    assert {
        "out/final.pt",
        "out/latest-rank0.pt",
        "out/night.csv",
        "out/night-model.pt",
        "first/last.pt",
    } <= before.keys()
    assert any(name.startswith("out/night-traces/") for name in before)
    monkeypatch.setenv("EXPECTED_MODE", "disabled")
    for command in (["replay", "out", "--step", "7"], ["blame", "out", "--from", "3", "--to", "4"]):
        assert main([*command, "--fit", "2", "--", "train.py"]) == 0
        assert files() == before


def test_a_fork_writes_only_to_its_own_files(here) -> None:
    before = files()
    assert main(["fork", "out", "--at", "10", "--name", "new", "--folder", "new", "--", "train.py", "fork"]) == 0
    after = files()
    assert {name: after[name] for name in before} == before
    added = after.keys() - before.keys()
    assert {"new/final.pt", "new/final-model.pt", "out/new.csv", "out/new-model.pt"} <= added
    assert any(name.startswith("more/new/") for name in added)
    assert all("new" in name for name in added)


@pytest.mark.filterwarnings("ignore:The program has changed since the run")
def test_a_fork_opens_no_file_of_the_run_for_writing(here, capsys) -> None:
    """Files of the folder in which both runs work are those of the script."""
    Path("train.py").write_text(
        PROGRAM + "Path('own.txt').write_text('fork')\nPath('out/own.txt').write_text('fork')\n"
    )
    Path("train.py").write_text("from pathlib import Path\n" + Path("train.py").read_text())
    for path in ("own.txt", "out/own.txt"):
        Path(path).write_text("run")
    assert main(["fork", "out", "--at", "10", "--name", "new", "--folder", "new", "--", "train.py", "fork"]) == 1
    assert (
        "'out/own.txt' for writing, a file that exists. A fork changes no files of the run" in capsys.readouterr().err
    )
    assert [Path(path).read_text() for path in ("own.txt", "out/own.txt")] == ["fork", "run"]


@pytest.mark.parametrize("name", ["CSVLogger", "CheckpointSaver", "ExportForInferenceCallback", "Profiler"])
def test_paths_that_a_fork_would_share_are_named(here, capsys, name) -> None:
    before = files()
    text = PROGRAM.replace("{name}", "{{run_name}}")
    old = {
        "CSVLogger": ("out/{{run_name}}.csv", "out/log.csv"),
        "CheckpointSaver": ("more/{{run_name}}", "more"),
        "ExportForInferenceCallback": ("out/{{run_name}}-model.pt", "out/model.pt"),
        "Profiler": ("out/{{run_name}}-traces", "out/traces"),
    }[name]
    Path("train.py").write_text(text.replace(*old))
    with pytest.raises(SystemExit) as ended:
        main(["fork", "out", "--at", "10", "--folder", "new", "train.py", "fork"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"{name} writes to '{old[1]}" in error
    assert "profiler=None" in error if name == "Profiler" else f"-={name}" in error
    before.pop("train.py")
    assert {path: file for path, file in files().items() if path != "train.py"} == before
