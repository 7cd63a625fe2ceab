"""``composer compare``: what it prints, the page, groups, and errors of one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from composer.cli.main import main
from composer.loggers import CSVLogger, JSONLinesLogger
from tests.common import trainer_of
from tests.reports.group_runs import write_log

pytest.importorskip("plotly")
pytest.importorskip("scipy")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: Any) -> Path:
    for lr in (0.1, 0.4):
        for seed in (1, 2, 3):
            write_log(tmp_path, f"lr{lr}-seed{seed}", lr, seed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def names(lr: float) -> list[str]:
    return [f"lr{lr}-seed{seed}" for seed in (1, 2, 3)]


def test_tables_and_page(runs: Path, capsys: Any) -> None:
    assert main(["compare", *names(0.1), *names(0.4), "--target", "Accuracy>=0.95", "-o", "both.html"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "composer compare: wrote both.html\n"
    for text in ("lr0.4 against lr0.1: eval/Accuracy, last +0.0", "3 runs, seeds 1, 2, 3, grouped since only seed",
                 "time to eval/Accuracy >= 0.95", "Differences from lr0.1", "3 pairs of the same seed", "better",
                 "lr0.1 is dominated by lr0.4", "throughput (samples/s)"):  # fmt: skip
        assert text in printed.out
    page = (runs / "both.html").read_text(encoding="utf-8")
    assert "<h1>Comparison of lr0.1 and lr0.4</h1>" in page
    assert "Made by composer compare." in page


def test_json_and_groups_of_ones_own(runs: Path, capsys: Any) -> None:
    words = ["--group", f"small={','.join(names(0.1))}", names(0.4)[2]]
    words += ["--group", f"large={names(0.4)[0]},{names(0.4)[1]}"]
    assert main(["compare", *words, "--metric", "CrossEntropy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metric"] == "metrics/eval/CrossEntropy"
    assert [(name, one["seeds"], one["grouped_by"]) for name, one in found["groups"].items()] == [
        ("small", [1, 2, 3], "name"), ("large", [1, 2], "name"), ("lr0.4-seed3", [3], "settings"),
    ]  # fmt: skip
    last = found["measures"][0]["differences"]
    assert last["large"]["note"] == "no interval: the values of each group are all the same"
    of_accuracy = next(one for one in found["measures"] if one["measure"] == "eval/Accuracy, last")
    assert of_accuracy["differences"]["large"]["interval"] is not None
    assert last["lr0.4-seed3"]["interval"] is None
    assert last["lr0.4-seed3"]["note"] == "no interval: that takes 2 runs on each side"
    assert found["settings"] == {"lr": {"small": "0.1", "large": "0.4", "lr0.4-seed3": "0.4"}}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["lr0.1-seed1"], 2, "a comparison takes at least two runs, but 1 was given."),
        (["lr0.1-seed1", "lr0.1-sed2"], 2, "There is no run 'lr0.1-sed2'. Did you mean 'lr0.1-seed2'?"),
        (["lr0.1-seed1", "lr0.1-seed2", "--target", "Accuracy"], 2, "target must be METRIC>=VALUE or METRIC<=VALUE"),
        (["lr0.1-seed1", "lr0.1-seed2", "--group", "x"], 2, "--group must be NAME=RUN,RUN"),
        (["lr0.1-seed1", "lr0.1-seed2", "-o", "no/a.html"], 2, "there is no folder 'no'. Create it first."),
        (["lr0.1-seed1", "lr0.1-seed2", "-o", "lr0.1-seed1/log.jsonl"], 2, "exists, and is not a page of composer."),
        (["lr0.1-seed1", "lr0.1-seed1"], 1, "is given twice. Name each run once, alone or in one group."),
        (["lr0.1-seed1", "lr0.1-seed2", "--metric", "Acuracy"], 1, "Did you mean 'eval/Accuracy'?"),
        (["lr0.1-seed1", "empty"], 1, "has no log of JSONLinesLogger (.jsonl) or CSVLogger (.csv)"),
        (["lr0.1-seed1", "damaged"], 1, "line 3, is not a record of JSONLinesLogger."),
        (["lr0.1-seed1", "silent"], 1, "has no metrics. Leave it out, or compare it when it has logged some."),
    ],
)
def test_errors(words: list[str], code: int, message: str, runs: Path, capsys: Any) -> None:
    Path("empty").mkdir()
    damaged = write_log(runs, "damaged", 0.1, 5) / "log.jsonl"
    lines = damaged.read_text().splitlines(keepends=True)
    damaged.write_text("".join([*lines[:2], lines[2][:20] + "\n", *lines[3:]]))
    silent = write_log(runs, "silent", 0.1, 6) / "log.jsonl"
    silent.write_text(silent.read_text().splitlines(keepends=True)[0])
    try:
        found = main(["compare", *words])
    except SystemExit as ended:
        found = ended.code
    assert found == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_torn_last_line_is_left_out_and_said_so(runs: Path, capsys: Any) -> None:
    log = runs / "lr0.1-seed1" / "log.jsonl"
    log.write_text(log.read_text() + '{"kind": "metr')
    assert main(["compare", "lr0.1-seed1", "lr0.4-seed1"]) == 0
    out = capsys.readouterr().out
    assert "Note: lr0.1-seed1: the last line of log.jsonl is incomplete, and was left out." in out
    assert "Note: each group is a single run: no difference has an interval" in out


def test_logs_of_trainers(runs: Path, capsys: Any) -> None:
    for seed, lr in ((1, 0.1), (2, 0.1), (1, 0.2)):
        name = f"real{lr}-{seed}"
        # The hyperparameters have the name of the run too.
        loggers = [JSONLinesLogger("{run_name}/log.jsonl"), CSVLogger(f"csv/{name}.csv")]
        settings = {"run_name": name, "seed": seed, "max_duration": "2ep", "auto_log_hparams": True}
        with trainer_of(lr=lr, loggers=loggers, save_folder=f"saved/{name}", **settings) as trainer:
            trainer.fit()
    assert main(["compare", "real0.1-1", "real0.1-2", "real0.2-1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["seeds"] for one in found["groups"].values()] == [[1, 2], [1]]
    assert found["metric"] == "loss/train/total"
    assert set(found["settings"]) == {"optimizers.lr"}
    assert found["facts"] == {}
    # Rows have neither settings nor versions, so that each run is on its own.
    assert main(["compare", "csv/real0.1-1.csv", "csv/real0.1-2.csv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["groups"]) == ["real0.1-1", "real0.1-2"]
    assert "no hyperparameters were logged by real0.1-1, real0.1-2; what differs is not known" in found["remarks"]
