"""Progress bars in a notebook."""

from __future__ import annotations

import io
import sys
import types

import pytest

from composer.loggers import ProgressBarLogger
from composer.loggers._notebook import NotebookDisplay, bars_html
from composer.loggers._progress_display import PlainDisplay, open_display
from composer.loggers._progress_values import Line
from tests.loggers.loop import Loop


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    """The outputs of a notebook: for each, the data that it displayed in order."""
    found: list[list[dict[str, str]]] = []

    class Handle:
        def __init__(self, data: dict[str, str]) -> None:
            self.history = [data]
            found.append(self.history)

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
    return found


def test_bars_are_redrawn_in_place(clock, outputs, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(open_display(sys.stderr), NotebookDisplay)
    assert isinstance(open_display(io.StringIO()), PlainDisplay)

    bar = ProgressBarLogger()
    loop = Loop([bar], "8ba", length=8, eval_every=4, tick=clock.tick).init()
    loop.logger.log_hyperparameters({"seed": 1})
    loop.fit(8).close()
    last = [history[-1]["text/plain"] for history in outputs]
    assert [line[:24] for line in last] == [
        "  eval at batch 4  100% ",
        "  eval at batch 8  100% ",
        "train  100%  8/8 batches",
    ]
    assert all("width:100.0%" in history[-1]["text/html"] for history in outputs)
    assert max(len(history) for history in outputs) > 2
    assert capsys.readouterr().out == "config  seed=1\n"


def test_the_page_gives_the_colors_of_text_and_names_are_escaped() -> None:
    line = Line("<b>eval</b>", "batches", 5, 20, 1.0, values={"<script>": float("nan")})
    text = bars_html([line])
    assert "<b>" not in text
    assert "<script>" not in text
    assert "&lt;script&gt; nan" in text
    assert "width:25.0%" in text
    assert ";color:" not in text  # text is light on dark pages and dark on light ones


def test_bars_of_unknown_length_and_beyond_the_end() -> None:
    assert "width:0.0%" in bars_html([Line("eval", "batches", 5, None, 1.0)])
    assert "width:100.0%" in bars_html([Line("eval", "batches", 5, None, 1.0, final=True)])
    assert "width:100.0%" in bars_html([Line("eval", "batches", 30, 20, 1.0)])
