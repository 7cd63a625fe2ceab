"""Progress displays in a terminal and in a pipe."""

from __future__ import annotations

import gc
import io
import subprocess
import sys

import pytest

from composer.loggers import ProgressBarLogger
from composer.loggers._progress_display import LiveDisplay, PlainDisplay, open_display
from tests.loggers.loop import Loop
from tests.loggers.terminal import Terminal, bare, screen


def test_a_terminal_shows_finished_bars_one_below_the_other(clock) -> None:
    stream = Terminal()
    Loop([ProgressBarLogger(stream)], tick=clock.tick).init().fit().close()
    shown = screen(stream.getvalue())
    assert [bare(line) for line in shown] == [
        "epoch 1/2 4/4 batches 0:04 1.0 it/s loss 0.2500",
        "eval 2/2 batches 0:02 1.0 it/s Accuracy 0.5000",
        "epoch 2/2 4/4 batches 0:04 1.0 it/s loss 0.1250",
        "eval 2/2 batches 0:02 1.0 it/s Accuracy 0.5000",
    ]
    assert all(line.count("━") == 30 for line in shown)
    assert len({line.index("━") for line in shown}) == 1


def test_an_evaluation_is_shown_below_the_bar_of_the_training(clock) -> None:
    stream = Terminal()
    loop = Loop([ProgressBarLogger(stream)], "8ba", length=8, eval_every=4, tick=clock.tick).init()
    seen = []
    fire = loop.fire

    def spy(event) -> None:
        fire(event)
        if event == "eval_batch_end":
            seen.append([bare(line) for line in screen(stream.getvalue())])

    loop.fire = spy
    loop.fit(8).close()
    assert seen[0] == [
        "train 4/8 batches 0:04 eta 0:04 1.0 it/s loss 0.2500",
        "eval at batch 4 1/2 batches 0:01 eta 0:01 1.0 it/s",
    ]
    assert [bare(line)[:22] for line in screen(stream.getvalue())] == [
        "eval at batch 4 2/2 ba",
        "eval at batch 8 2/2 ba",
        "train 8/8 batches 0:08",
    ]


def test_unknown_length_in_a_terminal(clock) -> None:
    stream = Terminal()
    Loop([ProgressBarLogger(stream)], "1ep", length=None, eval_length=None, tick=clock.tick).init().fit().close()
    assert [bare(line) for line in screen(stream.getvalue())] == [
        "epoch 1/1 4 batches 0:04 1.0 it/s loss 0.2500",
        "eval 2 batches 0:02 1.0 it/s Accuracy 0.5000",
    ]


