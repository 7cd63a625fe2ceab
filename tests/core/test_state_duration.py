"""The duration of a run, and the completed part of it."""

from __future__ import annotations

import re

import pytest
import torch

from composer.core import Algorithm, Engine, State, Time, Timestamp, TimeUnit


def state_of(**fields) -> State:
    return State(model=torch.nn.Linear(1, 1), **fields)


class TestMaxDuration:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (3, Time(3, "ep")),
            ("3ba", Time(3, "ba")),
            ("1e3sp", Time(1000, "sp")),
            (Time(3, "tok"), Time(3, "tok")),
            ("1h30m", Time(5400, "sec")),
            (0, Time(0, "ep")),
            (None, None),
        ],
    )
    def test_set(self, given, expected):
        state = state_of()
        state.max_duration = given
        assert state.max_duration == state_of(max_duration=given).max_duration == expected
        if expected is not None:
            assert state.max_duration.unit is expected.unit

    @pytest.mark.parametrize(
        ("given", "error", "message"),
        [
            (
                "0.5dur",
                ValueError,
                "max_duration must be in iterations, epochs, batches, samples, tokens or wall-clock time, such as",
            ),
            (-1, ValueError, "max_duration must not be negative; got '-1ep'."),
            ("-2ba", ValueError, "max_duration must not be negative; got '-2ba'."),
            (1.5, TypeError, "A time in epoch units must be an integer"),
            ("soon", ValueError, "soon"),
            ([1], TypeError, "[1]"),
        ],
    )
    def test_invalid_durations(self, given, error, message):
        state = state_of(max_duration="2ep")
        with pytest.raises(error, match=re.escape(message)):
            state.max_duration = given
        assert state.max_duration == "2ep"

    def test_shortened_by_an_algorithm(self):
        class Shorten(Algorithm):
            def fit_start(self, state, logger):
                state.max_duration = state.max_duration * 0.5

        engine = Engine(state_of(max_duration="10ep"), algorithms=Shorten())
        engine.run_event("fit_start")
        assert engine.state.max_duration == Time(5, "ep")

    def test_set_by_epochs_attribute(self):
        state = state_of(max_duration="9ep")
        assert state.max_epochs == 9
        state.max_epochs /= 2
        assert (state.max_epochs, state.max_duration) == (4, Time(4, "ep"))

    @pytest.mark.parametrize("duration", [None, "5ba"])
    def test_epochs_attribute_requires_epochs(self, duration):
        message = f"max_epochs needs a max_duration in epochs, but it is {duration}."
        with pytest.raises(ValueError, match=re.escape(message)):
            state_of(max_duration=duration).max_epochs  # noqa: B018

    def test_finished_and_elapsed(self):
        state = state_of()
        assert not state.finished
        assert state.get_elapsed_duration() is None
        state.max_duration = "10ba"
        for batch, done in ((0, False), (9, False), (10, True), (11, True)):
            state.timestamp = Timestamp(batch=batch)
            assert state.finished is done
            assert state.get_elapsed_duration() == Time(batch / 10, "dur")
            assert state.get_elapsed_duration().unit is TimeUnit.DURATION
        state.max_duration = 0
        assert state.finished
        assert state.get_elapsed_duration() == "1dur"

    @pytest.mark.parametrize("length", [3, 7, 10])
    @pytest.mark.parametrize("epochs", [1, 3, 7])
    def test_progress_has_fractions_of_an_epoch(self, epochs, length):
        state = state_of(max_duration=f"{epochs}ep", train_dataloader=[0] * length)
        for batch in range(epochs * length + 1):
            assert state.progress("dur") == batch / (epochs * length)  # as a run of as many batches
            assert state.progress(TimeUnit.EPOCH) == batch / length
            assert state.progress("ba") == batch
            state.timestamp = state.timestamp.to_next_batch()
            if (batch + 1) % length == 0:
                state.timestamp = state.timestamp.to_next_epoch()
        assert state.progress("dur") == 1  # also beyond the end

    def test_progress_without_a_length_or_an_end(self):
        state = state_of(max_duration="4ep", train_dataloader=iter([1, 2, 3]))
        state.timestamp = Timestamp(epoch=1, batch=5, batch_in_epoch=2)
        assert (state.progress("dur"), state.progress("ep")) == (0.25, 1)
        state.max_duration = 0
        assert state.progress("dur") == 1
        state.max_duration = None
        assert state.progress("ba") == 5
        with pytest.raises(ValueError, match="max_duration must be set"):
            state.progress("dur")

    @pytest.mark.parametrize(
        ("duration", "expected"),
        [
            (None, Time(7, "ba")),
            ("10ep", Time(7, "ba")),
            ("10iter", Time(7, "ba")),
            ("10ba", Time(7, "ba")),
            ("100sp", Time(14, "sp")),
            ("1000tok", Time(140, "tok")),
            ("90sec", Time(3, "sec")),
        ],
    )
    def test_stop_training(self, duration, expected):
        state = state_of(max_duration=duration)
        state.timestamp = Timestamp(epoch=1, batch=7, sample=14, token=140, total_wct=3.7)
        state.stop_training()
        assert (state.max_duration, state.max_duration.unit) == (expected, expected.unit)
        assert state.finished
        assert state.get_elapsed_duration() >= "1dur"
