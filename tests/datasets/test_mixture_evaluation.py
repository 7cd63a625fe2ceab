"""Mixture as evaluation data, also that of training, whose samples do not depend on evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer.datasets import Mixture
from composer.optim import LinearScheduler
from tests.common import At, weights
from tests.trainer.test_evaluation_on_training_data import Jittered, PlacedStream, run, samples, words
from tests.trainer.test_resume_within_step import BATCH, SaveIn


def halves(**more: Any) -> Mixture:
    return Mixture([(words(1), 1), (words(2), 1)], names=["a", "b"], epoch_length=6, **more)


def test_times_in_fractions_of_the_run() -> None:
    """An evaluation has the duration of the run, and a time of its own: here the source changes after 2 batches."""
    data = halves(milestones=[("0.125dur", {"a": 0})])
    drawn = At("eval_batch_start", lambda state: data.source)
    run(DataLoader(samples(), BATCH), data, max_duration="16ba", interval="8ba", callbacks=[drawn])
    first, second = drawn.found[:6], drawn.found[6:12]
    assert first == second and first[2:] == ["b"] * 4 and "a" in first[:2]


def test_a_schedule_of_the_training_data_that_is_evaluated() -> None:
    def data() -> Mixture:
        return Mixture([(words(1), LinearScheduler(1.0, 0.0)), (words(2), 1)], epoch_length=6)

    straight, expected, _ = run(data())
    evaluated = data()
    trainer, seen, _ = run(evaluated, evaluated)
    assert seen == expected and torch.equal(weights(trainer), weights(straight))


def with_a_generator() -> Mixture:
    return Mixture([(DataLoader(Jittered(), BATCH, shuffle=True), 0.5), (words(1), 0.5)], epoch_length=6)


def placed() -> Mixture:
    return Mixture([(DataLoader(PlacedStream(), BATCH), 0.2), (words(1), 0.8)], epoch_length=6)


@pytest.mark.parametrize("data", [with_a_generator, placed])
def test_the_state_of_sources(data: Any, tmp_path: Path) -> None:
    """Also of one from which nothing was drawn before the first evaluation."""
    straight, expected, _ = run(data())
    evaluated = data()
    trainer, seen, _ = run(evaluated, evaluated, interval="1ba", fit=False)
    trainer.eval()
    trainer.fit()
    assert seen == expected and torch.equal(weights(trainer), weights(straight))
    run(data(), callbacks=[SaveIn("batch_checkpoint", tmp_path)])
    for batch in (1, 5, 6, 9):
        resumed, rest, _ = run(data(), load_path=str(tmp_path / f"{batch}.pt"))
        assert rest == expected[batch:] and torch.equal(weights(resumed), weights(straight))


def test_the_first_epoch_again() -> None:
    """Epoch 0 begins at the beginning of sources that have a place."""
    data = placed()
    passes = []
    for _ in range(2):
        data.set_epoch(0)
        passes.append([batch[0].tolist() for batch in data])
    assert passes[0] == passes[1]
