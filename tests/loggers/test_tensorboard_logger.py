from __future__ import annotations

import io
import time

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from composer import _lazy, dist
from composer.core import Logger, State
from composer.core.timestamp import Timestamp
from composer.loggers import TensorboardLogger
from composer.loggers._images import overlay_mask
from tests.common import Regression, regression_data, trainer_of
from tests.loggers.files import Uploads, in_own_folder, run
from tests.loggers.loop import Loop

CASE = {"make": in_own_folder(TensorboardLogger)}


def read(folder) -> EventAccumulator:
    """Return what TensorBoard reads of a run."""
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0}).Reload()


def series(board: EventAccumulator, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in board.Scalars(name)]


def picture(board: EventAccumulator, name: str) -> np.ndarray:
    (event,) = board.Images(name)
    return np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))


def text(board: EventAccumulator, name: str) -> str:
    (event,) = board.Tensors(f"{name}/text_summary")
    return event.tensor_proto.string_val[0].decode()


def logged(tmp_path, log) -> EventAccumulator:
    """Run ``log(logger)`` and read what it wrote."""
    loop = Loop([TensorboardLogger(str(tmp_path))]).init()
    loop.fire("after_load")
    log(loop.logger)
    loop.close()
    return read(tmp_path / "test")


def test_scalars_of_a_run(tmp_path) -> None:
    run(TensorboardLogger(str(tmp_path))).close()
    board = read(tmp_path / "test")
    losses = series(board, "loss/train/total")
    assert [step for step, _ in losses] == list(range(8))
    assert [value for _, value in losses] == pytest.approx([1 / (k + 1) for k in range(8)])
    assert series(board, "metrics/eval/Accuracy") == [(4, 0.5), (8, 0.5)]


def test_non_numeric_values_are_dropped(tmp_path) -> None:
    values = {"word": "a", "none": None, "matrix": torch.eye(2), "flag": True, "one": np.array([2.0])}
    board = logged(tmp_path, lambda logger: logger.log_metrics(values, step=3))
    assert sorted(board.Tags()["scalars"]) == ["flag", "one"]
    assert series(board, "one") == [(3, 2.0)]


def test_the_wall_clock_is_that_of_logging(tmp_path) -> None:
    state = State(torch.nn.Linear(1, 1), run_name="run")
    board = TensorboardLogger(str(tmp_path))
    logger = Logger(state, board)
    board.init(state, logger)
    state.timestamp = Timestamp(batch=10, total_wct=100.0)
    board.__receive__({"x": 1.0}, 2, Timestamp(batch=2, total_wct=40.0))
    board.__receive__({"x": 2.0}, 10, state.timestamp)
    now = time.time()
    board.close(state, logger)
    first, second = read(tmp_path / "run").Scalars("x")
    assert second.wall_time - first.wall_time == pytest.approx(60, abs=1)
    assert second.wall_time == pytest.approx(now, abs=5)


def test_hyperparameters_are_shown_with_the_metrics(tmp_path) -> None:
    loop = Loop([TensorboardLogger(str(tmp_path))])
    loop.init()
    loop.logger.log_hyperparameters(
        {"lr": 0.1, "model": {"depth": 2}, "name": "net", "flag": True, "none": None, "dtype": torch.float32}
    )
    loop.fit().close()
    assert [path.name for path in tmp_path.iterdir()] == ["test"]  # no run of their own
    metadata = read(tmp_path / "test").PluginTagToContent("hparams")
    start = HParamsPluginData.FromString(metadata["_hparams_/session_start_info"]).session_start_info
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert values == {
        "lr": 0.1,
        "model/depth": 2,
        "name": "net",
        "flag": "True",
        "none": "None",
        "dtype": "torch.float32",
    }
    experiment = HParamsPluginData.FromString(metadata["_hparams_/experiment"]).experiment
    shown = {info.name.tag for info in experiment.metric_infos}
    assert shown == {"loss/train/total", "time/batch", "metrics/eval/Accuracy"}
    assert {info.name for info in experiment.hparam_infos} == set(values)


def test_a_table_is_text(tmp_path) -> None:
    board = logged(tmp_path, lambda logger: logger.log_table(["a", "b"], [[1, "x|y"], [0.5, None]], "T", step=2))
    assert text(board, "T") == "| a | b |\n| --- | --- |\n| 1 | x\\|y |\n| 0.5000 | None |"


def test_images_of_one_size_are_one_picture(tmp_path) -> None:
    images = torch.rand(2, 3, 4, 5)
    board = logged(tmp_path, lambda logger: logger.log_images(images, "I", step=2))
    found = picture(board, "I")
    expected = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(found[:4], np.concatenate(list(expected), axis=1))
    assert board.Images("I")[0].step == 2


