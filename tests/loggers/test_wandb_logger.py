from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from composer._lazy import MissingConditionalImportError
from composer.loggers import WandBLogger
from tests.common import Received, trainer_of
from tests.loggers.loop import Loop
from tests.loggers.trackers import WandBFile, as_rank, interrupt, marks, resume_with, series

pytestmark = marks("wandb")


def disabled() -> WandBLogger:
    import wandb

    wandb.init(mode="disabled").finish()  # the first one starts threads that stay
    return WandBLogger(init_kwargs={"mode": "disabled"})


CASE = {"make": disabled, "marks": pytestmark}


def offline(folder: Path, **arguments) -> WandBLogger:
    import wandb

    settings = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True)
    kwargs = {"dir": str(folder), "settings": settings, **arguments.pop("init_kwargs", {})}
    return WandBLogger(**{"project": "vision", "init_kwargs": kwargs, **arguments})


def finish(loop: Loop, logger: WandBLogger, folder: Path) -> WandBFile:
    run_id = logger.run.id
    loop.close()
    assert logger.run is None
    return WandBFile(folder, run_id)


def test_project_entity_url_and_folder_are_attributes(tmp_path) -> None:
    logger = offline(tmp_path, entity="team")
    assert (logger.project, logger.entity, logger.run_url, logger.run_dir) == ("vision", "team", None, None)
    loop = Loop([logger]).init().fit()
    found = (logger.project, logger.entity, logger.run_url, logger.run_dir)
    assert found == ("vision", "team", logger.run.url, logger.run.dir)
    loop.close()
    assert (logger.project, logger.entity, logger.run_url, logger.run_dir) == found
    logger.run_url = "https://example.org"  # scripts set it


def test_without_a_trainer_and_without_close(tmp_path) -> None:
    """What was logged after ``init`` is delivered, although no further event is fired."""
    logger = offline(tmp_path)
    loop = Loop([logger])
    logger.init(loop.state, loop.logger)
    logger.log_metrics({"a": torch.tensor(0.5)}, 3)
    logger.post_close()
    written = WandBFile(tmp_path, Path(logger.run_dir).parent.name.rpartition("-")[2])
    assert series(written.rows, "a") == [(3, 0.5)]


def test_everything_is_in_the_file(tmp_path) -> None:
    logger = offline(tmp_path, name="night", group="g", tags="a", entity="team")
    loop = Loop([logger])
    loop.logger.log_hyperparameters({"seed": 1, "model": {"depth": 2}, "kind": torch.float32})
    loop.init().fit()
    loop.logger.log_hyperparameters({"seed": 2})
    loop.logger.log_traces({"trace": 1})
    loop.logger.log_metrics({"nan": float("nan"), "word": "a", "none": None})
    loop.logger.log_table(["a", "b"], [[1, "x"], [torch.tensor(2.5), None], ["mixed", True]], name="T")
    written = finish(loop, logger, tmp_path)

    rows = written.rows
    assert series(rows, "loss/train/total") == [(k, pytest.approx(1 / (k + 1))) for k in range(8)]
    assert series(rows, "time/batch") == [(k, k) for k in range(8)]
    assert series(rows, "metrics/eval/Accuracy") == [(4, 0.5), (8, 0.5)]
    assert rows[8]["nan"] == "NaN"
    assert rows[8]["word"] == "a"
    assert rows[8]["trace"] == 1
    assert {name: written.config[name] for name in ("seed", "model", "kind")} == {
        "seed": 2,
        "model": {"depth": 2},
        "kind": "torch.float32",
    }
    (run,) = written.all("run")
    assert (run.project, run.entity, run.run_group, run.display_name, list(run.tags)) == (
        "vision",
        "team",
        "g",
        "night",
        ["a"],
    )
    assert rows[8]["T._type"] == "table-file"
    table = written.path / "files" / rows[8]["T.path"]
    content = json.loads(table.read_text())
    assert (content["columns"], content["data"]) == (["a", "b"], [[1, "x"], [2.5, None], ["mixed", True]])
    assert written.all("exit")[0].exit_code == 0


