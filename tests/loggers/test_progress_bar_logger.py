from __future__ import annotations

import io
import itertools

import pytest
import torch

from composer import dist
from composer.core import Event
from composer.core.timestamp import Timestamp
from composer.loggers import ProgressBarLogger
from tests.loggers.loop import Loop
from tests.loggers.terminal import Terminal

CASE = {"make": lambda: ProgressBarLogger(Terminal(), log_traces=True)}


def lines(clock, max_duration="2ep", batches_in_epoch=4, **options) -> list[str]:
    stream = io.StringIO()
    loop = Loop([ProgressBarLogger(stream)], max_duration, tick=clock.tick, **options)
    loop.init().fit(batches_in_epoch).close()
    return stream.getvalue().splitlines()


# Plain text


def test_a_pipe_receives_a_line_per_finished_bar(clock) -> None:
    assert lines(clock) == [
        "epoch 1/2  100%  4/4 batches  loss 0.2500  1.0 it/s  0:04",
        "  eval  100%  2/2 batches  Accuracy 0.5000  1.0 it/s  0:02",
        "epoch 2/2  100%  4/4 batches  loss 0.1250  1.0 it/s  0:04",
        "  eval  100%  2/2 batches  Accuracy 0.5000  1.0 it/s  0:02",
    ]


def test_a_pipe_receives_a_line_every_ten_seconds(clock) -> None:
    assert lines(clock, "1ep", 25, length=25, eval_length=0) == [
        "epoch 1/1  40%  10/25 batches  loss 0.1000  1.0 it/s  eta 0:15",
        "epoch 1/1  80%  20/25 batches  loss 0.0500  1.0 it/s  eta 0:05",
        "epoch 1/1  100%  25/25 batches  loss 0.0400  1.0 it/s  0:25",
    ]


def test_a_long_evaluation_reports_too(clock) -> None:
    assert lines(clock, "1ep", 2, length=2, eval_length=12) == [
        "epoch 1/1  100%  2/2 batches  loss 0.5000  1.0 it/s  0:02",
        "  eval  83%  10/12 batches  1.0 it/s  eta 0:02",
        "  eval  100%  12/12 batches  Accuracy 0.5000  1.0 it/s  0:12",
    ]


@pytest.mark.parametrize(
    ("max_duration", "first", "last"),
    [
        ("12ba", "train  83%  10/12 batches", "train  100%  12/12 batches"),
        ("96sp", "train  83%  80/96 samples", "train  100%  96/96 samples"),
        ("8000sp", "train  1%     80/8,000 samples", "train  100%  8,000/8,000 samples"),
    ],
)
def test_other_units_have_one_bar_for_the_run(clock, max_duration, first, last) -> None:
    text = lines(clock, max_duration, eval_length=0)
    assert text[0].startswith(first + "  loss 0.1000  1.0 it/s  eta ")
    assert text[-1].startswith(last)
    assert "epoch" not in "".join(text)


def test_an_evaluation_within_an_epoch_shows_the_batch_and_pauses_the_clock(clock) -> None:
    assert lines(clock, "1ep", eval_every=2, eval_length=30)[-3:] == [
        "  eval at batch 4  93%  28/30 batches  1.0 it/s  eta 0:02",
        "  eval at batch 4  100%  30/30 batches  Accuracy 0.5000  1.0 it/s  0:30",
        "epoch 1/1  100%  4/4 batches  loss 0.2500  1.0 it/s  0:04",
    ]


def test_data_of_unknown_length(clock) -> None:
    assert lines(clock, "1ep", 12, length=None, eval_length=None) == [
        "epoch 1/1  10 batches  loss 0.1000  1.0 it/s  0:10",
        "epoch 1/1  12 batches  loss 0.0833  1.0 it/s  0:12",
        "  eval  2 batches  Accuracy 0.5000  1.0 it/s  0:02",
    ]


