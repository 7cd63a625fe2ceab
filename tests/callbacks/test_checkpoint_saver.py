"""CheckpointSaver: when it saves, the link to the newest checkpoint, and retention."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Callback, Timestamp, Trainer
from composer.callbacks import CheckpointSaver
from composer.checkpoint.load import read_checkpoint
from composer.core import LoggerDestination
from composer.core.time import TimeUnit
from tests.callbacks.cases import Case
from tests.common import At, classifier, labeled_data, trainer_of, weights, without_ledger

both = pytest.mark.parametrize("asynchronous", [False, True])

CASES = [Case(make=lambda folder: CheckpointSaver(folder, save_interval="2ba", overwrite=True))]


def trainer(saver: CheckpointSaver, *more: Callback, **arguments: Any) -> Trainer:
    arguments.setdefault("max_duration", "2ep")
    return trainer_of(callbacks=[*more, saver], **arguments)


def names(folder: Path) -> list[str]:
    return without_ledger(path.name for path in folder.iterdir())


def link(folder: Path) -> str:
    return str((folder / "latest-rank0.pt").readlink())


def newest_batch(folder: Path) -> int:
    """Read the newest checkpoint completely, and return its batch."""
    return read_checkpoint((folder / "latest-rank0.pt").resolve())["state"]["timestamp"]["Timestamp"]["batch"]


# ------------------------------------------------------------------------------------------------- when and where


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ("1ep", ["ep1-ba4", "ep2-ba8"]),
        (1, ["ep1-ba4", "ep2-ba8"]),
        ("3ba", ["ep0-ba3", "ep1-ba6", "ep2-ba8"]),  # the end of training is saved in any case
        ("0.5dur", ["ep0-ba4", "ep1-ba8"]),
        (lambda state, event: event.value == "batch_checkpoint" and state.timestamp.batch == 5, ["ep1-ba5"]),
    ],
)
def test_intervals(interval, expected, tmp_path) -> None:
    saver = CheckpointSaver(tmp_path, save_interval=interval)
    trainer(saver).fit()
    assert [Path(path).name for path in saver.saved_checkpoints] == [f"{name}-rank0.pt" for name in expected]
    assert names(tmp_path) == [*(f"{name}-rank0.pt" for name in expected), "latest-rank0.pt"]
    assert link(tmp_path) == f"{expected[-1]}-rank0.pt"


def test_placeholders_in_names(tmp_path) -> None:
    saver = CheckpointSaver(tmp_path / "{run_name}", "{run_name}-{batch:04d}.pt", latest_filename="newest-{rank}.pt")
    trainer(saver, run_name="night").fit()
    assert names(tmp_path / "night") == ["newest-0.pt", "night-0004.pt", "night-0008.pt"]


def test_the_checkpoint_has_the_state_of_its_step(tmp_path) -> None:
    saver = CheckpointSaver(tmp_path, save_interval="1ba", asynchronous=True)
    seen = At("batch_checkpoint", lambda state: weights(run))
    run = trainer(saver, seen)
    run.fit()
    run.close()
    for batch, expected in enumerate(seen.found, 1):
        model = read_checkpoint(saver.saved_checkpoints[batch - 1])["state"]["model"]
        assert torch.equal(torch.cat([model["linear.weight"].flatten(), model["linear.bias"]]), expected)


def test_weights_only_and_safetensors(tmp_path) -> None:
    saver = CheckpointSaver(tmp_path, "ba{batch}.safetensors", latest_filename="latest.safetensors", weights_only=True)
    run = trainer(saver)
    run.fit()
    assert names(tmp_path) == ["ba4.safetensors", "ba8.safetensors", "latest.safetensors"]
    read = read_checkpoint((tmp_path / "latest.safetensors").resolve())
    assert torch.equal(read["state"]["model"]["linear.weight"], run.state.model.linear.weight)


def test_ignore_keys(tmp_path) -> None:
    saver = CheckpointSaver(tmp_path, ignore_keys=["state/optimizers", "rng"], latest_filename=None)
    trainer(saver, max_duration="1ep").fit()
    content = read_checkpoint(tmp_path / "ep1-ba4-rank0.pt")
    assert "optimizers" not in content["state"]
    assert "rng" not in content
    assert names(tmp_path) == ["ep1-ba4-rank0.pt"]


def test_saving_now_saves_once(tmp_path) -> None:
    saver = CheckpointSaver(tmp_path, save_interval="100ba")
    run = trainer(saver, max_duration="3ba")
    run.fit()
    assert names(tmp_path) == ["ep0-ba3-rank0.pt", "latest-rank0.pt"]
    before = (tmp_path / "ep0-ba3-rank0.pt").stat().st_mtime_ns
    run.save_checkpoint_to_save_folder()
    assert (tmp_path / "ep0-ba3-rank0.pt").stat().st_mtime_ns == before


def test_a_second_run_starts_a_new_list(tmp_path) -> None:
    saver = CheckpointSaver(tmp_path / "{run_name}", num_checkpoints_to_keep=1)
    for name in ("one", "two"):
        trainer(saver, run_name=name, max_duration="1ep").fit()
    assert names(tmp_path / "one") == names(tmp_path / "two") == ["ep1-ba4-rank0.pt", "latest-rank0.pt"]


# ------------------------------------------------------------------------------------------------- what is kept


def test_the_newest_are_kept(tmp_path) -> None:
    saver = CheckpointSaver(tmp_path, save_interval="1ba", num_checkpoints_to_keep=2)
    trainer(saver).fit()
    assert names(tmp_path) == ["ep1-ba7-rank0.pt", "ep1-ba8-rank0.pt", "latest-rank0.pt"]
    assert newest_batch(tmp_path) == 8


@both
def test_several_calls_of_fit_remove_each_checkpoint_once(tmp_path, caplog, asynchronous) -> None:
    saver = CheckpointSaver(tmp_path, save_interval="1ba", num_checkpoints_to_keep=1, asynchronous=asynchronous)
    made = trainer(saver, max_duration="1ep")
    made.fit()
    made.fit(duration="1ep")
    made.close()
    assert names(tmp_path) == ["ep1-ba8-rank0.pt", "latest-rank0.pt"]
    assert not caplog.records


SCORES = [0.5, 0.9, 0.1, 0.8, 0.2, 0.85, 0.3, 0.4]


class Scored(Callback):
    """Sets the score of the evaluation after each batch."""

    def batch_end(self, state, logger):
        metric = state.eval_metrics["eval"]["MulticlassAccuracy"]
        batch = int(state.timestamp.count(TimeUnit.BATCH))
        metric._computed = torch.tensor(SCORES[batch - 1])
        metric._update_count = 1


def best(folder: Path, **arguments: Any) -> tuple[CheckpointSaver, Trainer]:
    saver = CheckpointSaver(
        folder,
        save_interval="1ba",
        num_checkpoints_to_keep=1,
        keep_best=2,
        mode="max",
        monitor="eval/MulticlassAccuracy",
    )
    made = trainer_of(
        model=classifier(), data=labeled_data(), callbacks=[Scored(), saver], eval_dataloader=labeled_data(),
        eval_interval="100ep", max_duration="8ba", **arguments,
    )  # fmt: skip
    return saver, made


def kept(folder: Path) -> list[int]:
    return sorted(int(re.findall(r"ba(\d+)", name)[0]) for name in names(folder) if name.startswith("ep"))


def test_BestTopK(tmp_path) -> None:
    saver, run = best(tmp_path)
    left = At("batch_start", lambda state: kept(tmp_path))
    run.state.callbacks.append(left)
    run.fit()
    assert left.found == [[], [1], [1, 2], [1, 2, 3], [2, 4], [2, 4, 5], [2, 6], [2, 6, 7]]
    assert kept(tmp_path) == [2, 6, 8]
    assert [int(re.findall(r"ba(\d+)", path)[0]) for path in saver.saved_checkpoints] == [2, 6, 8]
    assert newest_batch(tmp_path) == 8


@pytest.mark.parametrize("stop", range(1, 8))
def test_BestTopK_survives_resumption(stop, tmp_path) -> None:
    """Checkpoints of an earlier process take part in retention."""
    with pytest.raises(RuntimeError, match="power"):
        _, run = best(tmp_path)
        run.state.callbacks.append(At("batch_checkpoint", lambda state: _fail(state, stop)))
        run.fit()
    _, again = best(tmp_path, load_path=str(tmp_path / "latest-rank0.pt"))
    assert again.state.timestamp.batch == stop
    again.fit()
    assert kept(tmp_path) == [2, 6, 8]


def _fail(state: Any, batch: int) -> None:
    if int(state.timestamp.batch) == batch:
        raise RuntimeError("the power went out")


def test_unknown_metric_is_refused(tmp_path) -> None:
    saver = CheckpointSaver(tmp_path, num_checkpoints_to_keep=1, keep_best=1, monitor="eval/MulticlasAccuracy")
    run = trainer_of(model=classifier(), data=labeled_data(), eval_dataloader=labeled_data(), callbacks=saver)
    with pytest.raises(ValueError, match="Did you mean 'eval/MulticlassAccuracy'"):
        run.fit()


# ------------------------------------------------------------------------------------------------- finding the newest


def newest(folder: Path, **arguments: Any) -> str | None:
    saver = CheckpointSaver(folder, **arguments)
    found = saver.newest(trainer(saver).state)
    return None if found is None else Path(found).name


def test_the_newest_is_the_target_of_the_link(tmp_path) -> None:
    assert newest(tmp_path) is None
    trainer(CheckpointSaver(tmp_path)).fit()
    assert newest(tmp_path) == "ep2-ba8-rank0.pt"


def test_the_newest_is_found_if_a_crash_prevented_its_link(tmp_path) -> None:
    trainer(CheckpointSaver(tmp_path)).fit()
    shutil.copy(tmp_path / "ep2-ba8-rank0.pt", tmp_path / "ep3-ba12-rank0.pt")
    assert newest(tmp_path) == "ep3-ba12-rank0.pt"


def test_a_copy_of_the_folder_has_the_same_newest(tmp_path) -> None:
    """Although the modification times of a copy are new, and in any order."""
    trainer(CheckpointSaver(tmp_path / "a")).fit()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "latest-rank0.pt").symlink_to("ep2-ba8-rank0.pt")
    for name in ("ep2-ba8-rank0.pt", "ep1-ba4-rank0.pt"):
        shutil.copyfile(tmp_path / "a" / name, tmp_path / "b" / name)
    assert newest(tmp_path / "b") == "ep2-ba8-rank0.pt"


def test_checkpoints_of_an_earlier_run_are_not_the_newest(tmp_path) -> None:
    (tmp_path / "ep9-ba36-rank0.pt").touch()
    trainer(CheckpointSaver(tmp_path, overwrite=True)).fit()
    assert newest(tmp_path, overwrite=True) == "ep2-ba8-rank0.pt"


def test_without_the_link_the_last_written_is_the_newest(tmp_path) -> None:
    trainer(CheckpointSaver(tmp_path)).fit()
    (tmp_path / "latest-rank0.pt").unlink()
    assert newest(tmp_path) == "ep2-ba8-rank0.pt"


def test_partial_files_are_removed(tmp_path) -> None:
    for name in (".ep1-ba4-rank0.pt.01234567.tmp", ".other.tmp"):
        (tmp_path / name).touch()
    (tmp_path / ".latest-rank0.pt.01234567.tmp").symlink_to("nothing")
    trainer(CheckpointSaver(tmp_path, latest_filename="latest-rank{rank}.pt"), max_duration="1ba").fit()
    assert names(tmp_path) == [".other.tmp", "ep0-ba1-rank0.pt", "latest-rank0.pt"]


def test_another_run_in_the_folder(tmp_path) -> None:
    trainer(CheckpointSaver(tmp_path)).fit()
    with pytest.raises(FileExistsError, match="save_overwrite=True"):
        trainer(CheckpointSaver(tmp_path)).fit()


# ------------------------------------------------------------------------------------------------- uploads


class Keeps(LoggerDestination):
    """Stores the names and contents of uploaded files."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def can_upload_files(self) -> bool:
        return True

    def upload_file(self, state, remote_file_name, file_path, *, overwrite):
        self.files[remote_file_name] = Path(file_path).resolve().name


