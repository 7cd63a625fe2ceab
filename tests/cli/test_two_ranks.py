"""Replay, blame and fork of a run of two ranks start as many ranks themselves (gloo)."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path

import pytest

from composer.checkpoint.at_step import history_of
from composer.cli.main import main
from composer.trials.target import Target
from tests.cli.test_replay import in_folder, logged_losses
from tests.ranks import Ranks

BAD = 17
PROGRAM = f"""
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from composer import Trainer
from composer.models import ComposerClassifier

torch.manual_seed(3)
model = ComposerClassifier(torch.nn.Linear(4, 3), num_classes=3)
x = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
y = torch.arange(48) % 3
x[{BAD}] *= -200.0
sharding = {{"parallelism_config": {{"fsdp": {{}}}}}} if "fsdp" in sys.argv else {{}}
trainer = Trainer(
    model=model, train_dataloader=DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True), max_duration="2ep",
    optimizers=torch.optim.SGD(model.parameters(), lr=1e-5), seed=7, save_folder="out", run_name="night",
    save_interval="5ba", loggers="csv", progress_bar=False, precision="fp32", device="cpu", **sharding,
)
trainer.fit()
trainer.close()
"""


def train(folder: str, *arguments: str) -> None:
    os.chdir(folder)
    Target("script", "train.py", arguments).run()


@pytest.fixture
def run(tmp_path, two_ranks: Ranks) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    two_ranks.run(train, str(tmp_path))
    return tmp_path


def test_the_commands_start_the_ranks_of_the_run(run) -> None:
    losses = logged_losses(run)
    done = in_folder(run, "-m", "composer", "replay", "out", "--step", "7", "--json", "train.py")
    found = json.loads(done.stdout)
    assert [one["rank"] for one in found["ranks"]] == [0, 1]
    assert found["losses"]["loss/train/total"] == pytest.approx(losses[7], rel=1e-6)
    assert len({index for one in found["ranks"] for index in one["sample_indices"]}) == 8
    in_folder(run, "-m", "composer", "fork", "out", "--at", "7", "train.py")
    forked = logged_losses(run / "night-fork-7")
    assert forked == {step: loss for step, loss in losses.items() if step >= 7}
    facts = history_of(str(run / "out-fork-7")).before
    assert facts is not None
    assert (facts.batch, facts.world_size) == (12, 2)


def blamed(folder: str, *arguments: str) -> str:
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["blame", "out", "--from", "6", "--to", "11", "--top", "1", "--json", "train.py", *arguments]) == 0
    return printed.getvalue()


def test_blame_names_the_row_of_either_rank(run, two_ranks: Ranks) -> None:
    printed, nothing = two_ranks.run(blamed, str(run))
    (row,) = json.loads(printed)["rows"]
    assert nothing == ""
    assert row["index"] == BAD
    assert row["gradient_norm"] > 10


def test_blame_of_sharded_parameters_says_how_to_have_gradient_norms(tmp_path, two_ranks: Ranks) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    two_ranks.run(train, str(tmp_path), "fsdp")
    found = json.loads(two_ranks.run(blamed, str(tmp_path), "fsdp")[0])
    assert (found["rows"][0]["index"], found["rows"][0]["gradient_norm"]) == (BAD, None)
    assert "with a script that does not shard (DDP)" in found["steps"][0]["notes"][0]
    (row,) = json.loads(two_ranks.run(blamed, str(tmp_path))[0])["rows"]  # a script without fsdp
    assert row["index"] == BAD
    assert row["gradient_norm"] > 10
