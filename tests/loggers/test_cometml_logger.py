from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from composer._lazy import MissingConditionalImportError
from composer.loggers import CometMLLogger
from tests.common import Received, trainer_of
from tests.loggers.loop import Loop
from tests.loggers.trackers import CometArchive, as_rank, interrupt, marks, resume_with

pytestmark = marks("comet_ml", "`sentry_sdk.Hub` is deprecated", "The default datetime adapter is deprecated")

OFFLINE = {
    "online": False,
    "display_summary_level": 0,
    "log_env_details": False,
    "log_git_metadata": False,
    "log_git_patch": False,
    "auto_output_logging": False,
    "parse_args": False,
}


def disabled() -> CometMLLogger:
    return CometMLLogger(exp_kwargs={**OFFLINE, "disabled": True})


CASE = {"make": disabled, "marks": pytestmark}


def offline(folder: Path, **arguments) -> CometMLLogger:
    kwargs = {**OFFLINE, "offline_directory": str(folder), **arguments.pop("exp_kwargs", {})}
    return CometMLLogger("team", "vision", exp_kwargs=kwargs, **arguments)


def finish(loop: Loop, logger: CometMLLogger, folder: Path) -> CometArchive:
    key = logger.experiment.get_key()
    loop.close()
    assert logger.experiment is None
    return CometArchive(folder, key)


def test_everything_is_in_the_archive(tmp_path) -> None:
    logger = offline(tmp_path, name="night", log_artifacts=True, exp_kwargs={"tags": ["a"]})
    loop = Loop([logger])
    loop.logger.log_hyperparameters({"seed": 1, "model": {"depth": 2}, "kind": torch.float32})
    path = tmp_path / "local.pt"
    path.write_text("weights")
    loop.logger.upload_file("{run_name}/ep1.pt", path)  # before the run begins
    path.unlink()
    loop.init().fit()
    loop.logger.log_traces({"trace": 1})
    loop.logger.log_metrics({"word": "a", "none": None, "matrix": torch.eye(2), "nan": float("nan")})
    loop.logger.log_table(["a", "b"], [[1, "x"], [torch.tensor(2.5), "y, z"]], name="T", step=7)
    image = torch.zeros(1, 3, 4, 5)
    image[0, 0] = 1.0
    loop.logger.log_images(image, "seen", step=3, masks={"truth": torch.ones(1, 4, 5).long()})
    loop.logger.log_images(torch.ones(4, 5), "grey")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "shard").write_text("x")
    loop.logger.upload_file("sharded/ep1", tmp_path / "folder")
    assert logger.can_upload_files()
    found = finish(loop, logger, tmp_path)

    assert found.others["Name"] == "night"
    assert (found.experiment["workspace"], found.experiment["project_name"]) == ("team", "vision")
    assert found.parameters == {"seed": 1, "model/depth": 2, "kind": "torch.float32"}
    assert found.history("loss/train/total") == [(k, pytest.approx(1 / (k + 1))) for k in range(8)]
    assert found.history("metrics/eval/Accuracy") == [(4, 0.5), (8, 0.5)]
    assert found.history("trace") == [(8, 1)]
    assert found.history("nan") == [(8, "NaN")]
    assert all(found.history(name) == [] for name in ("word", "none", "matrix"))
    assert found.files["T_7.csv"].decode().split() == ["a,b", "1,x", '2.5,"y,', 'z"']
    assert found.files["test/ep1.pt"] == b"weights"
    assert found.files["sharded/ep1/shard"] == b"x"
    colors = {}
    for name in ("seen/0", "seen/0/truth", "grey/0"):
        with Image.open(io.BytesIO(found.files[name])) as picture:
            colors[name] = picture.convert("RGB").getpixel((0, 0))
            assert picture.size == (5, 4)
    assert colors["seen/0"] == (255, 0, 0)
    assert colors["seen/0/truth"] != (255, 0, 0)
    assert colors["grey/0"] == (255, 255, 255)
    assert logger._staging._folder is None


def test_resumes_the_experiment_of_the_checkpoint(tmp_path) -> None:
    first, second = offline(tmp_path / "1"), offline(tmp_path / "2")
    loop = resume_with(first, second)
    key = second.state_dict()["key"]
    loop.logger.log_metrics({"x": 1.0}, step=50)
    loop.close()
    assert len(CometArchive(tmp_path / "1", key).history("loss/train/total")) == 8
    again = CometArchive(tmp_path / "2", key)
    assert again.history("x") == [(50, 1.0)]
    assert again.experiment["resume_strategy"] == "get"


