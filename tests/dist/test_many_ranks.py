"""The code of one rank of 1,024: what it sends does not grow with the number of ranks."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import pytest
import torch.distributed as torch_dist

from composer import dist
from composer.checkpoint.save import collect
from composer.dist.grid_collectives import grid_of
from composer.dist.simulation import simulated_ranks
from tests.common import Received, Regression, classifier, labeled_data, regression_data, trainer_of

OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list")


def collectives(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """Name and bytes of each collective that this package calls; those of DDP and FSDP are torch's."""
    found: Counter[tuple[str, int]] = Counter()

    def watch(module: Any, name: str, size: Any) -> None:
        original = getattr(module, name)

        def call(value: Any, *args: Any, **kwargs: Any) -> Any:
            found[name, size(value)] += 1
            return original(value, *args, **kwargs)

        monkeypatch.setattr(module, name, call)

    for name in ("all_reduce", "broadcast"):
        watch(torch_dist, name, lambda tensor: tensor.nbytes)
    for name in OBJECTS:
        watch(dist, name, lambda value: len(pickle.dumps(value)))
    return found


def steps_and_checkpoint(ranks: int, how: dict[str, Any]) -> tuple[Any, Any, int, Any]:
    """What a rank sends in three steps and for a checkpoint, the samples it counts, the random states that it gets."""
    with simulated_ranks(ranks, rank=1), pytest.MonkeyPatch.context() as patch:
        data = regression_data(3, 4)
        trainer = trainer_of(Regression(), data, device="cpu", loggers=Received(), seed=1, **how)
        found = collectives(patch)
        trainer.fit()
        trained = found.copy()
        found.clear()
        content = collect(trainer.state, metrics=True)
        samples = int(trainer.state.timestamp.sample)
        trainer.close()
    return trained, found, samples, content["rng"]


@pytest.mark.parametrize("how", [{}, {"parallelism_config": {"fsdp": {}}}], ids=["ddp", "fsdp"])
def test_a_rank_of_1024_sends_as_much_as_a_rank_of_two(how: dict[str, Any]) -> None:
    few, few_saved, samples, rng = steps_and_checkpoint(2, how)
    assert samples == 2 * 12
    assert rng == [], "only rank 0 has the random states of all ranks"
    many, many_saved, samples, _ = steps_and_checkpoint(1024, how)
    assert samples == 1024 * 12
    vectors = [count for (name, size), count in few.items() if name == "all_reduce" and size > 64]
    assert vectors == [3], "one all-reduce of counts in a step"
    # What is reduced goes along the four axes of the grid of 1,024 ranks.
    assert many == Counter({call: count * (4 if call[0] == "all_reduce" else 1) for call, count in few.items()})
    assert many_saved == few_saved
    assert not any(name == "all_gather_object" for name, _ in many_saved)


def test_metrics_of_1024_ranks_are_reduced_and_not_gathered() -> None:
    with simulated_ranks(1024), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_dist, "all_gather", lambda *_, **__: pytest.fail("a state of each rank"))
        trainer = trainer_of(classifier(), labeled_data(), device="cpu", loggers=Received())
        trainer.fit()
        accuracy = float(next(iter(trainer.state.train_values.values())))
        trainer.close()
    assert 0 <= accuracy <= 1


def test_values_that_are_the_same_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_ranks(16_384):
        found = collectives(monkeypatch)
        dist.check_same("vocabulary", list(range(1000)))
        assert found == {("all_reduce", 16): len(grid_of(16_384))}
