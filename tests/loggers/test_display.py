"""How progress looks in a terminal and in a notebook."""

from __future__ import annotations

import gc
import io
import subprocess
import sys
import types

import pytest

from composer.loggers import ProgressBarLogger
from composer.loggers._display import LiveDisplay, NotebookDisplay, PlainDisplay, open_display
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


def test_a_narrow_terminal_cuts_the_metrics(clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    Loop([ProgressBarLogger(stream)], "1ep", eval_length=0, tick=clock.tick).init().fit().close()
    (line,) = screen(stream.getvalue())
    assert len(line) <= 40
    assert line.endswith("…")
    assert line.startswith("epoch 1/1")


def test_the_cursor_stays_visible(clock) -> None:
    stream = Terminal()
    loop = Loop([ProgressBarLogger(stream)], tick=clock.tick).init()
    loop.fire("fit_start")
    assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l")
    loop.close()


def test_what_is_printed_appears_above_the_bars(clock, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_forgotten_run_gives_the_streams_back(clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    loop = Loop([ProgressBarLogger()]).init()
    loop.fire("fit_start")
    assert sys.stderr is not terminal
    del loop
    gc.collect()
    assert sys.stderr is terminal


def test_cut_off_and_continued(clock) -> None:
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


def test_a_notebook(clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    outputs: list[list[dict[str, str]]] = []

    class Handle:
        def __init__(self, data: dict[str, str]) -> None:
            self.history = [data]
            outputs.append(self.history)

        def update(self, data: dict[str, str], raw: bool) -> None:
            assert raw
            self.history.append(data)

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        return Handle(data)

    shell = type("ZMQInteractiveShell", (), {})()
    package, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    package.get_ipython = lambda: shell  # type: ignore[attr-defined]
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    assert isinstance(open_display(sys.stderr), NotebookDisplay)
    assert isinstance(open_display(io.StringIO()), PlainDisplay)

    bar = ProgressBarLogger()
    loop = Loop([bar], "8ba", length=8, eval_every=4, tick=clock.tick).init()
    loop.logger.log_hyperparameters({"seed": 1})
    loop.fit(8).close()
    last = [bare(history[-1]["text/plain"]) for history in outputs]
    assert [line[:21] for line in last] == ["eval at batch 4 2/2 b", "eval at batch 8 2/2 b", "train 8/8 batches 0:0"]
    assert all(history[-1]["text/html"].startswith("<pre") for history in outputs)
    assert max(len(history) for history in outputs) > 2
    assert capsys.readouterr().out == "config  seed=1\n"


def test_a_process_that_dies_leaves_the_terminal_usable() -> None:
    """The exception is shown, and the redirection ends before the interpreter does."""
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
