"""Running the same command again resumes (autoresume); what checkpoints contain and leave out."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
import torch
from torch import nn

from composer import Trainer
from composer.algorithms import BlurPool
from composer.callbacks import CheckpointSaver
from composer.models import ComposerClassifier
from composer.warnings import ComposerWarning
from tests.common import At, weights, without_ledger
from tests.trainer.resuming import CLASSES, STEPS, build, shuffled


def test_autoresume_continues_and_stops_when_complete(tmp_path) -> None:
    def command(stop_at: int | None = None) -> Trainer:
        def stop(state):
            if stop_at is not None and int(state.timestamp.batch) == stop_at:
                raise RuntimeError("the power went out")

        folder = str(tmp_path / "{run_name}")
        return build(
            shuffled(),
            save_folder=folder,
            save_interval="2ba",
            autoresume=True,
            callbacks=At("batch_end", stop),
        )

    straight = build(shuffled())
    straight.fit()
    with pytest.raises(RuntimeError, match="the power went out"):
        command(stop_at=5).fit()
    second = command(stop_at=9)
    assert int(second.state.timestamp.batch) == 4
    with pytest.raises(RuntimeError, match="the power went out"):
        second.fit()
    third = command()
    assert int(third.state.timestamp.batch) == 8
    assert third.state.load_path is not None and third.state.load_path.endswith("ep1-ba8-rank0.pt")
    third.fit()
    assert torch.equal(weights(third), weights(straight))
    fourth = command()
    with pytest.warns(ComposerWarning, match="this call of fit is already complete"):
        fourth.fit()
    assert torch.equal(weights(fourth), weights(straight))


def test_a_link_that_lags_is_repaired_before_what_it_names_is_removed(tmp_path) -> None:
    """Where processes end between a checkpoint and its link, again and again, the link names an ever older one."""
    seen = []

    def look(state) -> None:
        if not seen:
            seen.append(without_ledger(path.name for path in tmp_path.iterdir()))
            seen.append(link.resolve(strict=True).name)

    def command(duration: str, **more: Any) -> Trainer:
        kept = {"save_num_checkpoints_to_keep": 2, "save_interval": "1ba", "schedulers": None}
        return build(shuffled(), save_folder=str(tmp_path), autoresume=True, max_duration=duration, **kept, **more)

    command("4ba").fit()
    link = tmp_path / "latest-rank0.pt"
    shutil.copy(tmp_path / "ep0-ba3-rank0.pt", tmp_path / "ep0-ba2-rank0.pt")  # which the last one was to remove
    os.utime(tmp_path / "ep0-ba2-rank0.pt", (0, 0))
    link.unlink()
    link.symlink_to("ep0-ba2-rank0.pt")
    os.utime(link, (0, 0), follow_symlinks=False)
    command("5ba", callbacks=At("batch_start", look)).fit()
    assert seen == [["ep0-ba3-rank0.pt", "ep0-ba4-rank0.pt", "latest-rank0.pt"], "ep0-ba4-rank0.pt"]


def test_autoresume_counts_duration_from_its_original_start(tmp_path) -> None:
    def command(fail: bool) -> Trainer:
        def stop(state):
            if fail and int(state.timestamp.batch) == 7:
                raise RuntimeError

        trainer = build(
            shuffled(),
            max_duration=None,
            schedulers=None,
            save_folder=str(tmp_path),
            save_interval="2ba",
            autoresume=True,
            callbacks=At("batch_end", stop),
        )
        trainer.fit(duration="2ep")
        return trainer

    with pytest.raises(RuntimeError):
        command(fail=True)
    assert int(command(fail=False).state.timestamp.batch) == 12


def test_load_path_is_for_the_first_start_only(tmp_path) -> None:
    first = build(shuffled(), max_duration="1ba", schedulers=None)
    first.fit()
    path = first.save_checkpoint(str(tmp_path / "weights.pt"))

    def command() -> Trainer:
        return build(
            shuffled(),
            load_path=path,
            load_weights_only=True,
            save_folder=str(tmp_path / "run"),
            save_interval="4ba",
            autoresume=True,
        )

    begun = command()
    assert int(begun.state.timestamp.batch) == 0
    assert torch.equal(weights(begun), weights(first))
    begun.fit()
    assert int(command().state.timestamp.batch) == STEPS


@pytest.mark.parametrize("more", [{}, {"save_folder": "x", "save_latest_filename": None}])
def test_autoresume_reports_what_it_requires(more) -> None:
    with pytest.raises(ValueError, match="autoresume=True requires a CheckpointSaver"):
        build(shuffled(), autoresume=True, **more)


@pytest.mark.parametrize(
    ("folder", "names", "finds"),
    [
        ("{run_name}/ck", {}, False),
        ("ck", {"save_filename": "{run_name}-ba{batch}.pt", "save_latest_filename": "{run_name}-latest.pt"}, False),
        ("ck", {}, True),
        ("ck", {"save_filename": "{run_name}-ba{batch}.pt"}, True),  # the link is called the same
        ("ck", {"save_latest_filename": "{run_name}-latest.pt"}, True),
    ],
)
def test_autoresume_without_run_name_requires_a_fixed_folder(folder, names, finds, tmp_path, monkeypatch) -> None:
    for variable in ("COMPOSER_RUN_NAME", "RUN_NAME"):
        monkeypatch.delenv(variable, raising=False)

    def command(duration: str) -> Trainer:
        given = {"save_folder": str(tmp_path / folder), "save_interval": "2ba", "schedulers": None, **names}
        return build(shuffled(), run_name=None, autoresume=True, max_duration=duration, **given)

    if not finds:
        with pytest.raises(ValueError, match=r"would never find a checkpoint: .*COMPOSER_RUN_NAME"):
            command("2ba")
        monkeypatch.setenv("COMPOSER_RUN_NAME", "night")
    command("2ba").fit()
    assert int(command("4ba").state.timestamp.batch) == 2


def test_autoresume_takes_the_newest_of_multiple_savers(tmp_path) -> None:
    def savers() -> list[CheckpointSaver]:
        return [
            CheckpointSaver(tmp_path / "often", save_interval="5ba"),
            CheckpointSaver(tmp_path / "seldom", save_interval="6ba"),
        ]

    build(shuffled(), callbacks=savers(), max_duration="6ba", schedulers=None).fit()
    resumed = build(shuffled(), callbacks=savers(), autoresume=True, schedulers=None)
    assert int(resumed.state.timestamp.batch) == 6


def test_another_run_in_the_folder_is_not_overwritten(tmp_path) -> None:
    def make(**arguments: Any) -> Trainer:
        return build(shuffled(), save_folder=str(tmp_path), **arguments)

    make().fit()
    with pytest.raises(FileExistsError, match="save_overwrite=True"):
        make().fit()
    make(save_overwrite=True).fit()


# ----------------------------------------------------------------------------------------------------- what is saved


def test_surgery_is_applied_before_weights_are_loaded(tmp_path) -> None:
    def make(**arguments: Any) -> Trainer:
        net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Conv2d(16, 16, 3, stride=2), nn.Flatten(), nn.LazyLinear(CLASSES))
        net(torch.zeros(1, 1, 8, 8))
        model = ComposerClassifier(net, num_classes=CLASSES)
        data = [(torch.randn(2, 1, 8, 8), torch.tensor([0, 1]))]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return Trainer(
            model=model,
            train_dataloader=data,
            optimizers=optimizer,
            max_duration="1ep",
            progress_bar=False,
            **arguments,
        )

    trainer = make(algorithms=[BlurPool(replace_convs=True)])
    trainer.fit()
    path = trainer.save_checkpoint(str(tmp_path / "blurred.pt"))
    with pytest.warns(ComposerWarning, match="required_on_load algorithm BlurPool"):
        again = make(load_path=path)
    assert torch.equal(weights(again), weights(trainer))
    assert any("blur" in type(module).__name__.lower() for module in again.state.model.modules())
    with pytest.raises(RuntimeError, match="of another model"):
        make(load_path=path, load_exclude_algorithms=["BlurPool"])


def test_load_weights_only_leaves_other_state_unchanged(tmp_path) -> None:
    trainer = build(shuffled(), max_duration="3ba", schedulers=None)
    trainer.fit()
    path = trainer.save_checkpoint(str(tmp_path / "weights.pt"), weights_only=True)
    loaded = build(shuffled(), load_path=path)
    assert torch.equal(weights(loaded), weights(trainer))
    assert int(loaded.state.timestamp.batch) == 0
    content = torch.load(path, weights_only=True)
    assert sorted(content["state"]) == ["integrations", "metadata", "model"]


def test_ignored_entries_start_over(tmp_path) -> None:
    trainer = build(shuffled(), max_duration="3ba", schedulers=None)
    trainer.fit()
    path = trainer.save_checkpoint(str(tmp_path / "all.pt"))
    loaded = build(shuffled(), load_path=path, load_ignore_keys=["state/optimizers", "state/timestamp"])
    assert not loaded.state.optimizers[0].state
    assert int(loaded.state.timestamp.batch) == 0
    assert torch.equal(weights(loaded), weights(trainer))


def test_exception_saves_a_separate_checkpoint(tmp_path) -> None:
    def fail(state):
        if int(state.timestamp.batch) == 3:
            raise RuntimeError("bad luck")

    trainer = build(
        shuffled(),
        save_folder=str(tmp_path),
        save_interval="2ba",
        save_on_exception=True,
        callbacks=At("batch_end", fail),
    )
    with pytest.raises(RuntimeError, match="bad luck"):
        trainer.fit()
    names = without_ledger(path.name for path in tmp_path.iterdir())
    assert names == ["ep0-ba2-rank0.pt", "exception-ep0-ba3-rank0.pt", "latest-rank0.pt"]
    assert (tmp_path / "latest-rank0.pt").resolve().name == "ep0-ba2-rank0.pt"


def test_the_folder_can_be_moved(tmp_path) -> None:
    build(shuffled(), save_folder=str(tmp_path / "a"), max_duration="2ba", schedulers=None).fit()
    shutil.move(tmp_path / "a", tmp_path / "b")
    resumed = build(shuffled(), load_path=str(tmp_path / "b" / "latest-rank0.pt"), schedulers=None)
    assert int(resumed.state.timestamp.batch) == 2