def test_images_with_masks(tmp_path) -> None:
    logger = offline(tmp_path)
    loop = Loop([logger]).init()
    loop.fire("fit_start")
    image = torch.zeros(1, 3, 4, 5)
    image[0, 0] = 1.0
    mask = torch.ones(1, 4, 5).long()
    labels = {1: "cat"}
    loop.logger.log_images(image, "seen", step=3, masks={"truth": mask}, mask_class_labels=labels, use_table=False)
    loop.logger.log_images(image, "listed", step=4)
    written = finish(loop, logger, tmp_path)
    files = written.path / "files"

    row = written.rows[3]
    assert (row["seen._type"], row["seen.width"], row["seen.height"]) == ("images/separated", 5, 4)
    (path,) = row["seen.filenames"]
    with Image.open(files / path) as picture:
        assert picture.size == (5, 4)
        assert picture.getpixel((0, 0)) == (255, 0, 0)
    (masks,) = row["seen.all_masks"]
    with Image.open(files / masks["truth"]["path"]) as picture:
        assert picture.getpixel((4, 3)) == 1
    assert '"cat"' in str(written.config) or any("cat" in str(item) for item in written.all("config"))
    assert written.rows[4]["listed._type"] == "table-file"
    assert written.rows[4]["listed.nrows"] == 1


def test_tables_and_images_do_not_displace_queued_metrics(tmp_path) -> None:
    """A row is closed by a later step, so queued metrics must be sent first."""
    logger = offline(tmp_path)
    loop = Loop([logger], "1000ba", length=1000).init()
    loop.fire("fit_start")
    loop.logger.deferred = True
    for _ in range(7):
        loop.batch()
    loop.logger.log_table(["a"], [[1]], name="T")
    for _ in range(3):
        loop.batch()
    assert len(series(finish(loop, logger, tmp_path).rows, "loss/train/total")) == 10


@pytest.mark.parametrize(("error", "code"), [(ValueError(), 1), (KeyboardInterrupt(), 1), (SystemExit(0), 0)])
def test_exit_code(tmp_path, error, code) -> None:
    logger = offline(tmp_path)
    loop = Loop([logger]).init()
    loop.fire("after_load")
    run_id = logger.run.id
    interrupt(loop, error)
    assert WandBFile(tmp_path, run_id).all("exit")[0].exit_code == code


def test_resumes_the_run_of_the_checkpoint(tmp_path) -> None:
    first, second = offline(tmp_path / "1"), offline(tmp_path / "2")
    loop = resume_with(first, second)
    state = second.state_dict()
    written = finish(loop, second, tmp_path / "2")
    (old,) = (tmp_path / "1" / "wandb").glob("offline-run-*")
    assert old.name.endswith(f"-{state['id']}")
    assert state["project"] == "vision"
    assert written.all("run")[0].run_id == state["id"]


@pytest.mark.parametrize("case", ["another name", "another project", "an id", "resume"])
def test_begins_a_new_run(tmp_path, case) -> None:
    first = offline(tmp_path / "1")
    kwargs = {"an id": {"id": "mine"}, "resume": {"resume": "never"}}.get(case, {})
    project = "audio" if case == "another project" else "vision"
    second = offline(tmp_path / "2", project=project, init_kwargs=kwargs)
    loop = resume_with(first, second, run_name="other" if case == "another name" else "test")
    run_id = second.run.id
    finish(loop, second, tmp_path / "2")
    assert not list((tmp_path / "1" / "wandb").glob(f"*-{run_id}"))
    assert run_id == "mine" or case != "an id"