def test_slow_batches_and_wide_counts(clock) -> None:
    tick = clock.tick
    clock.tick = lambda: tick(5.0)
    text = lines(clock, "10ep", length=1, batches_in_epoch=1, eval_length=0)
    assert text[0] == "epoch  1/10  100%  1/1 batches  loss 1.0000  5.0 s/it  0:05"
    assert text[9] == "epoch 10/10  100%  1/1 batches  loss 0.1000  5.0 s/it  0:05"


def test_stopping_early_leaves_the_line_of_the_run(clock) -> None:
    stream = io.StringIO()
    loop = Loop([ProgressBarLogger(stream)], "2ep", tick=clock.tick).init()
    loop.tick = lambda: (clock.tick(), loop.state.timestamp.batch == "2ba" and loop.state.stop_training())
    loop.fit().close()
    text = stream.getvalue().splitlines()
    assert text[0].startswith("epoch 1/2")
    assert "4/4" not in stream.getvalue()


def test_predicting(clock) -> None:
    stream = io.StringIO()
    Loop([ProgressBarLogger(stream)], tick=clock.tick).init().predict().close()
    assert stream.getvalue() == "predict  100%  3/3 batches  1.0 it/s  0:03\n"


def test_a_standalone_evaluation(clock) -> None:
    stream = io.StringIO()
    bar = ProgressBarLogger(stream)
    loop = Loop([bar], tick=clock.tick).init().evaluate("test").evaluate("test")
    assert stream.getvalue() == "test  100%  2/2 batches  Accuracy 0.5000  1.0 it/s  0:02\n" * 2
    assert bar._display is None
    loop.close()


def test_old_metrics_of_an_evaluation_are_not_shown_again(clock) -> None:
    stream = io.StringIO()
    loop = Loop([ProgressBarLogger(stream)], tick=clock.tick).init().evaluate()
    phase = loop.state.eval_phase
    loop.state.phase, phase.timestamp = phase, Timestamp()
    loop.fire("eval_start")
    loop.fire("eval_end")
    assert "Accuracy" not in stream.getvalue().splitlines()[-1]
    loop.close()


def test_hyperparameters_traces_and_own_values(clock) -> None:
    stream = io.StringIO()
    bar = ProgressBarLogger(stream, log_traces=True)
    loop = Loop([bar], "1ep", eval_length=0, tick=clock.tick).init()
    loop.logger.log_hyperparameters({"seed": 1})
    loop.tick = lambda: (bar.log_to_pbar({"beauty": 3}), bar.log_traces({"x": 1}))
    loop.fit().close()
    assert stream.getvalue().splitlines()[:2] == ["config  seed=1", "[trace] x: 1"]
    assert "beauty 3" in stream.getvalue().splitlines()[-1]


