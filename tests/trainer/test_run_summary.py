"""The summary table at the end of training."""

from __future__ import annotations

import io
import re

import pytest
import torch

from composer import Callback
from composer.loggers._layout import cell_len
from composer.trainer.run_summary import Summary
from tests.common import Regression, classifier, labeled_data, regression_data, trainer_of


def lines_printed(**arguments) -> list[str]:
    stream = io.StringIO()
    arguments = {"console_stream": stream, "log_to_console": True, "console_log_interval": "1000ba", **arguments}
    trainer_of(**arguments).fit()
    lines = stream.getvalue().splitlines()
    begin = next((place for place, line in enumerate(lines) if line.startswith("trained ")), len(lines))
    return lines[begin:]


def test_reports_amounts_and_speed() -> None:
    assert re.fullmatch(
        r"trained 2 epochs, 8 batches, 16 samples in \d+\.\d s, [\d,]+ samples/s", lines_printed(max_duration="2ep")[0]
    )
    assert lines_printed(max_duration="1ba")[0].startswith("trained 1 batch, 2 samples in ")


def test_reports_only_what_this_fit_did() -> None:
    stream = io.StringIO()
    trainer = trainer_of(console_stream=stream, log_to_console=True, max_duration="1ep")
    trainer.fit()
    stream.truncate(0)
    trainer.fit(duration="3ba")
    assert "trained 3 batches, 6 samples in " in stream.getvalue()


def test_reports_the_best_by_metric_direction() -> None:
    lines = lines_printed(
        model=classifier(),
        data=labeled_data(),
        eval_dataloader=labeled_data(2, seed=2),
        eval_interval="1ba",
        max_duration="4ba",
    )
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:]}
    assert list(rows) == ["loss/train", "train/MulticlassAccuracy", "eval/CrossEntropy", "eval/MulticlassAccuracy"]
    assert rows["eval/CrossEntropy"][2:4] == ["at", "batch"]
    assert float(rows["eval/CrossEntropy"][1]) <= float(rows["eval/CrossEntropy"][0])
    assert float(rows["eval/MulticlassAccuracy"][1]) >= float(rows["eval/MulticlassAccuracy"][0])
    assert len(rows["loss/train"]) == 1


def test_reports_output_paths(tmp_path) -> None:
    class Keeper(Callback):
        __location__ = "s3://bucket/here"

    lines = lines_printed(callbacks=Keeper(), save_folder=str(tmp_path))
    assert lines[-2].split() == ["Keeper", "s3://bucket/here"]
    assert lines[-1].split() == ["CheckpointSaver", str(tmp_path / "ep1-ba4-rank0.pt")]


def test_a_quiet_trainer_reports_nothing(capfd) -> None:
    trainer_of().fit()
    assert "trained" not in "".join(capfd.readouterr())


def test_non_numeric_values_are_omitted() -> None:
    trainer = trainer_of(Regression(metrics=True), regression_data())
    summary = Summary(trainer.state.timestamp)
    summary.record(1, {"metrics/eval/Confusion": torch.ones(2, 2), "metrics/eval/Custom": 0.5})
    summary.record(2, {"metrics/eval/Custom": 0.25})
    trainer.fit()
    assert [line.split() for line in summary.text(trainer._run).splitlines()[3:]][-1] == ["eval/Custom", "0.2500"]


class Named:
    """Values of evaluations with a long label, a long metric and wide characters."""

    names = ("b/Acc", f"validation_{'x' * 40}/Accuracy", f"b/{'long_' * 12}F1", "データ/精度")


@pytest.mark.parametrize("width", [40, 60, 80, 200, None])
def test_columns_stay_aligned_in_a_narrow_terminal(width: int | None) -> None:
    trainer = trainer_of()
    summary = Summary(trainer.state.timestamp)
    for batch, value in ((10, 0.25), (200_000, 0.125)):
        summary.record(batch, {f"metrics/{name}": value for name in Named.names})
    work, *rows = summary.text(trainer._run, width).split("\n")
    rows = rows[next(place for place, row in enumerate(rows) if row.split()[:1] == ["last"]) :]
    assert work.startswith("trained ")
    head, *rows = rows
    if width is not None:
        assert all(cell_len(row) <= width for row in (head, *rows))
    assert len(rows) == len(Named.names)
    ends = {cell_len(row[: row.rindex("0.1250") + 6]) for row in rows if "0.1250" in row}
    assert ends == {head.index("last") + 4}
    assert all("0.1250" in row for row in rows)


def test_files_are_named_in_full(tmp_path) -> None:
    class KeeperOfCheckpointsWithALongName(Callback):
        __location__ = f"s3://bucket/{'folder/' * 20}here"

    trainer = trainer_of(callbacks=KeeperOfCheckpointsWithALongName())
    text = Summary(trainer.state.timestamp).text(trainer._run, 60)
    assert KeeperOfCheckpointsWithALongName.__location__ in text


def test_control_characters_of_names_do_not_reach_the_terminal() -> None:
    class Named(Regression):
        def loss(self, outputs, batch):
            loss = super().loss(outputs, batch)
            return {"total": loss, "\x1b[31mred": loss.detach(), "two\nlines": loss.detach()}

    stream = io.StringIO()
    trainer_of(Named(), console_stream=stream, log_to_console=True, max_duration="1ba").fit()
    assert "\x1b" not in stream.getvalue()
    assert r"  loss/train/\x1b[31mred" in stream.getvalue()
    assert r" Train loss/train/two\nlines: " in stream.getvalue()