@both
def test_destinations_receive_complete_files(asynchronous, tmp_path) -> None:
    keeps = Keeps()
    saver = CheckpointSaver(tmp_path, remote_file_name="{run_name}/{batch}.pt", asynchronous=asynchronous)
    run = trainer(saver, run_name="night", loggers=keeps)
    run.fit()
    run.close()
    found = {name: file for name, file in keeps.files.items() if "checkpoints" not in name}
    assert found == {"night/4.pt": "ep1-ba4-rank0.pt", "night/8.pt": "ep2-ba8-rank0.pt"}


# ------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"folder": "{run_nam}"}, "Did you mean 'run_name'"),
        ({"folder": "{epoch}"}, "does not change during training"),
        ({"filename": "ep{epohc}.pt"}, "Did you mean 'epoch'"),
        ({"filename": "a.safetensors"}, "Use weights_only=True"),
        ({"num_checkpoints_to_keep": -2}, "must be a number, or -1 for all"),
        ({"num_checkpoints_to_keep": 0}, "use 1 to keep the newest"),
        ({"keep_best": -1}, "keep_best must be 0 or greater, but got -1"),
        ({"keep_best": 2, "num_checkpoints_to_keep": 1}, "keep_best and monitor must be given together"),
        ({"monitor": "eval/Loss"}, "keep_best and monitor must be given together"),
        ({"keep_best": 2, "num_checkpoints_to_keep": 1, "monitor": "a", "mode": "maxx"}, "Did you mean 'max'"),
        ({"on_failure": "rase"}, "Did you mean 'raise'"),
        ({"save_interval": "1epp"}, "1epp"),
    ],
)
def test_arguments_are_checked(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        CheckpointSaver(**arguments)


def test_loads_the_state_of_composer_0_32() -> None:
    saver = CheckpointSaver()
    saver.load_state_dict({"all_saved_checkpoints_to_timestamp": [("ep1.pt", {"batch": 1}), 3, ("a",), None]})
    assert saver.saved_checkpoints == []
    assert saver.all_saved_checkpoints_to_timestamp == {}
    state = Timestamp(epoch=1, batch=2).state_dict()  # as the predecessor writes it, and subclasses with more
    saver.load_state_dict({"all_saved_checkpoints_to_timestamp": [("foo/ep1.pt", state), ("foo/ep2.pt", state, {})]})
    assert list(saver.all_saved_checkpoints_to_timestamp) == ["foo/ep1.pt", "foo/ep2.pt"]
    assert saver.all_saved_checkpoints_to_timestamp["foo/ep1.pt"] == Timestamp(epoch=1, batch=2)
