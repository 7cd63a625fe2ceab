"""Averages that overlap with training: evaluation, early stops, uneven data, errors, frozen layers and EMA."""

from __future__ import annotations

import copy
import itertools
from typing import Any
from unittest import mock

import pytest
import torch

from composer import dist
from composer.algorithms import EMA, DiLoCo, _background_average
from tests.algorithms.low_communication import (
    BATCH,
    Seen,
    Weights,
    differing,
    fitted,
    make_normed,
    make_sgd,
    trainer_with,
    weights_now,
)
from tests.common import regression_data
from tests.ranks import Ranks


def evaluating(dtype: torch.dtype) -> list[Any]:
    seen = Seen()
    trainer = trainer_with(
        DiLoCo(4, overlap=2),
        model=make_normed().to(dtype),
        data=regression_data(10, BATCH, seed=dist.get_global_rank(), dtype=dtype),
        max_duration="10ba",
        eval_dataloader=regression_data(1, 6, dtype=dtype),
        eval_interval="1ba",
        callbacks=seen,
    )
    trainer.fit()
    end = weights_now(trainer.state)
    trainer.close()
    return [seen.after_batch, seen.evaluated, end]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_evaluates_the_last_applied_average(two_ranks: Ranks, dtype: torch.dtype) -> None:
    (first, evaluated, end), (second, others, other_end) = two_ranks.run(evaluating, dtype)
    assert all(not list(differing(*pair)) for pair in zip(evaluated, others, strict=True))
    # New ones after the 6th step, when that of the 4th is applied, and after the last one.
    changes = [bool(list(differing(*pair))) for pair in itertools.pairwise(evaluated)]
    assert changes == [step in (6, 10) for step in range(2, 11)]
    assert not list(differing(evaluated[0], make_normed().to(dtype).state_dict()))
    assert not list(differing(evaluated[-1], end))
    assert not list(differing(end, other_end))
    assert all(list(differing(*pair)) for pair in zip(first[:-1], second[:-1], strict=True))
    # Training does not depend on evaluations.
    if dtype is torch.float32:
        plain = two_ranks.run(trained_with_adam)[0]
        assert all(not list(differing(*pair)) for pair in zip(first, plain, strict=True))


def trained_with_adam() -> list[Weights]:
    seen = Seen()
    data = regression_data(10, BATCH, seed=dist.get_global_rank())
    fitted(trainer_with(DiLoCo(4, overlap=2), model=make_normed(), data=data, max_duration="10ba", callbacks=seen))
    return seen.after_batch


def stopping(step: int) -> list[Any]:
    class Stop(Seen):
        def batch_end(self, state: Any, logger: Any) -> None:
            super().batch_end(state, logger)
            if state.timestamp.batch == step:
                state.stop_training(everywhere=True, reason="enough")

    seen = Stop()
    trainer = trainer_with(DiLoCo(3, overlap=2), callbacks=seen)
    trainer.fit()
    stopped = weights_now(trainer.state)
    trainer.fit(duration="6ba")
    end = weights_now(trainer.state)
    trainer.close()
    return [seen.after_batch, stopped, end]


@pytest.mark.parametrize("step", [3, 4, 5])
def test_an_early_stop_ends_the_round(two_ranks: Ranks, step: int) -> None:
    """Before, in and after the steps of a window; then training continues."""
    (first, stopped, end), (second, other_stopped, other_end) = two_ranks.run(stopping, step)
    assert list(differing(first[step - 1], second[step - 1]))
    assert not list(differing(stopped, other_stopped))
    assert list(differing(stopped, end))
    assert not list(differing(end, other_end))
    assert len(first) == step + 6


def with_uneven_data(num_batches: int) -> list[Any]:
    rank = dist.get_global_rank()
    seen = Seen()
    trainer = trainer_with(
        DiLoCo(4, overlap=3),
        data=regression_data(num_batches if rank == 1 else 10, 4, seed=rank),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.5),
        max_duration="1ep",
        callbacks=seen,
    )
    return [fitted(trainer), seen.after_batch, int(trainer.state.timestamp.batch)]


@pytest.mark.parametrize("num_batches", [3, 5, 8])
def test_a_replica_without_data_takes_part_in_the_exchange(two_ranks: Ranks, num_batches: int) -> None:
    """Its data ends before, in, and at the start of a window."""
    (first, own, steps), (second, other, others_steps) = two_ranks.run(with_uneven_data, num_batches)
    assert steps == others_steps == 10
    assert not list(differing(first, second))
    parameters = {"first.weight", "norm.weight", "second.bias"}
    for step in range(num_batches + 1, 10):
        moved = parameters & set(differing(other[step - 2], other[step - 1]))
        assert moved == (parameters if step == 7 else set())
        assert parameters <= set(differing(own[step - 2], own[step - 1]))


def failing() -> list[Any]:
    def broken(*arguments: Any) -> None:
        raise OSError("no route to host")

    seen, algorithm = Seen(), DiLoCo(3, overlap=2)
    trainer = trainer_with(algorithm, callbacks=seen, max_duration="9ba")
    with mock.patch.object(_background_average, "average_over_replicas", broken), pytest.raises(OSError) as caught:
        trainer.fit()
    with pytest.raises(OSError, match="no route"):
        algorithm.state_dict()
    with pytest.raises(OSError, match="no route") as again:
        trainer.fit()
    trainer.close()
    return [str(caught.value), again.value.__notes__, len(seen.after_batch)]


