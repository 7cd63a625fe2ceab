"""Layout of bars and table cells in narrow terminals, with long names, wide characters and many values."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from composer.loggers import _layout
from composer.loggers._layout import bar_table, cell_len, shorten, terminal_width, wrap_fields
from composer.loggers._progress_values import Line
from tests.loggers.terminal import Terminal, bare

LINE = Line("epoch 1/2", "batches", 12, 20, 61.0, 31.0, 5.0, {"loss": 1.25})
NAMES = st.text("abcXYZ_/0äß精度🎯", min_size=1, max_size=70)
NUMBERS = st.floats(width=32) | st.integers(0, 10**6)


def rendered(lines: list[Line], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    console.print(bar_table(lines, width)[0])
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_the_order_in_which_fields_are_dropped() -> None:
    shown = [bare(rendered([LINE], width)[0]) for width in (80, 62, 54, 42, 32, 26)]
    assert shown == [
        "epoch 1/2 12/20 batches 1:01 eta 0:05 31.0 it/s loss 1.2500",
        "epoch 1/2 12/20 batches 1:01 eta 0:05 31.0 it/s loss 1.2500",
        "epoch 1/2 12/20 batches 1:01 eta 0:05 loss 1.2500",
        "epoch 1/2 12/20 batches loss 1.2500",
        "epoch 1/2 12/20 loss 1.2500",
        "epoch 1/2 60% loss 1.2500",
    ]
    assert "━" in rendered([LINE], 80)[0]
    assert "━" not in rendered([LINE], 62)[0]


def test_values_of_an_active_bar_that_do_not_fit_are_counted() -> None:
    line = Line("train", "batches", 1, 9, 1.0, values={f"metric_{i}": 0.5 for i in range(9)})
    (row,) = rendered([line], 40)
    assert row.split()[-1] == "+7"
    assert row.count("0.5000") == 2


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(NAMES, NUMBERS, max_size=9), NAMES, st.integers(30, 200), st.booleans())
def test_values_are_kept_and_no_row_is_too_long(values, title, width, final) -> None:
    line = Line(title, "batches", 3, 2000, 61.0, 31.0, 5.0, values, final)
    rows = rendered([line, LINE], width)
    assert all(cell_len(row) <= width for row in rows)
    own = " ".join(rows[: len(rows) - len(rendered([LINE], width))])
    for _, value in line.formatted if final else line.formatted[:1]:
        assert f" {value}" in own


@settings(max_examples=100, deadline=None)
@given(NAMES, st.integers(1, 90))
def test_shortened_text_keeps_both_ends(text, width) -> None:
    short = shorten(text, width)
    assert cell_len(short) <= width
    assert short == text if cell_len(text) <= width else "…" in short
    begin, _, end = short.partition("…")
    assert text.startswith(begin)
    assert text.endswith(end)


def test_lines_break_between_fields() -> None:
    fields = ["config", *(f"field_{i}={i}" for i in range(9))]
    lines = wrap_fields(fields, 30, "  ").splitlines()
    assert max(map(len, lines)) <= 30
    assert " ".join(lines).split() == fields
    assert wrap_fields(fields, None) == "  ".join(fields)


def test_the_width_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal_width(io.StringIO()) is None
    assert terminal_width(Terminal()) == 100  # COLUMNS
    monkeypatch.delenv("COLUMNS")
    sizes = {"columns": 73}
    monkeypatch.setattr(_layout.os, "get_terminal_size", lambda descriptor: type("Size", (), sizes))

    class WithDescriptor(Terminal):
        def fileno(self) -> int:
            return 2

    assert terminal_width(WithDescriptor()) == 73
