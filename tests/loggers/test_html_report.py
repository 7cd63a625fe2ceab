from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Callback
from composer.loggers import HTMLReport, JSONLinesLogger
from tests.common import Regression, regression_data, trainer_of
from tests.loggers.files import in_own_folder, run

pytest.importorskip("plotly")

CASE = {"make": in_own_folder(lambda folder: HTMLReport(f"{folder}/report.html"))}


class Break(Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == 6:
            raise self.error


def train(folder: Path, *callbacks: Callback, loggers: Any = (), **arguments: Any) -> Any:
    return trainer_of(
        Regression(metrics=True),
        max_duration="2ep",
        eval_dataloader=regression_data(1),
        callbacks=list(callbacks),
        loggers=[HTMLReport(f"{folder}/{{run_name}}.html"), *loggers],
        run_name="night",
        **arguments,
    )


def test_the_page_of_a_run(tmp_path: Path) -> None:
    trainer = train(tmp_path)
    trainer.fit()
    page = (tmp_path / "night.html").read_text(encoding="utf-8")
    assert "Finished after 8 steps, 2 epochs" in page
    for text in (
        "loss/train/total",
        "eval/MeanSquaredError",
        "rank_zero_seed",
        torch.__version__,
        "Regression: 5 param",
    ):
        assert text in page
    trainer.logger.log_table(["prompt"], [["once upon a time"]], name="texts")
    trainer.logger.log_images(torch.rand(2, 3, 600, 4), name="inputs")
    trainer.close()
    page = (tmp_path / "night.html").read_text(encoding="utf-8")
    assert "once upon a time" in page
    assert page.count('src="data:image/png;base64,') == 2
    assert [path.name for path in tmp_path.iterdir()] == ["night.html"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("no space"), "Failed after 6 steps"),
        (KeyboardInterrupt(), "Interrupted after 6 steps"),
        (SystemExit("no space"), "Failed after 6 steps"),
        (SystemExit(), "Failed after 6 steps"),
    ],
)
def test_an_exception_ends_with_a_page(tmp_path: Path, error: BaseException, told: str) -> None:
    trainer = train(tmp_path, Break(error))
    with pytest.raises(type(error)):
        trainer.fit()
    page = (tmp_path / "night.html").read_text(encoding="utf-8")  # before the trainer is closed
    assert told in page
    assert "no space" in page or not error.args
    trainer.close()


class Terminate(Callback):
    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == 6:
            signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_exits_is_no_failure(tmp_path: Path) -> None:
    trainer = train(tmp_path, Terminate(), save_folder=str(tmp_path / "saved"))
    with trainer, pytest.raises(SystemExit):
        trainer.fit()
    assert "Interrupted after 6 steps" in (tmp_path / "night.html").read_text(encoding="utf-8")


def test_a_resumed_run_replaces_its_page(tmp_path: Path) -> None:
    given: dict[str, Any] = {"save_folder": str(tmp_path / "saved"), "autoresume": True}
    log = f"{tmp_path}/log.jsonl"
    trainer = train(tmp_path, Break(RuntimeError()), loggers=[JSONLinesLogger(log)], **given)
    with trainer, pytest.raises(RuntimeError):
        trainer.fit()
    with train(tmp_path, loggers=[JSONLinesLogger(log)], **given) as trainer:
        trainer.fit()
    page = (tmp_path / "night.html").read_text(encoding="utf-8")
    assert "Finished after 8 steps, 2 epochs" in page
    assert "resumed 1 time" in page
    assert "ep2-ba8-rank0.pt" in page
    assert sorted(path.name for path in tmp_path.glob("*.html")) == ["night.html"]


class Show(Callback):
    def epoch_end(self, state: Any, logger: Any) -> None:
        step = int(state.timestamp.batch)
        logger.log_images(torch.full((1, 3, 4, 4), step / 10), name="inputs", step=step)


def test_images_before_a_resumption_stay(tmp_path: Path) -> None:
    given: dict[str, Any] = {"save_folder": str(tmp_path / "saved"), "autoresume": True}
    with train(tmp_path, Show(), Break(RuntimeError()), **given) as trainer, pytest.raises(RuntimeError):
        trainer.fit()
    with train(tmp_path, Show(), **given) as trainer:
        trainer.fit()
    page = (tmp_path / "night.html").read_text(encoding="utf-8")
    assert re.findall(r"inputs, step (\d)", page) == ["4", "8"]


def test_the_page_of_an_earlier_run_is_moved(tmp_path: Path) -> None:
    for _ in range(2):
        run(HTMLReport(f"{tmp_path}/report.html")).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.1.html", "report.html"]
    run(HTMLReport(f"{tmp_path}/report.html", overwrite=True)).close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_is_not_a_page_is_moved(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    run(HTMLReport(f"{tmp_path}/report.html", overwrite=True)).close()
    assert (tmp_path / "report.1.html").read_text() == "mine"
    given: dict[str, Any] = {"save_folder": str(tmp_path / "saved"), "autoresume": True}
    with train(tmp_path, Break(RuntimeError()), **given) as trainer, pytest.raises(RuntimeError):
        trainer.fit()
    (tmp_path / "night.html").write_text("mine")
    with train(tmp_path, **given) as trainer:
        trainer.fit()
    assert (tmp_path / "night.1.html").read_text() == "mine"
    assert "Finished after 8 steps" in (tmp_path / "night.html").read_text(encoding="utf-8")


def test_images_are_bounded(tmp_path: Path) -> None:
    report = HTMLReport(f"{tmp_path}/report.html")
    for step in range(20):
        report.log_images(torch.rand(9, 3, 256, 256), step=step)
    assert sum(len(image.png) for image in report._images) <= 1_000_000
    assert {image.step for image in report._images} <= {18, 19}
    report.log_images(torch.rand(1, 3, 4000, 2000), name="large")
    assert sum(len(image.png) for image in report._images) <= 1_000_000