def test_only_local_rank_0_shows_anything(clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_local_rank", lambda: 1)
    stream = Terminal()
    bar = ProgressBarLogger(stream)
    loop = Loop([bar], tick=clock.tick).init()
    loop.fit()
    assert not bar.show_pbar
    assert not bar.__due__(loop.state)
    assert stream.getvalue() == ""
    loop.close()


# Overhead


def test_values_are_read_four_times_a_second_in_a_terminal(clock) -> None:
    bar = ProgressBarLogger(Terminal())
    loop = Loop([bar], "1000ba", length=1000).init()
    loop.fire("fit_start")
    due = []
    for _ in range(100):  # ten seconds
        clock.tick(0.1)
        due.append(bar.__due__(loop.state))
    assert 30 <= sum(due) <= 41
    loop.close()
    assert not bar.__due__(loop.state)


@pytest.mark.parametrize(
    ("seconds", "interval"),
    [
        (0.0001, 0.1),  # the least interval of the display
        (0.001, 0.2),  # at most 0.5 % of the time
        (0.02, 1.0),  # but once a second
        (0.5, 10.0),  # at most 5 %
    ],
)
def test_rendering_takes_little_of_the_time(clock, seconds: float, interval: float) -> None:
    render_times = []

    class Slow:
        interval = 0.1

        def render(self, lines) -> None:
            render_times.append(clock.now)
            clock.tick(seconds)

        def stop(self) -> None: ...

    bar = ProgressBarLogger(io.StringIO())
    loop = Loop([bar], "1000ba", length=1000).init()
    loop.fire("fit_start")
    bar._display = Slow()
    bar._next_render = 0.0
    for _ in range(3000):
        clock.tick(0.01)
        loop.fire("batch_end")
    between = [after - before - seconds for before, after in itertools.pairwise(render_times)]
    assert between == pytest.approx([interval] * len(between), abs=0.021)  # steps take 0.01 s
    assert len(between) > 1
    loop.close()


def test_has_only_the_handlers_it_needs() -> None:
    bar = ProgressBarLogger(io.StringIO())
    for event in (Event.BATCH_START, Event.BEFORE_FORWARD, Event.AFTER_LOSS, Event.EVAL_BATCH_START):
        assert not bar.__listens__(event)


# Checkpoints and arguments


def test_the_clock_continues_after_loading(clock) -> None:
    saved = ProgressBarLogger(io.StringIO())
    loop = Loop([saved], "1ep", tick=clock.tick, eval_length=0).init()
    loop.fire("fit_start")
    loop.fire("epoch_start")
    loop.batch()
    loop.batch()
    state = saved.state_dict()
    assert state == {"elapsed": 2.0}
    loop.close()
    stream = io.StringIO()
    restored = ProgressBarLogger(stream)
    restored.load_state_dict(state)
    resumed = Loop([restored], "1ep", tick=clock.tick, eval_length=0).init()
    resumed.state.timestamp = loop.state.timestamp
    resumed.fit().close()
    assert stream.getvalue() == "epoch 1/1  100%  4/4 batches  loss 0.2500  1.0 it/s  0:04\n"


def test_wrong_streams() -> None:
    with pytest.raises(ValueError, match=r"Did you mean 'stderr'\?"):
        ProgressBarLogger("sdterr")


def test_tensors_in_metrics_are_shown_as_numbers(clock) -> None:
    stream = io.StringIO()
    loop = Loop([ProgressBarLogger(stream)], "1ep", eval_length=0, tick=clock.tick).init()
    loop.tick = lambda: loop.logger.log_metrics({"metrics/train/Accuracy": torch.tensor([0.5])})
    loop.fit().close()
    assert "loss 0.2500  Accuracy 0.5000" in stream.getvalue()


def test_a_run_counted_in_seconds(clock) -> None:
    stream = io.StringIO()
    loop = Loop([ProgressBarLogger(stream)], "90sec", length=1000, eval_length=0, tick=clock.tick).init()

    def tick() -> None:
        clock.tick()
        now = loop.state.timestamp
        loop.state.timestamp = now.copy(total_wct=now.total_wct.total_seconds() + 1)

    loop.tick = tick
    loop.fit(1000).close()
    text = stream.getvalue().splitlines()
    assert text[0] == "train  11%  0:10/1:30  loss 0.1000  1.0 it/s  eta 1:20"
    assert text[-1] == "train  100%  1:30/1:30  loss 0.0111  1.0 it/s  1:30"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_control_characters_of_names_and_values_do_not_reach_the_terminal(stream) -> None:
    written = stream()
    loop = Loop([ProgressBarLogger(written)], eval_length=0).init()
    loop.fire("fit_start")
    loop.fire("epoch_start")
    loop.logger.log_metrics(
        {"loss/train/\x1b[31mred": 1.0, "loss/train/two\nlines": 2.0, "loss/train/text": "\x1b[2Jx"}
    )
    loop.fire("epoch_end")
    shown = written.getvalue()
    for text in (r"\x1b[31mred 1.0000", r"two\nlines 2.0000", r"text \x1b[2Jx"):
        assert text in shown
    assert "\x1b[31m" not in shown
    assert "\x1b[2J" not in shown
