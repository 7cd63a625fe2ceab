"""An evaluation on the training data itself, on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from composer import dist
from composer.datasets import DevicePrefetcher
from tests.common import weights
from tests.ranks import Ranks
from tests.trainer.test_evaluation_on_training_data import made, run
from tests.trainer.test_resume_within_step import BATCH, SAMPLES, samples


def of_a_rank(name: str) -> Any:
    torch.set_num_threads(1)
    _, expected, _ = run(made(name))
    loader = made(name)
    _, seen, counted = run(loader, loader)
    return expected, seen, counted


@pytest.mark.parametrize("name", ["map-style", "placed stream", "tensors", "mixture"])
def test_two_ranks(name: str, two_ranks: Ranks) -> None:
    for expected, seen, counted in two_ranks.run(of_a_rank, name):
        assert seen == expected
        assert len(set(counted)) == 1


class Augmented(Dataset[Any]):
    """Its samples depend on the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, y = samples()[index]
        return x + self.epoch, y


def of_another_loader(_: str) -> Any:
    torch.set_num_threads(1)
    _, expected, _ = run(DataLoader(Augmented(), BATCH, shuffle=True))
    data = Augmented()
    _, seen, counted = run(DataLoader(data, BATCH, shuffle=True), DataLoader(data, BATCH))
    return expected, seen, counted


def test_another_loader_of_the_dataset(two_ranks: Ranks) -> None:
    for expected, seen, _ in [of_another_loader(""), *two_ranks.run(of_another_loader, "")]:
        assert seen == expected


class UnevenStream(IterableDataset[Any]):
    def __iter__(self):
        for index in range(SAMPLES - 9 * dist.get_global_rank()):
            yield samples()[index]


def saved_by_a_rank(folder: str) -> Any:
    torch.set_num_threads(1)

    def loader() -> Any:
        return DevicePrefetcher(DataLoader(UnevenStream(), BATCH), device="cpu")

    whole, expected, _ = run(loader(), save_folder=folder, save_interval="1ba")
    resumed, rest, _ = run(loader(), load_path=f"{folder}/ep0-ba5-rank0.pt")
    return expected[5:], rest, torch.equal(weights(resumed), weights(whole))


def test_a_prefetcher_whose_data_ends_earlier_on_a_rank(two_ranks: Ranks, tmp_path: Path) -> None:
    (expected, rest, is_same), (_, _, is_other_same) = two_ranks.run(saved_by_a_rank, str(tmp_path))
    assert rest == expected  # the other rank has dummy batches
    assert is_same and is_other_same
