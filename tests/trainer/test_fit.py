"""When training ends, and how it continues after an end."""

from __future__ import annotations

import datetime
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer import Callback, DataSpec, Time, TimeUnit
from tests.common import At, Received, Recorder, Regression, Unsized, regression_data, trainer_of, weights


def first_value(state) -> float:
    """Return a value that identifies the batch."""
    return state.batch[0].flatten()[0].item()


class Shuffled(torch.utils.data.Dataset):
    """Numbered samples (x, y); x begins with the number."""

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i):
        return torch.tensor([i, 1.0, 0.0, -1.0]) / 10, torch.tensor([float(i % 3)])


def shuffled_loader(seed: int = 5, **more) -> torch.utils.data.DataLoader:
    generator = torch.Generator().manual_seed(seed)
    return torch.utils.data.DataLoader(Shuffled(), batch_size=3, shuffle=True, generator=generator, **more)


# ---------------------------------------------------------------------------------------------------- durations


@pytest.mark.parametrize(
    ("max_duration", "batches", "epochs"),
    [
        (2, 8, 2),
        ("2ep", 8, 2),
        (Time(2, "epoch"), 8, 2),
        ("1ba", 1, 0),
        ("4ba", 4, 1),
        ("6ba", 6, 1),
        ("5sp", 3, 0),  # two samples a batch: the first count at or over 5
        ("16sp", 8, 2),
        ("60tok", 6, 1),
        ("61tok", 7, 1),
    ],
)
def test_training_ends_at_max_duration(max_duration, batches, epochs) -> None:
    data = DataSpec(regression_data(), get_num_tokens_in_batch=lambda batch: 10)
    trainer = trainer_of(data=data, max_duration=max_duration)
    trainer.fit()
    timestamp = trainer.state.timestamp
    assert timestamp.batch == batches
    assert timestamp.sample == 2 * batches
    assert timestamp.token == 10 * batches
    assert timestamp.epoch == epochs
    assert timestamp.batch_in_epoch == batches - 4 * epochs
    assert trainer.state.get_elapsed_duration() >= Time(1.0, "dur")


def test_training_ends_after_seconds(monkeypatch) -> None:
    """Each step takes two seconds by a clock of the test's own."""
    ticks = itertools.count(0, 2)
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    trainer = trainer_of(data=regression_data(10), max_duration="7sec")
    trainer.fit()
    assert trainer.state.timestamp.batch == 4
    assert trainer.state.timestamp.total_wct == datetime.timedelta(seconds=8)
    assert trainer.state.timestamp.batch_wct == datetime.timedelta(seconds=2)


