from __future__ import annotations

import io
import logging
import sys
import threading

import pytest
from rich.console import Console
from rich.live import Live

from composer.loggers._capture import Capture


@pytest.fixture(autouse=True)
def _capsys(capsys: pytest.CaptureFixture[str]) -> None:
    """Use capsys in every test, so that the streams stay the same throughout."""


def capture(*names: str) -> tuple[list[tuple[str, str]], Capture]:
    lines: list[tuple[str, str]] = []
    found = Capture(names or ("stdout", "stderr"), lambda stream, line: lines.append((stream, line)))
    found.attach()
    return lines, found


def test_lines_of_both_streams(capsys) -> None:
    lines, found = capture()
    print("a")
    print("b\nc", file=sys.stderr)
    print()
    print("d", end="")
    assert lines == [("stdout", "a"), ("stderr", "b"), ("stderr", "c"), ("stdout", "")]
    found.detach()
    print("e")
    assert lines[4:] == [("stdout", "d")]
    assert capsys.readouterr() == ("a\n\nde\n", "b\nc\n")


def test_the_streams_are_as_before() -> None:
    streams = (sys.stdout, sys.stderr)
    _, found = capture()
    assert (sys.stdout, sys.stderr) == streams
    found.attach()
    assert "write" in vars(streams[0])
    found.detach()
    assert all("write" not in vars(stream) for stream in streams)
    found.detach()


def test_one_stream_only() -> None:
    lines, found = capture("stderr")
    print("a")
    print("b", file=sys.stderr)
    found.detach()
    assert lines == [("stderr", "b")]


def test_existing_references_to_a_stream_are_captured() -> None:
    handler = logging.StreamHandler()
    lines, found = capture()
    handler.emit(logging.makeLogRecord({"msg": "logged"}))
    found.detach()
    assert lines == [("stderr", "logged")]


@pytest.mark.parametrize("first", [0, 1])
def test_two_captures_end_in_any_order(capsys, first: int) -> None:
    captures = [capture(), capture()]
    print("a")
    captures[first][1].detach()
    print("b")
    captures[1 - first][1].detach()
    print("c")
    assert captures[first][0] == [("stdout", "a")]
    assert captures[1 - first][0] == [("stdout", "a"), ("stdout", "b")]
    assert capsys.readouterr().out == "a\nb\nc\n"
    assert "write" not in vars(sys.stdout)


def test_the_last_state_of_an_overwritten_line_is_captured() -> None:
    lines, found = capture()
    for percent in (0, 50, 100):
        sys.stderr.write(f"\r{percent} %")
    sys.stderr.write("\n")
    sys.stderr.write("windows\r\n")
    found.detach()
    assert lines == [("stderr", "100 %"), ("stderr", "windows")]


def test_colors_are_removed() -> None:
    lines, found = capture()
    print("\x1b[1;31mred\x1b[0m \x1b]8;;https://x.org\x1b\\link\x1b]8;;\x1b\\")
    print("\x1b[?25h")
    found.detach()
    assert lines == [("stdout", "red link")]


def test_output_above_a_live_display_is_captured_once() -> None:
    streams = (sys.stdout, sys.stderr)
    lines, found = capture()
    with Live("bar 1\nbar 2", console=Console(file=sys.stderr, force_terminal=True), auto_refresh=False) as live:
        found.attach()
        for number in range(3):
            print(f"line {number}")
            live.update(f"bar {number}\nbar", refresh=True)
    print("after")
    found.detach()
    assert [line for stream, line in lines if stream == "stdout"] == ["line 0", "line 1", "line 2", "after"]
    assert not any("line" in line for stream, line in lines if stream == "stderr")
    assert (sys.stdout, sys.stderr) == streams
    assert "write" not in vars(sys.stdout)


def test_replaced_streams_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = (sys.stdout, sys.stderr)
    lines, found = capture("stdout")
    others = [io.StringIO() for _ in range(5)]
    for number, other in enumerate(others):
        monkeypatch.setattr(sys, "stdout", other)
        found.attach()
        print(number)
        assert sum("write" in vars(stream) for stream in (streams[0], *others)) == 2
    found.detach()
    assert [line for _, line in lines] == ["0", "1", "2", "3", "4"]


def test_a_process_without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    lines, found = capture()
    print("a", file=sys.stderr)
    found.detach()
    assert lines == [("stderr", "a")]


def test_lines_of_several_threads_are_not_interleaved() -> None:
    lines, found = capture()
    threads = [
        threading.Thread(target=lambda n=n: [sys.stdout.write(f"{n}" * 5 + "\n") for _ in range(200)]) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.detach()
    assert sorted(line for _, line in lines) == sorted(f"{n}" * 5 for n in range(4) for _ in range(200))


def test_a_stream_that_cannot_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed:
        __slots__ = ()

        def write(self, text: str) -> None: ...

        def flush(self) -> None: ...

    monkeypatch.setattr(sys, "stdout", Fixed())
    with pytest.raises(TypeError, match=r"pass FileLogger\(capture_stdout=False\)"):
        capture("stdout")
