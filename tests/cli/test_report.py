"""``composer report``: the page, where it is written, and errors of one line."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from composer.cli.main import main
from composer.reports.png import png_bytes

pytest.importorskip("plotly")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "night"
    folder.mkdir()
    records = [
        {
            "kind": "metrics",
            "step": step,
            "epoch": 0,
            "seconds": 0.1 * step,
            "values": {"loss/train/total": 1 / (1 + step)},
        }
        for step in range(200)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return folder


def test_the_page_is_written_beside_the_log(run: Path, capsys: Any) -> None:
    assert main(["report", str(run)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{run / 'report.html'}\n"
    assert printed.err == ""
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "<h1>night</h1>" in page
    assert "after 199 steps" in page
    assert main(["report", str(run / "log.jsonl")]) == 0  # replaces its own page
    assert sorted(path.name for path in run.iterdir()) == ["log.jsonl", "report.html"]


@pytest.mark.parametrize(("name", "words"), [("report.html", []), ("log.jsonl", ["-o", "night/log.jsonl"])])
def test_a_file_that_is_not_a_page_is_left_alone(
    run: Path, name: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(run.parent)
    with (run / name).open("a") as file:
        file.write("\n")
    before = (run / name).read_bytes()
    with pytest.raises(SystemExit) as ended:
        main(["report", "night", *words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"{name}' exists, and is not a page of composer. Delete the file, or name another." in error
    assert (run / name).read_bytes() == before
    (run / "other.html").touch()  # as mktemp does
    assert [main(["report", "night", "-o", "night/other.html"]) for _ in range(2)] == [0, 0]


def test_images_of_the_folder_and_of_the_page_that_is_replaced(run: Path) -> None:
    (run / "samples").mkdir()
    (run / "samples" / "step_5.png").write_bytes(png_bytes(np.zeros((2, 2, 3), np.uint8)))
    assert main(["report", str(run)]) == 0
    (run / "samples" / "step_5.png").unlink()
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count("<figcaption>samples/step_5, step 5</figcaption>") == 1


def test_the_browser_is_opened(run: Path, monkeypatch: Any) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["report", "--open", str(run)]) == 0
    assert opened == [(run / "report.html").as_uri()]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nigth"], 2, "There is no run 'nigth'. Did you mean 'night'?"),
        (["s3://key:hunter2@bucket/night"], 2, "is remote, but logs of runs are read from local files. Download the"),
        ([], 2, "the following arguments are required: RUN"),
        (["night", "-o", "."], 2, "--output='.' is a folder. Name a file in it."),
        (["night", "-o", "no/a.html"], 2, "there is no folder 'no'. Create it first."),
        (["night", "--opn"], 2, "no option '--opn'. Did you mean '--open'?"),
        (["empty"], 1, "has no log of JSONLinesLogger (.jsonl) or CSVLogger (.csv); the folder is empty."),
    ],
)
def test_errors(words: list[str], code: int, message: str, run: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(run.parent)
    Path("empty").mkdir()
    try:
        found = main(["report", *words])
    except SystemExit as ended:
        found = ended.code
    assert found == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert "hunter2" not in error
    assert not (run / "report.html").exists()


def test_names_that_the_terminal_cannot_encode(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run.rename(run.with_name(os.fsdecode(b"n\xc3\xa4cht \xff")))
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr("sys.stdout", shown)
    assert main(["report", str(folder)]) == 0
    assert main(["compare", str(folder), str(folder)]) == 1  # the same run twice
    assert b"n\\xe4cht \\udcff" in shown.buffer.getvalue()  # type: ignore[attr-defined]
    assert (folder / "report.html").exists()