def test_evaluation_does_not_count_as_training_time(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def pass_time(seconds: float) -> Callback:
        return lambda state: now.__setitem__(0, now[0] + seconds)

    callbacks = [
        At("after_loss", pass_time(2)),
        At("eval_after_forward", pass_time(100)),
        At("fit_start", pass_time(50)),
    ]
    trainer = trainer_of(
        max_duration="2ep", eval_dataloader=regression_data(1), eval_interval="1ba", callbacks=callbacks
    )
    trainer.fit()
    assert trainer.state.timestamp.total_wct == datetime.timedelta(seconds=16)
    assert trainer.state.eval_timestamp.total_wct == datetime.timedelta(seconds=100)


def test_unsized_data_train_for_epochs_and_batches() -> None:
    recorder = Recorder()
    trainer = trainer_of(data=Unsized(regression_data(3)), max_duration="2ep", callbacks=recorder)
    assert trainer.state.dataloader_len is None
    trainer.fit()
    assert trainer.state.timestamp.batch == 6
    assert recorder.events.count("epoch_end") == 2
    trainer = trainer_of(data=Unsized(regression_data(3)), max_duration="5ba")
    trainer.fit()
    assert (trainer.state.timestamp.epoch, trainer.state.timestamp.batch_in_epoch) == (1, 2)


def test_iterable_data_sets() -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return (Shuffled()[i] for i in range(7))

    loader = torch.utils.data.DataLoader(Stream(), batch_size=3)
    trainer = trainer_of(data=loader, max_duration="2ep")
    trainer.fit()
    assert (trainer.state.timestamp.batch, trainer.state.timestamp.sample) == (6, 14)


@pytest.mark.parametrize("duration", ["10tok", "1iter"])
def test_a_duration_that_would_never_be_reached_raises(duration) -> None:
    """Neither tokens that no one counts nor iterations without a length may train for ever."""

    class Enough(Callback):
        def batch_end(self, state, logger):
            if state.timestamp.batch >= 50:
                raise AssertionError("trains for ever")

    with pytest.raises(ValueError, match=f"max_duration.*{duration}"):
        trainer_of(max_duration=duration, callbacks=Enough()).fit()


# ---------------------------------------------------------------------------------------------------- continuing


@settings(max_examples=25)
@given(stops=st.lists(st.integers(1, 7), min_size=1, max_size=5), sized=st.booleans())
def test_stopping_and_continuing_matches_uninterrupted_training(stops, sized) -> None:
    """The same batches in the same order, hence the same weights bit for bit."""

    def train(pieces: list[int]):
        torch.manual_seed(0)
        loader = shuffled_loader()
        seen = At("before_forward", first_value)
        trainer = trainer_of(data=loader if sized else Unsized(loader), max_duration=f"{pieces[0]}ba", callbacks=seen)
        trainer.fit()
        for piece in pieces[1:]:
            trainer.fit(duration=f"{piece}ba")
        return trainer, seen.found

    parts, seen_in_parts = train(stops)
    uninterrupted, seen_at_once = train([sum(stops)])
    assert seen_in_parts == seen_at_once
    assert torch.equal(weights(parts), weights(uninterrupted))
    assert parts.state.timestamp.batch == uninterrupted.state.timestamp.batch == sum(stops)
    assert parts.state.timestamp.sample == uninterrupted.state.timestamp.sample


def test_second_fit_without_more_duration_raises() -> None:
    trainer = trainer_of()
    trainer.fit()
    with pytest.raises(
        ValueError, match=r"nothing left to train: max_duration is 1ep and training has reached 1ep\. Use"
    ):
        trainer.fit()
    assert trainer.state.timestamp.batch == 4


@pytest.mark.parametrize(
    ("duration", "batches"), [(1, 8), ("2ep", 12), ("3ba", 7), (Time(5, TimeUnit.BATCH), 9), ("3sp", 6)]
)
def test_fit_for_a_further_duration(duration, batches) -> None:
    trainer = trainer_of()
    trainer.fit()
    trainer.fit(duration=duration)
    assert trainer.state.timestamp.batch == batches


def test_a_duration_replaces_max_duration() -> None:
    trainer = trainer_of(max_duration="5ep")
    trainer.fit(duration="2ep")
    assert trainer.state.max_duration == Time(2, "ep")
    with pytest.raises(ValueError, match=r"nothing left to train: max_duration is 2ep .* Use fit\(duration=\.\.\.\)"):
        trainer.fit()
    trainer.fit(duration="3ep")
    assert trainer.state.max_duration == trainer.state.timestamp.epoch == Time(5, "ep")


@pytest.mark.parametrize("duration", [0, "0ba"])
def test_fit_for_no_duration_raises(duration) -> None:
    trainer = trainer_of()
    trainer.fit()
    with pytest.raises(ValueError, match="nothing left to train"):
        trainer.fit(duration=duration)


def test_a_fraction_is_not_a_duration() -> None:
    trainer = trainer_of()
    with pytest.raises(ValueError, match=r"duration must be in iterations, epochs, .*; got '0\.5dur'"):
        trainer.fit(duration="0.5dur")
    with pytest.raises(ValueError, match=r"duration is how much longer .*; got '-1ba'"):
        trainer.fit(duration="-1ba")
    with pytest.raises(ValueError, match=r"max_duration must be in iterations, epochs, .*; got '0\.5dur'"):
        trainer_of(max_duration="0.5dur")


def test_reset_time_trains_again_from_current_weights() -> None:
    seen, recorder = At("before_forward", first_value), Recorder()
    trainer = trainer_of(max_duration="6ba", callbacks=[seen, recorder])
    trainer.fit()
    assert trainer.state.timestamp.batch_in_epoch == 2
    recorder.events.clear()
    trainer.fit(reset_time=True)
    assert trainer.state.timestamp.batch == 6
    assert seen.found[:6] == seen.found[6:]
    assert recorder.events[:3] == ["fit_start", "iteration_start", "epoch_start"]


def test_fit_takes_new_data_label_and_number_of_batches() -> None:
    seen, log = At("before_forward", first_value), Received()
    trainer = trainer_of(Regression(metrics=True), callbacks=seen, loggers=log)
    trainer.fit()
    other = regression_data(5, seed=9)
    trainer.fit(train_dataloader=other, train_dataloader_label="other", train_subset_num_batches=3, duration="2ep")
    assert trainer.state.train_dataloader is other
    assert trainer.state.dataloader_len == 3
    expected = [batch[0].flatten()[0].item() for batch in regression_data(4) + other[:3] + other[:3]]
    assert seen.found == expected
    assert {name for _, metrics in log.metrics for name in metrics if name.startswith("metrics/")} == {
        "metrics/train/MeanSquaredError",
        "metrics/other/MeanSquaredError",
    }


def test_new_data_within_an_epoch_replace_the_rest() -> None:
    seen = At("before_forward", first_value)
    trainer = trainer_of(max_duration="2ba", callbacks=seen)
    trainer.fit()
    other = regression_data(4, seed=9)
    trainer.fit(train_dataloader=other, duration="2ba")
    assert seen.found[2:] == [batch[0].flatten()[0].item() for batch in other[:2]]


def test_all_batches_again_after_a_subset() -> None:
    trainer = trainer_of(train_subset_num_batches=2)
    trainer.fit()
    assert trainer.state.timestamp.batch == 2
    trainer.fit(duration="1ep", train_subset_num_batches=-1)
    assert trainer.state.timestamp.batch == 6


def test_fit_takes_another_microbatch_size_and_precision() -> None:
    recorder = Recorder()
    trainer = trainer_of(callbacks=recorder)
    trainer.fit()
    assert recorder.events.count("before_forward") == 4
    trainer.fit(duration="1ep", device_train_microbatch_size=1)
    assert recorder.events.count("before_forward") == 4 + 8
    dtypes = At("after_forward", lambda state: state.outputs.dtype)
    trainer.state.callbacks.append(dtypes)
    trainer.fit(duration="1ba", precision="amp_bf16")
    assert trainer.state.precision == "amp_bf16"
    assert set(dtypes.found) == {torch.bfloat16}


# ---------------------------------------------------------------------------------------------------- ending early


@pytest.mark.parametrize(
    ("event", "batches"),
    [
        ("fit_start", 0),
        ("epoch_start", 1),
        ("after_dataloader", 1),
        ("before_forward", 1),
        ("batch_end", 1),
        ("batch_checkpoint", 1),
        ("epoch_end", 4),
        ("epoch_checkpoint", 4),
        ("eval_end", 4),
    ],
)
@pytest.mark.parametrize("max_duration", ["10ep", "40ba", "80sp", "1000sec"])
def test_stop_training_from_a_callback(event, batches, max_duration) -> None:
    stop, recorder = At(event, lambda state: state.stop_training()), Recorder()
    trainer = trainer_of(max_duration=max_duration, eval_dataloader=regression_data(1), callbacks=[stop, recorder])
    trainer.fit()
    assert trainer.state.timestamp.batch == batches
    assert recorder.events[-1] == "fit_end"
    assert recorder.events.count("eval_start") == 1
    assert recorder.events.count("epoch_end") == (batches == 4)
    trainer.state.callbacks.remove(stop)
    trainer.fit(duration="1ba")
    assert trainer.state.timestamp.batch == batches + 1


@pytest.mark.parametrize("written", ["max_duration", "max_epochs"])
def test_an_algorithm_shortens_training_at_its_start(written) -> None:
    from composer import Algorithm

    class Shorten(Algorithm):
        def match(self, event, state):
            return event == "fit_start"

        def apply(self, event, state, logger):
            if written == "max_duration":
                state.max_duration = state.max_duration * 0.5
            else:
                state.max_epochs /= 2

    trainer = trainer_of(max_duration="6ep", algorithms=Shorten())
    trainer.fit()
    assert trainer.state.timestamp.epoch == 3
    assert trainer.state.max_duration == Time(3, "ep")
    assert trainer.state.max_epochs == 3
