from __future__ import annotations

import csv
from pathlib import Path
from unittest.mock import Mock

import pytest

from composer.loggers._table_file import TableFile


def test_rows_and_columns(tmp_path) -> None:
    path = tmp_path / "t.csv"
    table = TableFile(path)
    assert (table.columns, table.num_rows, table.last()) == ([], 0, {})
    table.write([])
    assert not path.exists()
    table.write([{"a": "1"}, {"a": "2"}])
    table.write([{"a": "3", "b": "x"}])
    table.write([{"b": "y"}])
    assert path.read_bytes() == b"a,b\n1,\n2,\n3,x\n,y\n"
    assert (table.columns, table.num_rows, table.last()) == (["a", "b"], 4, {"b": "y"})
    assert [file.name for file in tmp_path.iterdir()] == ["t.csv"]


def test_the_last_row_can_be_replaced(tmp_path) -> None:
    table = TableFile(tmp_path / "t.csv")
    table.write([{"a": "1"}, {"a": "2"}])
    table.write([{"a": "20"}, {"a": "3"}], replace_last=True)
    table.write([{"a": "3", "b": "long"}], replace_last=True)
    table.write([{"a": "3"}], replace_last=True)
    assert (tmp_path / "t.csv").read_text() == "a,b\n1,\n20,\n3,\n"
    assert table.num_rows == 3


@pytest.mark.parametrize("has_rows", [False, True])
def test_a_header_that_was_not_written_is_written_the_next_time(has_rows: bool, tmp_path: Path, monkeypatch) -> None:
    table = TableFile(tmp_path / "t.csv")
    if has_rows:
        table.write([{"a": "1"}])
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(Path, "write_bytes", Mock(side_effect=OSError("The disk is full.")))
        table.write([{"a": "2", "b": "3"}])
    table.write([{"a": "2", "b": "3"}])
    assert (tmp_path / "t.csv").read_text() == ("a,b\n1,\n2,3\n" if has_rows else "a,b\n2,3\n")


def test_characters_that_need_quotes(tmp_path) -> None:
    cells = ["a,b", 'say "x"', "line\nfeed", "return\r", "", "ü", " blank "]
    table = TableFile(tmp_path / "t.csv")
    table.write([{"x,y": cell, "z": "1"} for cell in cells])
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        assert [row["x,y"] for row in csv.DictReader(file, strict=True)] == cells
    assert TableFile(tmp_path / "t.csv").num_rows == len(cells)


def test_continuing_a_file(tmp_path) -> None:
    path = tmp_path / "t.csv"
    TableFile(path).write([{"a": "1"}, {"a": "2"}])
    table = TableFile(path)
    table.write([{"a": "2", "b": "3"}], replace_last=True)
    table.write([{"b": "4"}])
    assert path.read_text() == "a,b\n1,\n2,3\n,4\n"
    table = TableFile(path, 1)
    assert (table.num_rows, table.last()) == (1, {"a": "1"})
    table.write([{"a": "5"}])
    assert path.read_text() == "a,b\n1,\n5,\n"
    assert (tmp_path / "t.1.csv").read_text() == "a,b\n1,\n2,3\n,4\n"


@pytest.mark.parametrize("torn", [b"4,5", b"4,5,0.12", b'4,"a,b', b'4,"line\nfeed', b"4,\xc3", b"\0\0\0"], ids=ascii)
def test_a_row_truncated_by_a_crash_is_removed(torn: bytes, tmp_path: Path) -> None:
    """Not continued: of a truncated number nobody can tell the rest."""
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b,c\n1,2,3\n" + torn)
    table = TableFile(path)
    assert (table.num_rows, table.last()) == (1, {"a": "1", "b": "2", "c": "3"})
    table.write([{"a": "6"}])
    assert path.read_text() == "a,b,c\n1,2,3\n6,,\n"
    assert (tmp_path / "t.1.csv").read_bytes().endswith(torn)  # an editor may have left out the last line break
    assert TableFile(path).num_rows == 2
    assert not (tmp_path / "t.2.csv").exists()


def test_a_header_truncated_by_a_crash_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("step,epoch,sec")
    TableFile(path).write([{"step": "0", "seconds": "1.5"}])
    assert path.read_text() == "step,seconds\n0,1.5\n"


def test_a_failure_leaves_no_incomplete_row(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    table = TableFile(path)
    table.write([{"a": "1"}])
    with path.open("a") as file:
        file.write("half of a r")
    table.write([{"a": "2"}])
    assert path.read_text() == "a\n1\n2\n"


def test_refuses_another_csv_file(tmp_path) -> None:
    (tmp_path / "t.csv").write_text("a\n1,2\n")
    with pytest.raises(ValueError, match=r"t\.csv has a row with more cells than its header; move or remove the file"):
        TableFile(tmp_path / "t.csv")


def test_refuses_quotes_that_are_not_closed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,b\n1,"2\n3,4\n')
    with pytest.raises(ValueError, match=r"t\.csv is no valid CSV: .* Repair its quotes"):
        TableFile(tmp_path / "t.csv")
