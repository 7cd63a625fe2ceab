"""Rows of CSV files with long cells."""

from __future__ import annotations

import csv

import pytest

from composer.core.csv_rows import csv_rows


def test_long_cells_leave_the_limit_of_the_process() -> None:
    limit = csv.field_size_limit()
    rows = csv_rows(["a,b\n", f"1,{'x' * (limit + 1)}\n", '"2\n', '3",4\n'])
    assert next(rows) == ["a", "b"]
    assert csv.field_size_limit() == limit
    assert [len(cell) for cell in next(rows)] == [1, limit + 1]
    assert list(rows) == [["2\n3", "4"]]


def test_an_open_quote_is_an_error_only_if_strict() -> None:
    limit = csv.field_size_limit()
    assert list(csv_rows(['1,"2\n', "3,4\n"])) == [["1", "2\n3,4\n"]]
    with pytest.raises(csv.Error, match="unexpected end"):
        list(csv_rows(['1,"2\n', "3,4\n"], strict=True))
    assert csv.field_size_limit() == limit
