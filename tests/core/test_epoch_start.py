"""The number of an epoch: set on samplers, datasets and loaders, and kept while other loaders read the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from composer.core.epoch_start import epoch_kept, set_epoch
from composer.datasets import DevicePrefetcher, TensorLoader


class Epochs(Dataset[Any]):
    """Records the numbers of its epochs, which no attribute has."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.numbers.append(epoch)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def sampled() -> DataLoader[Any]:
    data = Epochs()
    return DataLoader(data, sampler=DistributedSampler(data, num_replicas=1, rank=0))


def others(loader: DataLoader[Any]) -> dict[str, Any]:
    """Loaders that read the same dataset and sampler."""
    return {
        "itself": loader,
        "another": DataLoader(loader.dataset, 2, sampler=loader.sampler),
        "prefetched": DevicePrefetcher(loader, "cpu"),
    }


@pytest.mark.parametrize("kind", others(sampled()))
@pytest.mark.parametrize("is_prefetched", [False, True])
def test_samplers_and_datasets_keep_their_epoch(kind: str, is_prefetched: bool) -> None:
    loader = sampled()
    data = DevicePrefetcher(loader, "cpu") if is_prefetched else loader
    set_epoch(loader, 3)
    with pytest.raises(KeyError), epoch_kept(data, others(loader)[kind], 3):
        set_epoch(loader, 0)
        raise KeyError
    assert loader.sampler.epoch == 3
    assert loader.dataset.numbers == [3, 0, 3]


def test_the_next_epoch_of_a_stream() -> None:
    loader = SimpleNamespace(dataset=SimpleNamespace(next_epoch=2))
    with epoch_kept(loader, loader, 1):
        set_epoch(loader, 0)
        assert loader.dataset.next_epoch == 0
    assert loader.dataset.next_epoch == 2


def test_other_data_and_loaders_with_a_state_are_left_as_they_are() -> None:
    other = sampled()
    set_epoch(other, 3)
    tensors = TensorLoader([torch.arange(4)], 1, device="cpu")
    with epoch_kept(sampled(), other, 1), epoch_kept(tensors, tensors, 1):
        set_epoch(other, 0)
        next(iter(tensors))
        position = tensors.state_dict()
    assert other.sampler.epoch == 0
    assert tensors.state_dict() == position
