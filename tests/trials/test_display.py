"""The progress of a study on a terminal and in a file."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from composer.trials import Record, Target, Trial, TrialDisplay
from composer.trials import display as module

TARGET = Target("script", "train.py")


def shown(records: list[Record], *, known: bool = False, **arguments) -> str:
    stream = io.StringIO()
    with TrialDisplay(len(records), stream=stream, **arguments) as display:
        for record in records:
            display.started(Trial(record.name, TARGET, "p:P"))
            display.ended(None, record, known=known)
    return stream.getvalue()


def test_a_line_for_each_trial() -> None:
    text = shown([Record("fp32", "0", "completed", 3.21), Record("a" * 40, "1", "timed_out", 1e4, error="why")])
    assert text.splitlines() == [
        f"{'fp32':<26}     3.2 s  completed",
        f"{'a' * 40} 10000.0 s  timed out: why",
    ]


def test_errors_are_not_taken_for_markup() -> None:
    error = "expected [/red] to be [bold] at x[0]:\n  two lines"
    assert shown([Record("a", "0", "failed", 1.0, error=error)]).splitlines() == [
        f"{'a':<26}     1.0 s  failed: expected [/red] to be [bold] at x[0]: two lines"
    ]


def test_records_of_an_earlier_start_and_other_words() -> None:
    assert shown([Record("a", "0", "completed", 1.0)], known=True).endswith("completed (measured before)\n")
    assert "equal bit for bit" in shown([Record("a", "0", "completed", 1.0)], describe=lambda _: "equal bit for bit")


def test_a_known_record_is_printed_once() -> None:
    keys: set[str] = set()
    record = Record("a", "0", "completed", 1.0)
    assert shown([record], shown=keys).endswith("completed\n")
    assert shown([record], known=True, shown=keys) == ""
    assert shown([Record("b", "1", "completed", 1.0)], known=True, shown=keys).endswith("(measured before)\n")
    assert shown([record], shown=keys).endswith("completed\n")  # measured again


@pytest.mark.parametrize("width", [40, 60, 200])
@pytest.mark.parametrize("color", [None, "truecolor"])
def test_a_terminal(width: int, color, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    terminal = Console(file=stream, force_terminal=True, width=width, color_system=color, soft_wrap=True)
    monkeypatch.setattr("rich.console.Console", lambda **arguments: terminal)
    with TrialDisplay(3) as display:
        display.started(Trial("first", TARGET, "p:P"))
        display.started(Trial("a-long-name-of-a-trial-" * 4, TARGET, "p:P"))
        display.ended(None, Record("first", "0", "completed", 2.0), known=False)
        display._progress.refresh()
        assert "1/3" in stream.getvalue()
        last = terminal.render_lines(display._progress.get_renderable())
        line = "".join(segment.text for segment in last[0])
        assert len(last) == 1
        assert len(line) <= width
        assert "left" in line


def test_the_estimate_follows_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    display = TrialDisplay(5, stream=io.StringIO())
    display.ended(None, Record("a", "0", "completed", 5.0), known=True)  # takes no time now
    now[0] = 50.0
    display.ended(None, Record("b", "1", "completed", 50.0), known=False)
    assert display._progress.tasks[0].fields["left"] == "about 2 min left"
    assert [module._rounded(seconds) for seconds in (3.3, 99, 150, 7200)] == ["3 s", "99 s", "2 min", "2.0 h"]
