"""Counting batches, epochs and iterations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer import DataSpec, Engine, Logger, State, Time
from composer.core import TimeUnit
from composer.core._log_record import time_counters
from composer.trainer.progress import advance, advance_epoch, advance_iteration, iteration_is_complete
from composer.trainer.run import Run
from tests.common import At, regression_data, trainer_of


def run_of(**counts: int) -> Run:
    state = State(model=torch.nn.Linear(1, 1))
    logger = Logger(state)
    run = Run(state, Engine(state, logger), logger)
    run.samples, run.tokens = counts.get("samples", 0), counts.get("tokens", 0)
    return run


@given(batches=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8), epochs=st.integers(0, 3))
def test_counts_are_summed(batches, epochs) -> None:
    run = run_of()
    for _ in range(epochs):
        for run.samples, run.tokens in batches:
            before = run.state.timestamp
            advance(run)
            assert run.state.previous_timestamp is before
        advance_epoch(run)
    timestamp = run.state.timestamp
    samples, tokens = (sum(column) for column in zip(*batches, strict=True)) if batches else (0, 0)
    assert (timestamp.epoch, timestamp.batch) == (epochs, epochs * len(batches))
    assert (timestamp.sample, timestamp.token) == (epochs * samples, epochs * tokens)
    if epochs:
        assert (timestamp.batch_in_epoch, timestamp.sample_in_epoch, timestamp.token_in_epoch) == (0, 0, 0)


def test_logged_counters() -> None:
    run = run_of(samples=3)
    advance(run)
    assert time_counters(run.state.timestamp) == {
        "time/batch": 1,
        "time/sample": 3,
        "time/batch_in_epoch": 1,
        "time/sample_in_epoch": 3,
    }
    run.tokens = 5
    advance(run)
    advance_epoch(run)
    advance(run)
    assert time_counters(run.state.timestamp) == {
        "time/batch": 3,
        "time/sample": 9,
        "time/token": 10,
        "time/batch_in_epoch": 1,
        "time/sample_in_epoch": 3,
        "time/token_in_epoch": 5,
    }


@pytest.mark.parametrize(
    ("length", "epochs_needed"),
    [(None, None), (Time(1, "ep"), 1), (Time(3, "ep"), 3), (Time(10, "tok"), 1), (Time(11, "tok"), 2)],
)
def test_iterations(length, epochs_needed) -> None:
    run = run_of(tokens=5)
    run.state._iteration_length = length
    complete = []
    for _ in range(3):
        advance(run)
        advance(run)
        advance_epoch(run)
        complete.append(iteration_is_complete(run))
    assert complete == [epochs_needed is not None and epoch >= epochs_needed for epoch in (1, 2, 3)]
    advance_iteration(run)
    assert run.state.timestamp.iteration == 1
    assert (run.state.timestamp.epoch_in_iteration, run.state.timestamp.token_in_iteration) == (0, 0)
    assert run.state.timestamp.epoch == 3


@settings(max_examples=20)
@given(size=st.none() | st.integers(1, 4), max_duration=st.integers(1, 9))
def test_timestamp_advances_at_batch_end(size, max_duration) -> None:
    counts = {
        event: At(event, lambda s: s.timestamp.count(TimeUnit.BATCH))
        for event in (
            "before_dataloader",
            "batch_start",
            "after_backward",
            "after_train_batch",
            "batch_end",
            "batch_checkpoint",
        )
    }
    trainer_of(
        max_duration=f"{max_duration}ba", device_train_microbatch_size=size, callbacks=list(counts.values())
    ).fit()
    before, after = list(range(max_duration)), list(range(1, max_duration + 1))
    assert counts["batch_start"].found == counts["after_train_batch"].found == before
    assert sorted(set(counts["after_backward"].found)) == before
    assert counts["batch_end"].found == counts["batch_checkpoint"].found == after


def test_samples_and_tokens_are_those_of_the_data() -> None:
    """Not those that are left after an algorithm has selected some."""

    def select(state) -> None:
        state.batch = tuple(part[:1] for part in state.batch)

    data = DataSpec(regression_data(2, 5), get_num_tokens_in_batch=lambda batch: 7 * len(batch[0]))
    trainer = trainer_of(data=data, callbacks=At("after_dataloader", select))
    trainer.fit()
    assert (trainer.state.timestamp.sample, trainer.state.timestamp.token) == (10, 70)


def test_counts_of_mapped_tokens_and_of_input_ids() -> None:
    data = DataSpec(regression_data(2), get_num_tokens_in_batch=lambda batch: {"total": 9, "loss_generating": 4})
    trainer = trainer_of(data=data)
    trainer.fit()
    assert trainer.state.timestamp.token == 18


def endless():
    batch = (torch.ones(2, 4), torch.ones(2, 1))
    while True:
        yield batch


@pytest.mark.parametrize(
    ("counter", "batches"),
    [(None, 1), (lambda batch: 0, 100), (lambda batch: {"total": 0}, 100)],
    ids=["the default", "a function", "a function of a mapping"],
)
def test_endless_data_without_token_counts(counter, batches) -> None:
    class Data:
        def __iter__(self):
            return endless()

    trainer = trainer_of(data=DataSpec(Data(), get_num_tokens_in_batch=counter), max_duration="10tok")
    with pytest.raises(ValueError, match=f"until batch {batches}.*get_num_tokens_in_batch"):
        trainer.fit()


def test_first_batches_may_have_no_tokens() -> None:
    counts = iter([0, 0, 0, 5, 5])
    trainer = trainer_of(
        data=DataSpec(regression_data(5), get_num_tokens_in_batch=lambda batch: next(counts)), max_duration="10tok"
    )
    trainer.fit()
    assert trainer.state.timestamp.batch == 5
