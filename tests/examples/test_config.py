"""The example with a file of hyperparameters runs as users run it, and its sweep makes the commands that it should."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from composer.hparams.config_tree import parse_value, read

CONFIG = Path(__file__).parents[2] / "examples" / "config"


def run(*command: str, cwd: Path, python: str = sys.executable) -> str:
    environment = {**os.environ, "PYTHONPATH": str(CONFIG.parents[1]), "OMP_NUM_THREADS": "1", "PYTHON": python}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


@pytest.mark.slow
def test_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mlxtend")
    from tests.examples.here import Here

    here = Here(tmp_path, monkeypatch, capsys)
    shorter = ["--train_dataloader.limit", "400", "--max_duration", "1ep", "--model.width", "4"]
    logger = "CSVLogger: {filename: metrics.csv}"
    given = [str(CONFIG / "digits.yaml"), *shorter, "--save_folder", "saved", "--loggers", logger]
    printed = here("config/train", *given)
    assert re.fullmatch(r"digits: accuracy 0\.\d{4}\n", printed)
    saved = read(tmp_path / "saved" / "config.yaml")
    assert saved["model"] == {"class_path": "convnet", "init_args": {"width": 4, "num_classes": 10}}
    assert "metrics/eval/MulticlassAccuracy" in (tmp_path / "metrics.csv").read_text()


def test_sweep(tmp_path: Path) -> None:
    """Each run has a name and a folder of its own, and the options given to the sweep."""
    noting = tmp_path / "noting"
    noting.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\necho\n')
    noting.chmod(0o755)
    printed = run("sh", str(CONFIG / "sweep.sh"), "out", "--seed", "3", cwd=tmp_path, python=str(noting))
    runs = [text.splitlines() for text in printed.rstrip("\n").split("\n\n")]
    assert len(runs) == 3
    for script, file, *options in runs:
        assert Path(script).samefile(CONFIG / "train.py")
        assert Path(file).samefile(CONFIG / "digits.yaml")
        given = dict(zip(options[::2], options[1::2], strict=True))
        alpha, lr = given["--algorithms.MixUp.alpha"], given["--optimizers.lr"]
        name = f"alpha{alpha}-lr{lr}"
        assert (given["--run_name"], given["--save_folder"], given["--seed"]) == (name, f"out/{name}", "3")
        assert parse_value(given["--loggers"]) == {"CSVLogger": {"filename": f"out/{name}/metrics.csv"}}
    assert len({tuple(options) for _, _, *options in runs}) == 3