def test_another_name_begins_another_experiment(tmp_path) -> None:
    first, second = disabled(), disabled()
    loop = resume_with(first, second, run_name="other")
    assert first._key != second._key
    loop.close()
    first, second = disabled(), CometMLLogger(project_name="audio", exp_kwargs={**OFFLINE, "disabled": True})
    loop = resume_with(first, second)
    assert first._key != second._key
    loop.close()


def test_an_exception_leaves_a_tag(tmp_path) -> None:
    logger = offline(tmp_path)
    loop = Loop([logger]).init()
    loop.fire("after_load")
    key = logger.experiment.get_key()
    interrupt(loop, ValueError())
    assert CometArchive(tmp_path, key).experiment["tags"] == ["failed"]


def test_the_axis_is_that_of_the_trainer(tmp_path) -> None:
    logger, received = offline(tmp_path), Received()
    trainer = trainer_of(loggers=[logger, received], max_duration="3ep", run_name="axis")
    trainer.fit()
    found = finish(trainer, logger, tmp_path)
    assert found.history("loss/train/total") == received.series("loss/train/total")
    assert found.others["Name"] == "axis"


def test_arguments_reach_comet(monkeypatch) -> None:
    import comet_ml

    seen = {}

    class Experiment:
        def set_name(self, name):
            seen["name"] = name

        def get_key(self):
            return "key"

        def end(self):
            seen["ended"] = True

    def start(experiment_config, **arguments):
        seen.update(arguments, config=experiment_config)
        return Experiment()

    monkeypatch.setattr(comet_ml, "start", start)
    as_rank(monkeypatch, 1)
    given = {"api_key": "secret", "experiment_key": "abc", "log_git_patch": False}
    logger = CometMLLogger("w", "p", log_code=True, name="n", rank_zero_only=False, exp_kwargs=given)
    loop = Loop([logger]).init()
    loop.fire("after_load")
    loop.close()
    config = seen.pop("config")
    assert seen == {
        "workspace": "w",
        "project_name": "p",
        "api_key": "secret",
        "experiment_key": "abc",
        "mode": "get_or_create",
        "name": "n-rank1",
        "ended": True,
    }
    assert (config.log_code, config.log_git_patch, config.auto_metric_logging) == (True, False, False)
    assert given == {"api_key": "secret", "experiment_key": "abc", "log_git_patch": False}


def test_download(tmp_path, monkeypatch) -> None:
    import comet_ml

    class Api:
        def __init__(self, api_key):
            assert api_key == "secret"

        def get_experiment_by_key(self, key):
            return self if key == "abc" else None

        def get_asset_list(self):
            return [{"assetId": "1", "fileName": "ep1.pt"}, {"assetId": "2", "fileName": "ep1.pt"}]

        def get_asset(self, asset_id, return_type):
            return f"content of {asset_id}".encode()

    monkeypatch.setattr(comet_ml, "API", Api)
    logger = CometMLLogger(exp_kwargs={"api_key": "secret", "experiment_key": "abc"})
    target = tmp_path / "deep" / "model.pt"
    logger.download_file("ep1.pt", str(target))
    assert target.read_text() == "content of 2"  # the newest
    with pytest.raises(FileExistsError, match="pass overwrite=True"):
        logger.download_file("ep1.pt", str(target))
    logger.download_file("ep1.pt", str(target), overwrite=True)
    with pytest.raises(FileNotFoundError, match="The experiment abc has no asset 'missing'"):
        logger.download_file("missing", str(tmp_path / "x"))
    other = CometMLLogger(exp_kwargs={"api_key": "secret", "experiment_key": "gone"})
    with pytest.raises(FileNotFoundError, match="The experiment 'gone' does not exist"):
        other.download_file("ep1.pt", str(tmp_path / "x"))
    with pytest.raises(RuntimeError, match="has no experiment yet"):
        CometMLLogger().download_file("x", str(tmp_path / "x"))


def test_unknown_arguments() -> None:
    with pytest.raises(ValueError, match=r"exp_kwargs must be one of .* Did you mean 'log_git_patch'\?"):
        CometMLLogger(exp_kwargs={"log_git_pach": False})


def test_missing_package(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "comet_ml", None)
    with pytest.raises(MissingConditionalImportError, match=r"pip install 'composer-torch\[comet\]'"):
        CometMLLogger()
