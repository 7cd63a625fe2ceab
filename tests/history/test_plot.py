"""Curves of a history: which panels, which curves, what is refused."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from composer._plots import axes_grid, figure_png
from composer.core.array_axes import ArrayAxes
from composer.core.run_event import RunEvent
from composer.history import History, LoggedArray, Series
from composer.loggers import InMemoryLogger
from tests.common import trainer_of


def history(values: dict, **more) -> History:
    series = {
        name: Series(name, np.arange(len(one)), np.array(one, dtype=float), seconds=np.arange(len(one)) / 2)
        for name, one in values.items()
    }
    return History("night", series, **more)


RUN = {
    "loss/train/total": [3, 2, 1],
    "metrics/train/Acc": [0, 0.5],
    "metrics/eval/Acc": [0.1, math.nan, 0.6],
    "metrics/eval/other/F": [1],
    "lr-SGD/group0": [0.1],
    "lr-SGD/group1": [0.2],
    "l2_norm/grad": [1, 2, 3],
}


def shown(figure) -> dict[str, list[str]]:
    return {axes.get_title(): [line.get_label() for line in axes.lines] for axes in figure.axes}


def test_panels_of_a_run() -> None:
    assert shown(history(RUN).plot()) == {
        "loss": ["train"],
        "Acc": ["train", "eval"],
        "other/F": ["eval"],
        "learning rate": ["SGD/group0", "SGD/group1"],
    }


@pytest.mark.parametrize(
    ("names", "titles"),
    [
        (("eval/Acc",), ["Acc"]),
        (("*Acc", "loss/train/total"), ["Acc", "loss"]),
        (("l2_norm/*",), ["l2_norm/grad"]),
        (("*",), ["loss", "Acc", "other/F", "learning rate", "l2_norm/grad"]),
    ],
)
def test_chosen_by_name(names, titles) -> None:
    assert list(shown(history(RUN).plot(*names))) == titles


def test_horizontal_axis_and_resumptions() -> None:
    run = history(RUN, events=[RunEvent("resumption", 2, seconds=1.5), RunEvent("evaluation", 1)])
    for over, ends, resumed in (("step", [0, 2], 2), ("seconds", [0, 1], 1.5)):
        curve, line = run.plot("loss/*", over=over).axes[0].lines
        assert [curve.get_xdata()[0], curve.get_xdata()[-1]] == ends
        assert list(line.get_xdata()) == [resumed, resumed]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: run.plot("eval/Ac"), r"has logged no 'eval/Ac'\. Did you mean"),
        (lambda run: run.plot("x*"), r"has logged no 'x\*'\. Logged: 'loss/train/total'"),
        (lambda run: run.plot("loss/*", over="epoch"), "The log has no 'epoch' of 'loss/train/total'"),
        (lambda run: run.plot(ax=axes_grid("A test", 1, 1, (1, 1))[1][0]), "ax is for one panel, but there are 4"),
        (
            lambda run: History("new").plot(),
            r"'new' has logged no loss, metric or learning rate\. Logged: nothing.*InMemoryLogger",
        ),
        (lambda run: History("new").plot("loss"), r"has logged no 'loss'\. Logged: nothing.*InMemoryLogger"),
        (lambda run: history({"x": [1]}).plot(), r"Logged: 'x'; name one"),
    ],
)
def test_refused(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call(history(RUN))


def test_on_given_axes() -> None:
    figure, (left, right) = axes_grid("A test", 1, 2, (3, 2))
    assert history(RUN).plot("loss/*", ax=left) is figure
    history(RUN).plot("eval/Acc", ax=right)
    assert list(shown(figure)) == ["loss", "Acc"]


def test_hundreds_of_metrics() -> None:
    many = {f"metrics/{label}/{number}": [1, 2] for number in range(100) for label in ("train", "eval")}
    figure = history(many | {f"loss/train/{number}": [1, 2] for number in range(30)}).plot()
    assert len(figure.axes) == 24
    assert "24 of 101 panels" in figure.get_suptitle()
    figure = history({f"loss/train/{number}": [1, 2] for number in range(30)}).plot()
    legend = figure.axes[0].get_legend()
    assert (len(legend.get_texts()), legend.get_title().get_text()) == (8, "and 22 more")


def test_long_curves_keep_their_spikes() -> None:
    values = np.zeros(1_000_000)
    values[123_456] = 7
    x, y = history({"loss/train/total": values}).plot().axes[0].lines[0].get_data()
    assert len(y) <= 4000
    assert x[np.argmax(y)] == 123_456


def test_arrays() -> None:
    arrays = {
        "metrics/eval/CM": LoggedArray(np.eye(2), 10, ArrayAxes(("cat", "dog"), "target", "predicted")),
        "metrics/eval/Recall": LoggedArray(np.array([0.5, 1]), 10),
        "metrics/eval/cube": LoggedArray(np.zeros((2, 2, 2)), 10),
    }
    run = history(RUN, arrays=arrays)
    axes = run.plot("eval/CM").axes[0]
    assert axes.get_title() == "metrics/eval/CM, batch 10"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog"]
    assert len(run.plot("eval/CM", "eval/Recall", "loss/*").axes) == 3
    with pytest.raises(ValueError, match=re.escape("'metrics/eval/cube' has 3 dimensions, (2, 2, 2)")):
        run.plot("eval/cube")


@pytest.mark.parametrize("values", [[1.0], [math.nan], [math.inf, 1.0], [math.nan] * 3, [1e308, -1e308]])
def test_any_values_can_be_drawn(values) -> None:
    run = history({"loss/train/$x": values, "metrics/eval/<b>_^{": values})
    assert figure_png(run.plot()).startswith(b"\x89PNG")


def test_trainer() -> None:
    trainer = trainer_of(max_duration="2ep", loggers=InMemoryLogger())
    with pytest.raises(ValueError, match="has logged no loss"):
        trainer.plot()
    trainer.fit()
    (line,) = trainer.plot("loss/*").axes[0].lines
    np.testing.assert_array_equal(line.get_ydata(), trainer.history["loss/train/total"].values)
    trainer.close()
