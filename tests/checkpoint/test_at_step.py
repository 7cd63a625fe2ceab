"""The newest checkpoint of a run at or before a step, whatever its name and form."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
import torch

from composer import Callback, Trainer
from composer.checkpoint import save_checkpoint
from composer.checkpoint.at_step import facts_of, history_of
from composer.core.state import State
from composer.core.timestamp import Timestamp
from tests.common import At, Regression, trainer_of


def save(path: str, batch: int, run_name: str = "night", *, in_step: bool = False, **arguments) -> str:
    state = State(model=Regression(), rank_zero_seed=7, optimizers=[], run_name=run_name)
    state.timestamp, state.train_phase.in_step = Timestamp(batch=batch), in_step
    saved = save_checkpoint(state, path, **arguments)
    assert saved is not None
    return saved


def test_names_with_and_without_the_batch(tmp_path):
    for folder, template in (("named", "ep0-ba{}-rank0.pt"), ("deep/below", "batch_{}.pt"), ("unnamed", "at{}")):
        for batch in (3, 6, 10):
            save(str(tmp_path / folder / template.format(batch)), batch)
        run = str(tmp_path / folder.partition("/")[0])
        for step, expected in ((3, 3), (5, 3), (6, 6), (9, 6), (400, 10), (None, 10)):
            found = history_of(run, step)
            assert found.before is not None and found.before.batch == expected
            assert found.after is None
        found = history_of(run, 2)
        assert found.before is None and found.after is not None and found.after.seed == 7


def test_the_content_decides_not_the_name(tmp_path):
    save(str(tmp_path / "ba4.pt"), 40)
    save(str(tmp_path / "ba3.pt"), 2)
    found = history_of(str(tmp_path), 5)
    assert found.before is not None and found.before.path.endswith("ba3.pt") and found.before.batch == 2


def test_what_is_not_a_checkpoint_to_continue_from(tmp_path):
    save(str(tmp_path / "ba1.pt"), 1)
    save(str(tmp_path / "ba2.pt"), 2, weights_only=True)
    save(str(tmp_path / "ba3.pt"), 3, ignore_keys=["rng"])
    save(str(tmp_path / "exception-ba4.pt"), 4)
    (tmp_path / "ba5.pt").write_bytes(b"PK damaged")
    (tmp_path / ".ba6.pt.0123abcd.tmp").write_bytes((tmp_path / "ba1.pt").read_bytes())
    (tmp_path / "latest.pt").symlink_to("ba1.pt")
    (tmp_path / "notes.txt").write_text("PK")
    found = history_of(str(tmp_path), 9)
    assert found.before is not None and found.before.batch == 1
    names = {path.rpartition("/")[2]: missing for path, missing in found.incomplete.items()}
    assert names.keys() == {"ba2.pt", "ba3.pt"}
    assert names["ba3.pt"] == ("rng",) and "optimizers" in names["ba2.pt"]
    assert [path.rpartition("/")[2] for path in found.unreadable] == ["ba5.pt"]


def test_a_checkpoint_within_a_step_is_skipped(tmp_path):
    save(str(tmp_path / "ba5.pt"), 5, in_step=True)
    within, weights = str(tmp_path / "ba5.pt"), str(tmp_path / "weights" / "ba2.pt")
    found = history_of(str(tmp_path), 9)
    assert found.before is found.after is None and found.incomplete == {within: ("in_step",)}
    assert found.problems == (
        f"{within!r} was saved within a step, after a part of it. For the next run, let callbacks save at BATCH_END or "
        f"a later event."
    )
    save(weights, 2, in_step=True, weights_only=True)
    assert f"{weights!r} lacks the state of the optimizers" in history_of(str(tmp_path), 9).problems
    save(str(tmp_path / "ba3.pt"), 3)
    found = history_of(str(tmp_path), 9)
    assert found.before is not None and found.before.batch == 3
    assert "in_step" not in torch.load(tmp_path / "ba3.pt", weights_only=True)["state"]


class Noisy(Regression):
    """Draws random numbers in each forward pass."""

    def forward(self, batch):
        return self.linear(torch.dropout(batch[0], 0.5, train=True))


def noisy(folder: Path, *callbacks: Callback) -> Trainer:
    torch.manual_seed(5)
    return trainer_of(Noisy(), max_duration="8ba", seed=3, run_name="night", save_folder=str(folder),
                      save_interval="2ba", callbacks=list(callbacks))  # fmt: skip


@pytest.mark.parametrize("event", ["after_forward", "after_train_batch"])
def test_replays_do_not_start_within_a_step(event, tmp_path):
    """The random numbers of the step are drawn already, so that its losses would be those of others."""

    def save_within(state: State) -> None:
        if state.timestamp.batch == 5:
            save_checkpoint(state, tmp_path / "within" / "ba{batch}.pt")

    losses = At("batch_end", lambda state: float(state.total_loss_dict["loss/train/total"]))
    noisy(tmp_path, losses, At(event, save_within)).fit()
    record = noisy(tmp_path).replay(5, run=tmp_path)
    assert record.start.endswith("-ba4-rank0.pt") and record.loss == losses.found[5]
    with pytest.raises(ValueError, match=r"ba5\.pt' was saved within a step, after a part of it\. For the next run"):
        noisy(tmp_path).replay(5, run=tmp_path / "within")


def test_one_checkpoint_as_the_run(tmp_path):
    path = save(str(tmp_path / "ba6.pt"), 6)
    found = history_of(path, 9).before
    assert found is not None and found.path == path
    (tmp_path / "latest.pt").symlink_to("ba6.pt")
    found = history_of(str(tmp_path / "latest.pt"), 9).before
    assert found is not None and found.batch == 6


def test_remote_folder(tmp_path):
    for batch in (3, 6):
        path = save(str(tmp_path / f"ba{batch}.pt"), batch)
        with fsspec.open(f"memory://at-step/run/ba{batch}.pt", "wb") as file:
            file.write(Path(path).read_bytes())
    for run in ("memory://at-step", "memory://at-step/run", "memory://at-step/run/ba3.pt"):
        found = history_of(run, 5).before
        assert found is not None and found.batch == 3 and found.path == "memory://at-step/run/ba3.pt"


def test_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match="contains no checkpoint"):
        history_of(str(tmp_path), 3)
    with pytest.raises(FileNotFoundError, match="no folder or checkpoint"):
        history_of(str(tmp_path / "nowhere"), 3)


def test_checkpoints_of_others_are_not_complete(tmp_path):
    torch.save({"state": {"model": {}, "timestamp": {"Timestamp": {"batch": 3}}}, "rng": []}, tmp_path / "ba3.pt")
    missing = facts_of(str(tmp_path / "ba3.pt")).missing
    assert {"optimizers", "rank_zero_seed", "rng", "metadata"} <= set(missing)


def test_a_folder_with_several_runs(tmp_path):
    """Their names are listed; a run may have several folders."""
    for folder, name in (("a/own", "night"), ("a/more", "night"), ("b", "day")):
        for batch in (1, 4):
            save(str(tmp_path / folder / f"ba{batch}.pt"), batch, name)
    with pytest.raises(ValueError, match=r"contains several runs: night in '.*/a/more', day in '.*/b'\."):
        history_of(str(tmp_path), 3)
    assert history_of(str(tmp_path / "a"), 3).before == facts_of(str(tmp_path / "a/own/ba1.pt"))


def test_a_checkpoint_after_the_step(tmp_path):
    """It does not tell what was before; its folder may."""
    for batch in (2, 4, 9):
        save(str(tmp_path / f"ba{batch}.pt"), batch)
    (tmp_path / "latest.pt").symlink_to("ba9.pt")
    for name in ("ba9.pt", "latest.pt"):
        with pytest.raises(ValueError, match=r"batch 9, which is after step 5. .* such as '.*ba4.pt'"):
            history_of(str(tmp_path / name), 5)
    with pytest.raises(ValueError, match=f"after step 1. Give its folder, '{tmp_path}'."):
        history_of(str(tmp_path / "ba2.pt"), 1)
    (tmp_path / "ba4.pt").unlink()
    save(str(tmp_path / "ba4.pt"), 4, "other")
    with pytest.raises(ValueError, match=f"Give its folder, '{tmp_path}'."):
        history_of(str(tmp_path / "ba9.pt"), 5)