def test_images_of_several_sizes(tmp_path) -> None:
    images = [torch.zeros(1, 4, 4), torch.ones(2, 2)]
    board = logged(tmp_path, lambda logger: logger.log_images(images, "I"))
    np.testing.assert_array_equal(picture(board, "I/0"), np.zeros((4, 4, 3)))
    np.testing.assert_array_equal(picture(board, "I/1"), np.full((2, 2, 3), 255))


def test_masks_are_overlaid_on_images(tmp_path) -> None:
    image, mask = torch.rand(3, 4, 4), torch.tensor([[0, 1], [2, 0]]).repeat_interleave(2, 0).repeat_interleave(2, 1)

    def log(logger) -> None:
        logger.log_images(image, "I", masks={"m": mask}, mask_class_labels={1: "cat", 2: "dog"}, use_table=True)

    board = logged(tmp_path, log)
    plain = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(picture(board, "I"), plain)
    np.testing.assert_array_equal(picture(board, "I/m"), overlay_mask(plain, mask.numpy()))
    assert "| 1 | cat | #f23d3d |" in text(board, "I/classes")


def test_a_resumed_run_hides_values_after_the_checkpoint(tmp_path) -> None:
    first = TensorboardLogger(str(tmp_path))
    loop = run(first, max_duration="7ba", eval_every=1)
    saved = first.state_dict()
    loop.close()
    time.sleep(1.0)  # TensorBoard reads files in the order of their names, which tell the second
    second = TensorboardLogger(str(tmp_path))
    other = Loop([second], "8ba").init()
    second.load_state_dict(saved)
    other.state.timestamp = Timestamp(epoch=1, batch=4)
    other.fire("after_load")
    other.logger.log_metrics({"new": 1.0})
    other.close()
    board = read(tmp_path / "test")
    assert [step for step, _ in series(board, "loss/train/total")] == [0, 1, 2, 3, 4]
    assert [step for step, _ in series(board, "metrics/eval/Accuracy")] == [1, 2, 3, 4]
    assert series(board, "new") == [(4, 1.0)]


def test_another_run_of_the_name_hides_nothing(tmp_path) -> None:
    for _ in range(2):
        run(TensorboardLogger(str(tmp_path)), max_duration="2ba").close()
        time.sleep(0.01)
    assert len(list((tmp_path / "test").iterdir())) == 2
    assert {step for step, _ in series(read(tmp_path / "test"), "loss/train/total")} == {0, 1}


def test_written_at_the_interval_and_when_a_loop_fails(tmp_path) -> None:
    loop = Loop([TensorboardLogger(str(tmp_path), flush_interval=3)], "100ba", length=100).init()
    loop.fire("after_load")
    loop.logger.deferred = True
    lengths = []
    for _ in range(7):
        loop.batch()
        found = read(tmp_path / "test")
        lengths.append(len(found.Scalars("time/batch")) if "time/batch" in found.Tags()["scalars"] else 0)
    assert lengths == [0, 0, 3, 3, 3, 6, 6]
    loop.logger.flush()
    loop.logger.suspend()
    assert len(read(tmp_path / "test").Scalars("time/batch")) == 7
    loop.close()


def test_the_event_file_is_uploaded(tmp_path) -> None:
    uploads = Uploads()
    run(TensorboardLogger(str(tmp_path)), uploads).close()
    (name,) = uploads.texts
    (path,) = (tmp_path / "test").iterdir()
    assert name == f"tensorboard_logs/test/{path.name}"
    assert uploads.texts[name] == path.read_bytes().decode(errors="replace")


def test_other_ranks(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_global_rank", lambda: 1)
    board = TensorboardLogger(str(tmp_path))
    loop = run(board)
    assert not board.__due__(loop.state)
    loop.logger.log_images(torch.rand(3, 2, 2))
    loop.close()
    assert list(tmp_path.iterdir()) == []
    run(TensorboardLogger(str(tmp_path), rank_zero_only=False)).close()
    assert len(series(read(tmp_path / "test" / "rank1"), "loss/train/total")) == 8


def test_in_a_real_run(tmp_path) -> None:
    with trainer_of(
        Regression(metrics=True),
        max_duration="2ep",
        loggers=TensorboardLogger(str(tmp_path)),
        eval_dataloader=regression_data(1),
        run_name="run",
    ) as trainer:
        trainer.fit()
    board = read(tmp_path / "run")
    assert [step for step, _ in series(board, "loss/train/total")] == list(range(8))
    assert [step for step, _ in series(board, "metrics/eval/MeanSquaredError")] == [4, 8]
    assert "_hparams_/session_start_info" in board.PluginTagToContent("hparams")


def test_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TensorboardLogger().log_dir == "tensorboard_logs"
    with pytest.raises(ValueError, match="flush_interval must be greater than 0"):
        TensorboardLogger(flush_interval=0)

    def missing(name: str):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(_lazy.importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"TensorboardLogger needs .* pip install 'composer-torch\[tensorboard\]'"):
        TensorboardLogger()