@pytest.mark.parametrize("width", [24, 40, 60, 80, 200])
def test_a_narrow_terminal_keeps_the_values(clock, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Terminal()
    loop = Loop([ProgressBarLogger(stream)], "1ep", tick=clock.tick).init()
    loop.fit().evaluate("validation_split_of_a_long_name").close()
    shown = screen(stream.getvalue())
    assert all(len(line) <= width for line in shown)
    assert shown[0].startswith("epoch 1/1")
    assert "loss 0.2500" in "".join(shown[:2])
    assert sum("0.5000" in line for line in shown) == 2
    assert ("1.0 it/s" in shown[0]) == ("━" in shown[0]) == (width > 40)


def test_values_whose_names_end_alike_are_all_shown(clock) -> None:
    stream = Terminal()
    loop = Loop([ProgressBarLogger(stream)], "1ep", eval_length=0, tick=clock.tick).init()
    loop.logger.log_metrics({"metrics/train/f1/0": 0.25, "metrics/train/recall/0": 0.75})
    loop.fit().close()
    assert "f1/0 0.2500 recall/0 0.7500" in bare(screen(stream.getvalue())[-1])


def test_a_pipe_receives_one_line_a_second_and_the_last_of_each_series(clock) -> None:
    class Timed(io.StringIO):
        def write(self, text: str) -> int:
            times.extend([clock.now] * text.count("\n"))
            return super().write(text)

    stream, times = Timed(), []
    loop = Loop([ProgressBarLogger(stream)], "400ep", tick=lambda: clock.tick(0.01)).init()
    loop.fit()
    lines = stream.getvalue().splitlines()
    took = 400 * 6 * 0.01
    assert 20 <= len(lines) <= 10 + took + 2  # of 800 that finished
    for begin in range(len(times) - 1):  # in any span
        within = [time for time in times[begin:-2] if time < times[begin] + 5.0]
        assert len(within) <= 10 + 5
    assert lines[0].startswith("epoch   1/400")
    assert lines[-2].startswith("epoch 400/400  100%  4/4 batches")
    assert lines[-1].startswith("  eval  100%  2/2 batches  Accuracy 0.5000")
    loop.close()
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_short_runs_write_every_line_to_a_pipe(clock) -> None:
    stream = io.StringIO()
    Loop([ProgressBarLogger(stream)], "5ep").init().fit().close()
    assert len(stream.getvalue().splitlines()) == 10


def test_delayed_lines_are_written_when_a_run_is_interrupted(clock) -> None:
    stream = io.StringIO()
    loop = Loop([ProgressBarLogger(stream)], "400ep").init()
    loop.tick = lambda: loop.state.timestamp.epoch == "50ep" and 1 / 0
    with pytest.raises(ZeroDivisionError):
        loop.fit()
    loop.logger.suspend()
    assert [line.split()[:2] for line in stream.getvalue().splitlines()[-2:]] == [["eval", "100%"], ["epoch", "50/400"]]
    loop.close()


def test_the_cursor_stays_visible(clock) -> None:
    stream = Terminal()
    loop = Loop([ProgressBarLogger(stream)], tick=clock.tick).init()
    loop.fire("fit_start")
    assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l")
    loop.close()


def test_other_output_appears_above_the_bars(clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", file)
    loop = Loop([ProgressBarLogger()], "1ep", eval_length=0, tick=clock.tick).init()
    loop.tick = lambda: (clock.tick(), sys.stderr.write("to stderr\n"), sys.stdout.write("to a file\n"))
    loop.fit().close()
    assert sys.stderr is terminal
    assert file.getvalue() == "to a file\n" * 4  # what goes to a file is not diverted to the terminal
    shown = screen(terminal.getvalue())
    assert shown[:-1] == ["to stderr"] * 4
    assert bare(shown[-1]).startswith("epoch 1/1 4/4")


def test_two_runs_at_once(clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    outer = Loop([ProgressBarLogger()], "1ep", tick=clock.tick, eval_length=0).init()
    inner = Loop([ProgressBarLogger()], "1ep", tick=clock.tick).init()
    outer.tick = lambda: (clock.tick(), inner.evaluate("other"))
    outer.fit().close()
    inner.close()
    assert sys.stderr is terminal
    shown = [bare(line) for line in screen(terminal.getvalue())]
    assert shown == [*["other 100% 2/2 batches Accuracy 0.5000 1.0 it/s 0:02"] * 4, shown[-1]]
    assert shown[-1].startswith("epoch 1/1 4/4 batches")


def test_a_garbage_collected_run_restores_the_streams(clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    loop = Loop([ProgressBarLogger()]).init()
    loop.fire("fit_start")
    assert sys.stderr is not terminal
    del loop
    gc.collect()
    assert sys.stderr is terminal


def test_interrupted_and_continued(clock) -> None:
    stream = Terminal()

    def cut() -> None:
        clock.tick()
        if loop.state.timestamp.batch == "2ba":
            raise KeyboardInterrupt

    loop = Loop([ProgressBarLogger(stream)], "1ep", eval_length=0, tick=cut).init()
    with pytest.raises(KeyboardInterrupt):
        loop.fit()
    loop.logger.suspend()
    assert bare(screen(stream.getvalue())[-1]).startswith("epoch 1/1 2/4 batches 0:02")
    clock.tick(3600)
    loop.tick = clock.tick
    loop.fit().close()
    assert bare(screen(stream.getvalue())[-1]) == "epoch 1/1 4/4 batches 0:05 1.0 it/s loss 0.2500"


def test_which_display(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_display(io.StringIO()), PlainDisplay)
    live = open_display(Terminal())
    assert isinstance(live, LiveDisplay)
    live.stop()
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_display(Terminal()), PlainDisplay)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(open_display(io.StringIO()), PlainDisplay)


def test_a_process_that_dies_leaves_the_terminal_usable() -> None:
    """The exception is shown, and the redirection ends before interpreter shutdown."""
    script = """
import io, sys
from composer.loggers import ProgressBarLogger
from tests.loggers.loop import Loop

class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True

sys.stderr = Terminal(sys.stderr.buffer, encoding="utf-8", write_through=True)

def fail():
    raise RuntimeError("the reason")

Loop([ProgressBarLogger()], tick=fail).init().fit()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, encoding="utf-8")
    assert done.returncode == 1
    assert "RuntimeError: the reason" in done.stderr
    assert done.stderr.rfind("\x1b[?25h") > done.stderr.rfind("\x1b[?25l")