def test_files_are_artifacts(tmp_path) -> None:
    logger = offline(tmp_path, log_artifacts=True)
    assert logger.can_upload_files()
    loop = Loop([logger], "3ba").init()
    loop.logger.upload_file("first.txt", _file(tmp_path / "early.txt"))  # before the run begins
    loop.fit()
    path = _file(tmp_path / "ep1.pt")
    loop.logger.upload_file("{run_name}/checkpoints/ep0-ba3 (best).pt", path)
    path.unlink()  # retention does not wait for the upload
    loop.logger.upload_file("sharded", _file(tmp_path / "folder" / "a" / "shard").parent.parent)
    written = finish(loop, logger, tmp_path)

    artifacts = {artifact.name: artifact for artifact in written.all("artifact")}
    model = artifacts["test.checkpoints.ep0-ba3..best..pt"]
    assert model.type == "model"
    assert set(model.aliases) == {"latest", "ep0-ba3"}
    assert '"timestamp/batch":3' in model.metadata.replace(" ", "")
    assert artifacts["first.txt"].type == "txt"
    assert [entry.path for entry in artifacts["sharded"].manifest.contents] == ["a/shard"]


def test_files_are_stored_only_if_enabled(tmp_path) -> None:
    logger = disabled()
    assert not logger.can_upload_files()
    loop = Loop([logger]).init()
    loop.logger.upload_file("x", tmp_path / "missing")
    loop.close()


def test_download(tmp_path, monkeypatch) -> None:
    import wandb

    requested = []

    class Api:
        def artifact(self, name: str):
            requested.append(name)
            if "missing" in name:
                raise wandb.errors.CommError("no such artifact")
            return self

        def download(self, root: str) -> None:
            _file(Path(root) / "ep1.pt")

    monkeypatch.setattr(wandb, "Api", Api)
    logger = WandBLogger("vision", entity="team")
    target = tmp_path / "deep" / "model.pt"
    logger.download_file("night/ep1.pt", str(target))
    assert target.read_text() == "content"
    assert requested == ["team/vision/night.ep1.pt:latest"]
    with pytest.raises(FileExistsError, match="pass overwrite=True"):
        logger.download_file("night/ep1.pt", str(target))
    logger.download_file("night/ep1.pt:v3", str(target), overwrite=True)
    assert requested[-1] == "team/vision/night.ep1.pt:v3"
    with pytest.raises(FileNotFoundError, match=r"The artifact 'team/vision/missing:latest' does not exist"):
        logger.download_file("missing", str(tmp_path / "x"))
    assert sorted(path.name for path in target.parent.iterdir()) == ["model.pt"]


def test_arguments_come_before_init_kwargs() -> None:
    kwargs = {"project": "other", "notes": "n", "mode": "disabled"}
    logger = WandBLogger(project="mine", init_kwargs=kwargs)
    Loop([logger]).init().fit().close()
    assert kwargs == {"project": "other", "notes": "n", "mode": "disabled"}
    assert logger._init_kwargs == {"project": "mine", "notes": "n", "mode": "disabled"}


def test_each_rank_may_have_a_run(tmp_path, monkeypatch) -> None:
    as_rank(monkeypatch, 1)
    logger = offline(tmp_path, rank_zero_only=False)
    written = finish(Loop([logger]).init().fit(), logger, tmp_path)
    (run,) = written.all("run")
    assert (run.display_name, run.run_group) == ("test-rank1", "test")
    other = offline(tmp_path / "none")
    loop = Loop([other]).init().fit()
    assert other.run is None
    assert other.state_dict() == {}
    loop.close()
    assert not (tmp_path / "none").exists()


def test_the_axis_is_that_of_the_trainer(tmp_path) -> None:
    logger, received = offline(tmp_path), Received()
    trainer = trainer_of(loggers=[logger, received], max_duration="3ep", run_name="axis")
    run_id = logger.run.id
    trainer.fit()
    trainer.close()
    written = WandBFile(tmp_path, run_id)
    assert series(written.rows, "loss/train/total") == received.series("loss/train/total")
    assert written.config["rank_zero_seed"] == trainer.state.rank_zero_seed
    assert written.all("run")[0].display_name == "axis"


def test_a_wandb_error_stops_the_setup(monkeypatch) -> None:
    import wandb

    def refuse(**kwargs):
        raise wandb.errors.CommError("no such entity")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(wandb.errors.CommError, match="no such entity"):
        trainer_of(loggers=WandBLogger(entity="nobody"))


def test_missing_package(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingConditionalImportError, match=r"pip install 'composer-torch\[wandb\]'"):
        WandBLogger()


def _file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("content")
    return path
