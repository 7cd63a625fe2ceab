"""Multiple checkpoint savers in a run, and the best checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics import Metric

from composer import Callback, Trainer, dist
from composer.algorithms import EMA
from composer.callbacks import CheckpointSaver
from composer.loggers import RemoteUploaderDownloader
from composer.models import ComposerClassifier
from composer.warnings import ComposerWarning
from tests.checkpoint.sharding import full
from tests.common import At, classifier, labeled_data, trainer_of, weights, without_ledger
from tests.storage.faulty import cleared
from tests.trainer.resuming import build, shuffled


@pytest.fixture
def faulty(monkeypatch):
    monkeypatch.setattr("composer.storage.retrying.sleep", lambda seconds: None)
    yield from cleared()


def listed(folder: Path) -> list[str]:
    return without_ledger(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


# ------------------------------------------------------------------------------------------------- several savers


def test_save_folder_and_a_saver_are_both_honored(tmp_path) -> None:
    """The newest for resuming, the best for use."""

    def command(duration: str) -> Trainer:
        best = CheckpointSaver(tmp_path / "best", "ba{batch}.pt", latest_filename="best", save_interval="3ba")
        given = {"save_folder": str(tmp_path / "new"), "save_interval": "2ba", "save_num_checkpoints_to_keep": 1}
        return build(shuffled(), callbacks=best, max_duration=duration, schedulers=None, autoresume=True, **given)

    first = command("4ba")
    first.fit()
    assert listed(tmp_path) == [
        "best/ba3.pt",
        "best/ba4.pt",
        "best/best",
        "new/ep0-ba4-rank0.pt",
        "new/latest-rank0.pt",
    ]
    assert [Path(path).name for path in first.saved_checkpoints] == ["ba3.pt", "ba4.pt", "ep0-ba4-rank0.pt"]
    command("6ba").fit()
    assert listed(tmp_path)[-3:] == ["best/best", "new/ep0-ba6-rank0.pt", "new/latest-rank0.pt"]


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        ({}, {}, r"the checkpoints of .* and the checkpoints"),
        ({}, {"save_interval": "1ba"}, "the checkpoints"),
        ({}, {"filename": "b{batch}.pt"}, "the link of .* and the link"),
        ({}, {"latest_filename": None}, "the checkpoints"),
        ({"filename": "{epoch}.pt"}, {"filename": "{batch:03d}.pt", "latest_filename": None}, "the checkpoints"),
        ({"filename": "sub/{epoch}.pt"}, {"folder": "run/sub", "filename": "{batch}.pt"}, "the checkpoints"),
        ({"folder": "run/../run"}, {}, "the checkpoints"),
        ({"folder": "linked"}, {}, "the checkpoints"),
        ({"folder": "{run_name}"}, {"folder": "night"}, "the checkpoints"),
        (
            {"latest_filename": "0.pt"},
            {"filename": "{batch}.pt", "latest_filename": None},
            "the link of .* and the checkp",
        ),
        ({"folder": "memory://run"}, {"folder": "memory://run/"}, "the checkpoints"),
        (
            {"filename": "{run_name}-{batch}.pt"},
            {"filename": "night-{batch}.pt", "latest_filename": "l"},
            "the checkpoints",
        ),
    ],
)
def test_two_savers_with_the_same_files(one, other, what, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("linked").symlink_to("run")
    savers = [CheckpointSaver(**{"folder": "run", **arguments}) for arguments in (one, other)]
    with pytest.raises(
        ValueError, match=rf"Two CheckpointSavers would write the same files: .*{what}.*Change the folder"
    ):
        build(shuffled(), callbacks=savers)


def test_save_folder_with_a_saver_of_the_same_folder(tmp_path) -> None:
    with pytest.raises(ValueError, match="Two CheckpointSavers would write the same files"):
        build(shuffled(), save_folder=str(tmp_path), callbacks=CheckpointSaver(tmp_path, save_interval="2ba"))


def test_different_savers(tmp_path) -> None:
    savers = [
        CheckpointSaver(tmp_path / "a"),
        CheckpointSaver(tmp_path / "b"),
        CheckpointSaver(tmp_path / "a", "best-ba{batch}.pt", latest_filename="best"),
        CheckpointSaver(
            tmp_path / "a", "sub/ep{epoch}-ba{batch}-rank{rank}.pt", latest_filename="sub/latest-rank{rank}.pt"
        ),
    ]
    build(shuffled(), callbacks=savers, max_duration="1ba", schedulers=None).fit()
    assert len(listed(tmp_path)) == 8


def test_names_at_loggers_must_differ_too(faulty, tmp_path) -> None:
    def make(**arguments: Any) -> Trainer:
        savers = [CheckpointSaver(tmp_path / "a"), CheckpointSaver(tmp_path / "b", **arguments)]
        return build(shuffled(), callbacks=savers, loggers=RemoteUploaderDownloader("faulty://bucket"))

    with pytest.raises(ValueError, match=r"the uploaded checkpoints of .*remote_file_name="):
        make()
    with pytest.raises(ValueError, match="the uploaded link of"):
        make(remote_file_name="b/{batch}.pt")
    make(remote_file_name="b/{batch}.pt", latest_remote_file_name="b/latest").close()
    make(remote_file_name=None, latest_remote_file_name=None).close()


def test_a_link_that_would_replace_checkpoints(tmp_path) -> None:
    for filename in ("newest.pt", "ba{batch}.pt"):
        latest = filename.replace("{batch}", "0")
        with pytest.raises(ValueError, match=rf"latest_filename='{latest}' can also be the name of a checkpoint"):
            build(shuffled(), save_folder=str(tmp_path), save_filename=filename, save_latest_filename=latest)


def test_a_password_is_neither_shown_nor_saved() -> None:
    savers = [CheckpointSaver("memory://ann:secret@host/run") for _ in range(2)]
    with pytest.raises(ValueError, match=r"CheckpointSaver\('memory://host/run'") as caught:
        build(shuffled(), callbacks=savers)
    assert "Change the folder or the names of one of them" in str(caught.value)
    for folder in ("memory://ann:secret@host/run", "memory://ann:secret@host"):
        assert "secret" not in str(CheckpointSaver(folder).state_dict())


# ------------------------------------------------------------------------------------------------- the best

SCORES = [0.5, 0.9, 0.1, 0.8]


class Fixed(Metric):
    """Finds what the test says, evaluation by evaluation, whatever the model returns."""

    full_state_update = False
    number = 0

    def update(self, outputs, target) -> None:
        pass

    def compute(self):
        Fixed.number += 1
        return torch.tensor(SCORES[Fixed.number - 1])


class Weights(Callback):
    """Keeps the weights after each batch."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []

    def batch_end(self, state, logger) -> None:
        self.found.append(torch.cat([full(p).detach().flatten().clone() for p in state.model.parameters()]))


