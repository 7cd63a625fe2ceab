"""If the newest checkpoint is corrupted, autoresume falls back to the newest intact one, with a warning, or raises."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Trainer
from composer.callbacks import CheckpointSaver
from composer.checkpoint.file_format import DamagedCheckpointError, UnsafeCheckpointError
from composer.loggers import RemoteUploaderDownloader
from composer.storage.folder import Folder
from composer.warnings import ComposerWarning
from tests.common import weights
from tests.storage.faulty import cleared
from tests.trainer.resuming import build, shuffled
from tests.trainer.test_sharded_resume import state_of, stop_at, stopped, trainer


@pytest.fixture
def faulty(monkeypatch):
    monkeypatch.setattr("composer.storage.retrying.sleep", lambda seconds: None)
    yield from cleared()


def make(folder: Any, duration: str = "8ba", **arguments: Any) -> Trainer:
    given = {"save_interval": "2ba", "autoresume": True, "schedulers": None, **arguments}
    return build(shuffled(), save_folder=str(folder), max_duration=duration, **given)


def run(folder: Any, duration: str = "8ba", **arguments: Any) -> Trainer:
    made = make(folder, duration, **arguments)
    made.fit()
    made.close()
    return made


def batch(made: Trainer) -> int:
    return int(made.state.timestamp.batch)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: os.truncate(path, path.stat().st_size - 100),
    "empty": lambda path: os.truncate(path, 0),
    "flipped": flip,
    "gone": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_newest_intact_checkpoint_is_resumed_from(damage, tmp_path) -> None:
    straight = run(tmp_path / "straight")
    run(tmp_path / "run", "6ba")
    path = tmp_path / "run" / "ep0-ba6-rank0.pt"
    DAMAGES[damage](path)
    both = rf"resumes from '.*ep0-ba4-rank0\.pt', since newer checkpoints cannot be read: '.*{path.name}'"
    for _ in range(2):  # nothing was saved in between, so the next start finds the same
        with pytest.warns(ComposerWarning, match=both):
            again = make(tmp_path / "run")
        assert batch(again) == 4
        assert path.exists() == (damage != "gone")
    again.fit()  # is not refused for what is later
    again.close()
    assert torch.equal(weights(again), weights(straight))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert batch(make(tmp_path / "run")) == 8


def test_a_corrupted_checkpoint_is_remembered_until_it_is_replaced(tmp_path) -> None:
    """It stays, later than what is saved after it, and none of the next starts picks it or raises for it."""
    run(tmp_path, "6ba")
    flip(tmp_path / "ep0-ba6-rank0.pt")
    with pytest.warns(ComposerWarning, match="resumes from"):
        run(tmp_path, "5ba", save_interval="5ba")
    assert (tmp_path / "latest-rank0.pt").resolve().name == "ep0-ba5-rank0.pt"
    for duration in ("6ba", "8ba"):
        again = make(tmp_path, duration, save_interval="7ba", callbacks=stop_at(6 if duration == "6ba" else 99))
        assert batch(again) == 5
        stopped(again) if duration == "6ba" else again.fit()
    assert (tmp_path / "ep0-ba6-rank0.pt").exists()
    assert batch(make(tmp_path, "8ba")) == 8


def test_multiple_corrupted_checkpoints(tmp_path) -> None:
    run(tmp_path, "6ba")
    for name in ("ep0-ba6-rank0.pt", "ep0-ba4-rank0.pt"):
        flip(tmp_path / name)
    with pytest.warns(ComposerWarning, match=r"(?s)from '.*ba2-rank0\.pt'.*ba6-rank0\.pt.*ba4-rank0\.pt"):
        assert batch(make(tmp_path)) == 2


def test_no_intact_checkpoint(tmp_path) -> None:
    """Training never starts over without a word."""
    run(tmp_path, "4ba")
    for name in ("ep0-ba4-rank0.pt", "ep0-ba2-rank0.pt"):
        flip(tmp_path / name)
    with pytest.raises(
        DamagedCheckpointError, match=r"(?s)none can be read: .*ba4-rank0\.pt.*ba2-rank0\.pt.*to start over"
    ):
        make(tmp_path)
    for path in tmp_path.glob("ep*"):
        path.unlink()
    with pytest.raises(DamagedCheckpointError, match="missing"):
        make(tmp_path)
    (tmp_path / "latest-rank0.pt").unlink()
    assert batch(make(tmp_path)) == 0


def test_checkpoint_that_would_run_code_is_not_skipped(tmp_path) -> None:
    run(tmp_path, "4ba")
    torch.save({"state": {"model": {}, "run": Path}}, tmp_path / "ep0-ba4-rank0.pt")
    with pytest.raises(UnsafeCheckpointError):
        make(tmp_path)


def test_checkpoints_of_another_run_are_no_fallback(tmp_path) -> None:
    run(tmp_path, "2ba", run_name="other")
    run(tmp_path, "4ba", autoresume=False, load_path=str(tmp_path / "latest-rank0.pt"), load_weights_only=True,
        save_interval="3ba", save_overwrite=True)  # fmt: skip
    for name in ("ep0-ba4-rank0.pt", "ep0-ba3-rank0.pt"):
        flip(tmp_path / name)
    with pytest.raises(DamagedCheckpointError, match="it belongs to another run, 'other'"):
        make(tmp_path)


def test_explicit_paths_do_not_fall_back(tmp_path) -> None:
    run(tmp_path, "4ba")
    flip(tmp_path / "ep0-ba4-rank0.pt")
    with pytest.raises(DamagedCheckpointError):
        make(tmp_path, autoresume=False, load_path=str(tmp_path / "latest-rank0.pt"))


def test_multiple_savers(tmp_path) -> None:
    def savers() -> list[CheckpointSaver]:
        return [
            CheckpointSaver(tmp_path / "a", save_interval="3ba"),
            CheckpointSaver(tmp_path / "b", save_interval="4ba"),
        ]

    def go(duration: str) -> Trainer:
        return build(shuffled(), callbacks=savers(), autoresume=True, max_duration=duration, schedulers=None)

    go("8ba").fit()  # a has 3, 6, 8 and b has 4, 8
    for name in ("a/ep1-ba8-rank0.pt", "b/ep1-ba8-rank0.pt", "a/ep0-ba6-rank0.pt"):
        flip(tmp_path / name)
    with pytest.warns(ComposerWarning, match="resumes from"):
        again = go("9ba")
    assert batch(again) == 4
    again.fit()


def test_at_a_uri(faulty) -> None:
    uri = "faulty://bucket/ck"
    run(uri, "6ba")
    folder = Folder(uri)
    path = next(name for name in folder.names() if "ba6" in name)
    folder.write_text(path, "not a checkpoint")
    with pytest.warns(ComposerWarning, match=rf"(?s)from '{uri}/ep0-ba4-rank0\.pt'.*{re.escape(path)}"):
        again = make(uri)
    assert batch(again) == 4
    again.fit()
    again.close()
    assert batch(make(uri)) == 8


def test_checkpoints_at_a_logger(faulty, tmp_path) -> None:
    def go(folder: str, duration: str) -> Trainer:
        saver = CheckpointSaver(
            tmp_path / folder,
            save_interval="2ba",
            remote_file_name="{run_name}/ep{epoch}-ba{batch}.pt",
            latest_remote_file_name="{run_name}/latest.pt",
        )
        given: dict[str, Any] = {"autoresume": True, "schedulers": None, "max_duration": duration}
        return build(shuffled(), callbacks=saver, loggers=RemoteUploaderDownloader("faulty://bucket"), **given)

    first = go("here", "6ba")
    first.fit()
    first.close()
    bucket = Folder("faulty://bucket/night")
    bucket.write_text("ep0-ba6.pt", "not a checkpoint")
    with pytest.warns(ComposerWarning, match=r"(?s)from 'night/ep0-ba4\.pt'.*latest\.pt\.symlink"):
        assert batch(go("there", "8ba")) == 4


# ------------------------------------------------------------------------------------------------- several ranks


def damaged_folder(folder: str, how: str, name: str, damage: str) -> tuple[int, str, bool]:
    arguments: dict[str, Any] = {"save_folder": folder, "save_interval": "2ba", "autoresume": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with trainer(how, max_duration="6ba", **arguments) as straight:
            straight.fit()
            expected = state_of(straight)
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 0:
            DAMAGES[damage](Path(folder, name))
        torch.distributed.barrier()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with trainer(how, max_duration="6ba", **arguments) as again:
            begun = int(again.state.timestamp.batch)
            again.fit()
            found = state_of(again)
    same = all(torch.equal(found[key], expected[key]) for key in found if "running" not in key)
    return begun, " ".join(str(one.message) for one in told if one.category is ComposerWarning), same


@pytest.mark.parametrize(
    ("how", "name", "damage"),
    [
        ("ddp", "ep0-ba6-rank0.pt", "cut off"),
        ("sharded", "ep0-ba6/composer.pt", "gone"),
        ("sharded", "ep0-ba6/.metadata", "flipped"),
        ("sharded", "ep0-ba6/__1_0.distcp", "flipped"),
        ("sharded", "ep0-ba6/__1_0.distcp", "gone"),
    ],
)
def test_ranks_agree(how, name, damage, tmp_path, two_ranks) -> None:
    for begun, told, same in two_ranks.run(damaged_folder, str(tmp_path), how, name, damage):
        assert begun == 4
        assert "ep0-ba4" in told and "ep0-ba6" in told
        assert same


def nothing_shared(folder: str) -> str:
    from composer import dist

    own = Path(folder, str(dist.get_global_rank()))
    with trainer("ddp", max_duration="2ba", save_folder=str(own), save_interval="2ba", schedulers=None) as made:
        made.fit()
    try:
        trainer("ddp", save_folder=str(own), autoresume=True)
    except RuntimeError as error:
        return str(error)
    return "resumed"


def test_a_folder_that_only_some_ranks_see(tmp_path, two_ranks) -> None:
    assert all("ranks [1] do not see the checkpoint" in text for text in two_ranks.run(nothing_shared, str(tmp_path)))


def test_checkpoints_are_tried_in_training_order(tmp_path) -> None:
    """Whatever the clock says of a copied folder."""
    run(tmp_path, "8ba")
    for number, name in enumerate(("ep1-ba8", "ep0-ba2", "ep0-ba6", "ep0-ba4")):
        os.utime(tmp_path / f"{name}-rank0.pt", (number, number))
    flip(tmp_path / "ep1-ba8-rank0.pt")
    with pytest.warns(ComposerWarning, match="resumes from"):
        assert batch(make(tmp_path)) == 6


def test_a_checkpoint_of_another_run_is_named(tmp_path) -> None:
    build(shuffled(), save_folder=str(tmp_path), run_name="one", max_duration="4ba", schedulers=None).fit()
    with pytest.warns(ComposerWarning, match="is a checkpoint of the run 'one', which this run, 'two', resumes"):
        build(
            shuffled(), save_folder=str(tmp_path), run_name="two", max_duration="6ba", schedulers=None, autoresume=True
        )
