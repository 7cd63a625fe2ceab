"""The model report: one line on the console before training, the summary on request, tables in notebooks."""

from __future__ import annotations

import io
import logging
import re
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

from composer import Callback, State, dist
from composer.algorithms import BlurPool
from composer.loggers import ConsoleLogger, ProgressBarLogger
from composer.models import ComposerClassifier
from composer.optim.lr_finder import RangeTest
from tests.common import classifier, labeled_data, trainer_of
from tests.loggers.terminal import Terminal, screen


def images() -> ComposerClassifier:
    net = nn.Sequential(nn.Flatten(1), nn.Unflatten(1, (1, 1, 4)), nn.Conv2d(1, 4, 1, 2), nn.Flatten(), nn.Linear(8, 3))
    return ComposerClassifier(net, num_classes=3)


def shown(stream: io.StringIO) -> list[str]:
    return [line for line in stream.getvalue().splitlines() if " trainable)" in line]


@pytest.mark.parametrize("logger", [ProgressBarLogger, lambda stream: ConsoleLogger(stream=stream)])
def test_one_line_before_training(logger) -> None:
    stream = io.StringIO()
    algorithm = BlurPool(min_channels=0)
    trainer = trainer_of(images(), labeled_data(), loggers=logger(stream), algorithms=algorithm, max_duration="1ep")
    trainer.fit()
    line = "Sequential: 35 parameters (all trainable), 140 B; BlurPool replaced 1 Conv2d by BlurConv2d"
    assert shown(stream) == [line]
    text = stream.getvalue()
    assert text.index(line) < text.index("poch")  # of what the training shows
    trainer.fit(duration="1ep")
    assert shown(stream) == [line]  # it is the same model
    trainer.state.model.requires_grad_(False)
    trainer.state.model.module[4].requires_grad_(True)
    trainer.fit(duration="1ep")
    assert shown(stream)[1:] == [line.replace("all trainable", "27 trainable")]


def test_a_narrow_terminal_breaks_the_line_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    trainer_of(images(), labeled_data(), loggers=ProgressBarLogger(stream), algorithms=BlurPool(min_channels=0)).fit()
    rows = screen(stream.getvalue())
    (begin,) = (place for place, row in enumerate(rows) if row.startswith("Sequential:"))
    assert rows[begin : begin + 2] == [
        "Sequential: 35 parameters (all trainable), 140 B;",
        "  BlurPool replaced 1 Conv2d by BlurConv2d",
    ]


def test_quiet_trainer_prints_nothing(capfd, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    trainer_of().fit()
    assert "trainable" not in "".join(capfd.readouterr()) + caplog.text


def test_other_ranks_print_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    trainer = trainer_of(loggers=ProgressBarLogger(stream))
    monkeypatch.setattr(dist, "get_global_rank", lambda: 8)  # the first of another node
    trainer.fit()
    assert shown(stream) == []
    assert stream.getvalue()


def test_full_report_on_request() -> None:
    trainer = trainer_of(images(), labeled_data(), algorithms=BlurPool(min_channels=0))
    summary = trainer.model_summary()
    assert [layer.name for layer in summary.layers] == ["", "0", "1", "2", "2.conv", "3", "4"]
    assert str(summary).splitlines()[-1] == "BlurPool replaced 1 Conv2d by BlurConv2d"
    assert len(trainer.model_summary(depth=0).layers) == 1


# Notebooks


class Checked(HTMLParser):
    """Refuses tags that are not closed, and anything that runs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs) -> None:
        assert tag not in ("script", "b", "img")
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None: ...

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text += f" {data}"


def test_trainer_and_state() -> None:
    class Evil(Callback):
        pass

    Evil.__name__ = "<img src=x onerror=alert(1)>"
    trainer = trainer_of(
        classifier(), labeled_data(), eval_dataloader=labeled_data(), callbacks=Evil(), max_duration="2ep", lr=0.25
    )
    before = Checked(trainer._repr_html_()).text
    assert "0 epochs, 0 batches" in before
    trainer.fit()
    text = Checked(trainer._repr_html_()).text
    for part in (
        "2 epochs, 8 batches",
        "of 2ep",
        "SGD, lr 0.25",
        "eval/CrossEntropy",
        "parameters (all trainable)",
        "<img",
    ):
        assert part in text
    assert "2 epochs, 8 batches" in Checked(trainer.state._repr_html_()).text
    assert "color:#" not in trainer._repr_html_()  # text and background are those of the page


def test_state_without_trainer_and_secrets() -> None:
    assert "Linear" in Checked(State(nn.Linear(1, 1))._repr_html_()).text
    state = State(nn.Linear(1, 1), optimizers=torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1))

    class Keyed(Callback):
        pass

    Keyed.__name__ = "s3://user:password@host/x"
    state.callbacks = [Keyed()]
    assert "password" not in state._repr_html_()


@pytest.mark.parametrize(
    ("rates", "losses", "told"),
    [
        ([1e-4, 1e-3, 1e-2, 1e-1, 1.0], [2.0, 1.9, 1.2, 0.8, 9.0], "suggested learning rate: 0.001"),
        ([1e-4, 1e-3, 1e-2], [1.0, 1.0, 1.0], "falls at no learning rate"),
        ([1e-3, 1e-2, 1e-1], [2.0, 1.0, float("nan")], "suggested learning rate"),
        ([1e-3, 1e-2, 1e-1], [2.0, 1.0, float("inf")], "suggested learning rate"),
        ([1e-3], [2.0], "1 learning rate;"),
        ([], [], "0 learning rates"),
    ],
)
def test_find_lr_result(rates, losses, told) -> None:
    test = RangeTest(rates, losses, smoothing=0.1)
    picture = r'<img alt="Losses over learning rates" src="data:image/png;base64,[A-Za-z0-9+/=]+">'
    html, pictures = re.subn(picture, "", test._repr_html_())
    assert told in Checked(html).text
    assert pictures == (len(rates) > 2)