def scored(saver: CheckpointSaver | list[CheckpointSaver], *more: Callback, **arguments: Any) -> Trainer:
    Fixed.number = 0
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ComposerClassifier(nn.Linear(4, 3), num_classes=3, val_metrics=Fixed())
    savers = saver if isinstance(saver, list) else [saver]
    given = {"eval_interval": "1ba", "max_duration": "4ba", "run_name": "night", **arguments}
    return trainer_of(
        model=model, data=labeled_data(), callbacks=[*more, *savers], eval_dataloader=labeled_data(1), **given
    )


def keeping(folder: Any, **arguments: Any) -> CheckpointSaver:
    given = {"monitor": "eval/Fixed", "mode": "max", "keep_best": 1, "save_interval": "1ba", **arguments}
    return CheckpointSaver(folder, **given)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("where", ["here", "faulty"])
def test_best_checkpoint_is_kept_and_loaded(where, asynchronous, tmp_path, faulty) -> None:
    folder = str(tmp_path) if where == "here" else "faulty://bucket/best"
    saver, seen = keeping(folder, asynchronous=asynchronous), Weights()
    assert saver.best_checkpoint is None
    run = scored(saver, seen)
    run.fit()
    assert [path.rpartition("/")[2] for path in saver.saved_checkpoints] == ["ep0-ba2-rank0.pt", "ep0-ba4-rank0.pt"]
    path, value = saver.best_checkpoint or ("", 0.0)
    assert path == f"{folder}/ep0-ba2-rank0.pt"
    assert value == pytest.approx(0.9)
    timestamp = run.state.timestamp
    assert run.load_best() == (path, value)
    assert torch.equal(weights(run), seen.found[1])
    assert run.state.timestamp == timestamp
    run.close()
    with pytest.raises(RuntimeError, match="closed"):
        run.load_best()


