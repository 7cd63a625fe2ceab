"""A range test keeps the position in the training data, whatever their type."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.common import weights
from tests.ranks import Ranks
from tests.trainer.test_evaluation_on_training_data import LOADERS, made, run

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata


def with_a_range_test(name: str, done: int) -> tuple[Any, Any]:
    """The samples and weights of a run without a range test, and of one with it after some steps."""
    torch.set_num_threads(1)
    straight, expected, _ = run(made(name))
    trainer, seen, _ = run(made(name), fit=False)
    if done:
        trainer.fit(duration=f"{done}ba")
    trainer.find_lr(num_batches=8)
    trainer.fit(duration=f"{15 - done}ba")
    return (expected, weights(straight)), (seen, weights(trainer))


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("done", [0, 4, 6])
def test_training_goes_on_where_it_was(name: str, done: int) -> None:
    (expected, expected_weights), (seen, found_weights) = with_a_range_test(name, done)
    assert seen == expected
    assert torch.equal(found_weights, expected_weights)


@pytest.mark.parametrize("name", ["map-style", "placed stream", "tensors", "loader with a place", "prefetched tensors"])
def test_two_ranks(name: str, two_ranks: Ranks) -> None:
    for done in (0, 4):
        for (expected, expected_weights), (seen, found_weights) in two_ranks.run(with_a_range_test, name, done):
            assert seen == expected
            assert torch.equal(found_weights, expected_weights)