def test_an_error_of_the_exchange_is_raised_when_it_is_applied(two_ranks: Ranks) -> None:
    for message, notes, steps in two_ranks.run(failing):
        assert message == "no route to host"
        assert len([note for note in notes if "overlaps with training (overlap)" in note]) == 1
        assert steps == 4


class WindowError(Exception):
    """Ends a run in a window."""


def interrupted() -> list[Any]:
    class Raise(Seen):
        def batch_end(self, state: Any, logger: Any) -> None:
            super().batch_end(state, logger)
            if state.timestamp.batch == 4 and len(self.after_batch) == 4:
                raise WindowError

    seen, plain = Raise(), Seen()
    trainer = trainer_with(DiLoCo(3, overlap=2), callbacks=seen, max_duration="8ba")
    with pytest.raises(WindowError):
        trainer.fit()
    trainer.fit()
    trainer.close()
    fitted(trainer_with(DiLoCo(3, overlap=2), callbacks=plain, max_duration="8ba"))
    return [seen.after_batch[-1], plain.after_batch[-1]]


def test_training_continues_after_an_exception_in_a_window(two_ranks: Ranks) -> None:
    (first, _), (second, _) = two_ranks.run(interrupted)
    assert not list(differing(first, second))


def freezing(freeze_at: int, unfreeze_at: int) -> list[Any]:
    class Freeze(Seen):
        def batch_end(self, state: Any, logger: Any) -> None:
            super().batch_end(state, logger)
            if state.timestamp.batch in (freeze_at, unfreeze_at):
                state.model.first.weight.requires_grad_(state.timestamp.batch == unfreeze_at)

    seen, model = Freeze(), make_normed()
    model.first.weight.requires_grad_(unfreeze_at > freeze_at)
    data = regression_data(12, BATCH, seed=dist.get_global_rank())
    trainer = trainer_with(
        DiLoCo(4, overlap=2), model=model, data=data, optimizer=make_sgd, max_duration="12ba", callbacks=seen
    )
    trainer.fit()
    names = sorted(trainer.state.algorithms[0].state_dict()["momenta"])
    trainer.close()
    return [[each["first.weight"] for each in seen.after_batch], names]


def test_parameters_that_are_frozen_in_a_window(two_ranks: Ranks) -> None:
    """A layer trains until the 5th step, and again after the 10th."""
    (first, _), (second, _) = two_ranks.run(freezing, 5, 10)
    # That round is over with the 8th step, and its average is applied after the 10th.
    assert [torch.equal(*pair) for pair in zip(first, second, strict=True)] == [False] * 9 + [True, False, True]
    assert not torch.equal(first[4], first[5])
    assert torch.equal(first[5], first[8])


def test_parameters_that_are_unfrozen_in_a_window(two_ranks: Ranks) -> None:
    (first, names), (second, _) = two_ranks.run(freezing, 11, 5)
    assert torch.equal(first[4], second[4])
    # The average of the 4th step leaves it alone.
    assert not torch.equal(first[5], second[5])
    assert "first.weight" in names
    assert torch.equal(first[-1], second[-1])


def with_ema() -> list[Any]:
    trainer = trainer_with(
        [EMA(smoothing=0.5, half_life=None, update_interval="3ba", ema_start="3ba"), DiLoCo(3, overlap=1)],
        model=make_normed(),
        data=regression_data(9, BATCH, seed=dist.get_global_rank()),
        max_duration="9ba",
        eval_dataloader=regression_data(1, 6),
        eval_interval="1ba",
        callbacks=(seen := Seen()),
    )
    trainer.fit()
    average = trainer.state.algorithms[0].get_ema_model(copy.deepcopy(trainer.state.model))
    found = {name: value.clone() for name, value in average.state_dict().items()}
    trainer.close()
    return [found, seen.after_batch[-1], seen.evaluated]


def test_ema_averages_the_last_synchronized_weights(two_ranks: Ranks) -> None:
    (average, last, evaluated), (other, _, others) = two_ranks.run(with_ema)
    assert not list(differing(average, other))
    assert all(not list(differing(*pair)) for pair in zip(evaluated, others, strict=True))
    (_, _, without_ema), _ = two_ranks.run(evaluating_every_step)
    # The initial weights at the 3rd step; those of the 3rd, applied at the 4th, at the 6th; and the last ones.
    name = "first.weight"
    expected = 0.5 * (0.5 * without_ema[2][name] + 0.5 * without_ema[5][name]) + 0.5 * last[name]
    torch.testing.assert_close(average[name], expected)


def evaluating_every_step() -> list[Any]:
    seen = Seen()
    fitted(
        trainer_with(
            DiLoCo(3, overlap=1),
            model=make_normed(),
            data=regression_data(9, BATCH, seed=dist.get_global_rank()),
            max_duration="9ba",
            eval_dataloader=regression_data(1, 6),
            eval_interval="1ba",
            callbacks=seen,
        )
    )
    return [None, None, seen.evaluated]