def test_best_checkpoint_of_an_earlier_process(tmp_path) -> None:
    scored(keeping(tmp_path), max_duration="3ba").fit()
    Fixed.number = 3
    saver = keeping(tmp_path)
    run = scored(saver, load_path=str(tmp_path / "latest-rank0.pt"))
    assert saver.best_checkpoint == (str(tmp_path / "ep0-ba2-rank0.pt"), pytest.approx(0.9))
    run.fit()
    assert saver.best_checkpoint == (str(tmp_path / "ep0-ba2-rank0.pt"), pytest.approx(0.9))


def test_keep_every_nth_only(tmp_path) -> None:
    saver = CheckpointSaver(tmp_path, save_interval="1ba", keep_every=2, latest_filename=None)
    scored(saver).fit()
    assert listed(tmp_path) == ["ep0-ba1-rank0.pt", "ep0-ba3-rank0.pt", "ep0-ba4-rank0.pt"]


def test_averages_are_restored_with_the_weights(tmp_path) -> None:
    """The value is theirs: an evaluation after the loading uses them again."""
    averages: list[torch.Tensor] = []
    seen = At("eval_batch_start", lambda state: averages.append(weights_in(state)))
    run = scored(keeping(tmp_path), seen, algorithms=EMA(half_life="1ba"))
    run.fit()
    run.load_best()
    Fixed.number = 0
    run.eval()
    assert torch.equal(averages[-1], averages[1])
    assert not torch.equal(averages[-1], averages[3])


def weights_in(state: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in state.model.parameters()])


def test_best_weights_only_checkpoint_reports_missing_state(tmp_path) -> None:
    run = scored(keeping(tmp_path, weights_only=True, filename="{batch}.pt"), algorithms=EMA(half_life="1ba"))
    run.fit()
    with pytest.warns(ComposerWarning, match="only weights; the state of EMA"):
        run.load_best()


def test_load_best_requirements(tmp_path) -> None:
    run = trainer_of(callbacks=CheckpointSaver(tmp_path / "a"))
    run.fit()
    with pytest.raises(ValueError, match="callbacks=CheckpointSaver"):
        run.load_best()
    run = scored(keeping(tmp_path / "b"))
    with pytest.raises(ValueError, match="no checkpoint has a value of 'eval/Fixed'"):
        run.load_best()


def test_multiple_best_checkpoints(tmp_path) -> None:
    other = CheckpointSaver(tmp_path / "b", monitor="eval/MulticlassAccuracy", mode="max", keep_best=1)
    model = classifier()
    run = trainer_of(
        model=model, data=labeled_data(), eval_dataloader=labeled_data(1), max_duration="2ep",
        callbacks=[keeping(tmp_path / "a", monitor="eval/CrossEntropy", mode="min"), other],
    )  # fmt: skip
    run.fit()
    with pytest.raises(ValueError, match="choose one with monitor="):
        run.load_best()
    assert run.load_best("eval/MulticlassAccuracy") == other.best_checkpoint
    with pytest.raises(ValueError, match="Did you mean 'eval/CrossEntropy'"):
        run.load_best("eval/CrossEntropi")


def best_of(folder: str, how: str) -> tuple[str, float, bool]:
    arguments: dict[str, Any] = {}
    if how != "ddp":
        arguments["parallelism_config"] = {"fsdp": {"state_dict_type": how}}
    seen = Weights()
    with scored(keeping(folder, asynchronous=True), seen, **arguments) as run:
        run.fit()
        best = run.load_best()
        found = torch.cat([full(p).detach().flatten() for p in run.state.model.parameters()])
    dist.barrier()
    return Path(best.path).name, best.value, torch.equal(found, seen.found[1])


@pytest.mark.parametrize("how", ["ddp", "full", "sharded"])
def test_multiple_ranks(how, tmp_path, two_ranks) -> None:
    for name, value, same in two_ranks.run(best_of, str(tmp_path), how):
        assert name == ("ep0-ba2" if how == "sharded" else "ep0-ba2-rank0.pt")
        assert value == pytest.approx(0.9)
        assert same
