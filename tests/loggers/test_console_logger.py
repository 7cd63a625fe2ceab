from __future__ import annotations

import io

import pytest
import torch

from composer import dist
from composer.core import Time
from composer.loggers import ConsoleLogger
from tests.loggers.loop import Loop

CASE = {"make": lambda: ConsoleLogger(stream=io.StringIO(), log_traces=True)}


def printed(interval="1ba", max_duration="1ep", **options) -> str:
    stream = io.StringIO()
    Loop([ConsoleLogger(interval, stream)], max_duration, **options).init().fit().close()
    return stream.getvalue()


def test_the_format() -> None:
    assert printed("2ba") == (
        "[epoch=1][batch=1/4]:\n"
        "\t Train loss/train/total: 1.0000\n"
        "\t Train time/batch: 0\n"
        "[epoch=1][batch=2/4]:\n"
        "\t Train loss/train/total: 0.5000\n"
        "\t Train time/batch: 1\n"
        "[epoch=1][batch=4/4]:\n"
        "\t Train loss/train/total: 0.2500\n"
        "\t Train time/batch: 3\n"
        "[Eval batch=1/2] Eval on eval data\n"
        "[Eval batch=2/2] Eval on eval data:\n"
        "\t Eval metrics/eval/Accuracy: 0.5000\n"
    )


@pytest.mark.parametrize(
    ("interval", "max_duration", "titles"),
    [
        ("1ep", "3ep", ["[epoch=1][batch=4/4]:", "[epoch=2][batch=4/4]:", "[epoch=3][batch=4/4]:"]),
        (2, "3ep", ["[epoch=1][batch=4/4]:", "[epoch=2][batch=4/4]:", "[epoch=3][batch=4/4]:"]),
        (Time(5, "ba"), "6ba", ["[batch=1/6]:", "[batch=5/6]:", "[batch=6/6]:"]),
        ("3ba", "40sp", ["[sample=8/40]:", "[sample=24/40]:", "[sample=40/40]:"]),
        ("100ba", "2ep", ["[epoch=1][batch=1/4]:", "[epoch=2][batch=4/4]:"]),
    ],
)
def test_intervals(interval, max_duration, titles) -> None:
    text = printed(interval, max_duration, eval_length=0)
    assert [line for line in text.splitlines() if line.startswith("[")] == titles


def test_data_of_unknown_length() -> None:
    text = printed("2ba", "1ep", length=None, eval_length=None)
    assert [line for line in text.splitlines() if line.startswith("[")] == [
        "[epoch=1][batch=1]:",
        "[epoch=1][batch=2]:",
        "[epoch=1][batch=4]:",
        "[Eval batch=1] Eval on eval data",
        "[Eval batch=2] Eval on eval data:",
    ]


@pytest.mark.parametrize(
    ("length", "batches"),
    [(100, [1, *range(10, 100, 10)]), (3, [1, 2]), (1, []), (25, [1, 3, 5, 8, 10, 13, 15, 18, 20, 23])],
)
def test_an_evaluation_reports_each_tenth_and_its_end_once(length, batches) -> None:
    text = printed(eval_length=length).splitlines()
    assert sum(f"[Eval batch={length}/{length}]" in line for line in text) == 1
    lines = [line for line in text if line.endswith("data")]
    assert lines == [f"[Eval batch={batch}/{length}] Eval on eval data" for batch in batches]


def test_values_are_read_only_when_due() -> None:
    console = ConsoleLogger("50ba", io.StringIO())
    loop = Loop([console], "1000ba", length=1000)
    due = []
    for _ in range(120):
        loop.batch()
        due.append(console.__due__(loop.state))
    assert due == [(k + 1) % 50 == 0 for k in range(120)]
    epochs = ConsoleLogger("1ep", io.StringIO())
    assert not epochs.__due__(loop.state)


def test_hyperparameters_are_printed_once() -> None:
    stream = io.StringIO()
    loop = Loop([ConsoleLogger("1ep", stream)], "1ep").init()
    loop.logger.log_hyperparameters({"seed": 1})
    assert stream.getvalue() == ""
    loop.fit().evaluate()
    assert stream.getvalue().startswith("*" * 30 + "\nConfig:\nseed: 1\n" + "*" * 30 + "\n[epoch=1]")
    assert stream.getvalue().count("Config:") == 1


def test_tables_and_traces() -> None:
    stream = io.StringIO()
    ConsoleLogger(stream=stream).log_traces({"a": 1})
    console = ConsoleLogger(stream=stream, log_traces=True)
    console.log_traces({"a": 1})
    console.log_table(["id", "word"], [[1, "one"], [100, torch.tensor(0.5)]], name="T")
    assert stream.getvalue() == "[trace] a: 1\nT:\n\t id   word\n\t 1    one\n\t 100  0.5000\n"


def test_only_local_rank_0_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_local_rank", lambda: 1)
    assert printed() == ""


def test_the_current_stream_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    Loop([ConsoleLogger("1ep", "stdout")], "1ep").init().fit()
    captured = capsys.readouterr()
    assert captured.out.startswith("[epoch=1]")
    assert captured.err == ""


@pytest.mark.parametrize("interval", ["10sp", "0.5dur", "0ba", -1])
def test_wrong_intervals(interval) -> None:
    with pytest.raises(ValueError, match="log_interval must be"):
        ConsoleLogger(interval)
