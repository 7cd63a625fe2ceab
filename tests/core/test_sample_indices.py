"""The indices that are computed are those of the samples in the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, TensorDataset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from composer import Callback
from composer.core.sample_indices import sample_indices
from tests.common import Regression, regression_data, trainer_of

SAMPLES = 11


class Compare(Callback):
    """Compares the indices with those in the batch, at several events."""

    def __init__(self, iterates_custom: bool = False) -> None:
        self.iterates_custom, self.found, self.reasons = iterates_custom, 0, set[str]()

    def after_dataloader(self, state, logger):
        found = sample_indices(state.train_phase, iterates_custom=self.iterates_custom)
        if found.indices is None:
            self.reasons.add(found.reason)
        else:
            assert found.indices == state.batch[2].tolist()
            self.found += 1

    batch_start = batch_end = after_dataloader


def data() -> TensorDataset:
    x, y = regression_data(1, SAMPLES)[0]
    return TensorDataset(x, y, torch.arange(SAMPLES))


class Odd(Sampler[int]):
    def __iter__(self):
        return iter(torch.randperm(SAMPLES)[::2].tolist())

    def __len__(self):
        return (SAMPLES + 1) // 2


def loaders() -> dict[str, DataLoader[Any]]:
    weights = [1.0 + i for i in range(SAMPLES)]
    seeded = torch.Generator().manual_seed(3)
    return {
        "in order": DataLoader(data(), 3),
        "shuffled": DataLoader(data(), 3, shuffle=True),
        "dropping": DataLoader(data(), 4, shuffle=True, drop_last=True),
        "own generator": DataLoader(data(), 3, shuffle=True, generator=seeded),
        "workers": DataLoader(data(), 2, shuffle=True, num_workers=1, prefetch_factor=4),
        "weighted": DataLoader(data(), 3, sampler=WeightedRandomSampler(weights, 8)),
        "replacement": DataLoader(data(), 3, sampler=RandomSampler(data(), replacement=True, num_samples=8)),
        "distributed": DataLoader(data(), 3, sampler=DistributedSampler(data(), num_replicas=1, rank=0)),
        "batch sampler": DataLoader(data(), batch_sampler=BatchSampler(RandomSampler(data()), 4, drop_last=False)),
        "custom": DataLoader(data(), 2, sampler=Odd()),
    }


@pytest.mark.parametrize("name", loaders())
def test_indices_of_the_batch(name):
    compare = Compare(iterates_custom=name == "custom")
    with trainer_of(Regression(), loaders()[name], max_duration="3ep", callbacks=compare, seed=5) as trainer:
        trainer.fit()
        assert compare.found == 3 * int(trainer.state.timestamp.batch)
    assert not compare.reasons


def test_resumed_in_the_middle_of_an_epoch(tmp_path):
    def made(duration: str, **arguments: Any) -> Compare:
        compare = Compare()
        with trainer_of(
            Regression(), loaders()["shuffled"], callbacks=compare, max_duration=duration, seed=5, **arguments
        ) as trainer:
            trainer.fit()
        return compare

    made("6ba", save_folder=str(tmp_path), save_interval="6ba")
    assert made("11ba", load_path=str(tmp_path / "ep1-ba6-rank0.pt")).found == 3 * 5


def test_reasons():
    for loader, reason in (
        (regression_data(), "list is not a torch DataLoader over a dataset with indices"),
        (loaders()["custom"], "the order of Odd is known only by iterating it again"),
    ):
        compare = Compare()
        with trainer_of(Regression(), loader, callbacks=compare) as trainer:
            assert sample_indices(trainer.state.train_phase).reason == "no training batch has been fetched"
            trainer.fit()
        assert compare.found == 0 and compare.reasons == {reason}
    compare = Compare()
    with trainer_of(Regression(), loaders()["shuffled"], callbacks=compare, overfit_batches=2) as trainer:
        trainer.fit()
    assert compare.reasons == {"overfit_batches repeats batches, whose positions are not kept"}


def uneven(_: Any) -> tuple[list[int], list[int]]:
    """Two ranks: the last step of an epoch of 11 samples has 3 for one rank of batches of 2, and 1 for the other."""
    seen, computed = list[int](), list[int]()

    class Both(Callback):
        def after_dataloader(self, state, logger):
            found = sample_indices(state.train_phase).indices
            assert found is not None
            computed.extend(found)
            seen.extend(state.batch[2].tolist() if found else [])

    short = torch.utils.data.Subset(data(), range(9))  # the second rank has nothing in the last step
    with trainer_of(Regression(), DataLoader(short, 2, shuffle=True), callbacks=Both(), seed=5) as trainer:
        trainer.fit()
    return seen, computed


def test_two_ranks(two_ranks):
    (first, computed), (second, computed_second) = two_ranks.run(uneven, None)
    assert first == computed and second == computed_second
    assert sorted(first + second) == list(range(9))
