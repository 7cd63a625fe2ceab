"""Split evaluation data into two halves: one to select variants by, and a held-out one for what is reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, get_args

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset

from composer.core.evaluator import Evaluator
from composer.exploration.runner import Split
from composer.trials.nested_values import loader_like

__all__ = ["keep_half"]

# Of the order in which samples are dealt to the halves; all runs have the same halves.
_SEED = 0
_SPLITS: tuple[Split, ...] = get_args(Split)
_IN_ORDER = (SequentialSampler, RandomSampler)


def keep_half(evaluators: Sequence[Evaluator], split: Split) -> list[str]:
    """Leave one half of the data to evaluators, and return the labels of those that cannot be split.

    Datasets with an index are split by sample, at random; other data by batch, every second one. Two batches suffice.

    Args:
        evaluators: The evaluators, which are changed.
        split: Which half.

    >>> evaluator = Evaluator(label="eval", dataloader=[1, 2, 3])
    >>> keep_half([evaluator], "confirmation"), list(evaluator.dataloader.dataloader)
    ([], [2])
    """
    whole: list[str] = []
    for evaluator in evaluators:
        spec = evaluator.dataloader
        loader: Any = spec.dataloader
        half = _half(loader, _SPLITS.index(split))
        if half is None:
            whole.append(evaluator.label)
            continue
        spec.dataloader = half
        dataset: Any = getattr(half, "dataset", None)
        spec.num_samples = len(dataset) if isinstance(dataset, Sized) else None
        if evaluator.subset_num_batches not in (None, -1) and isinstance(half, Sized):
            evaluator.subset_num_batches = min(evaluator.subset_num_batches, len(half))
    return whole


def _half(loader: Any, which: int) -> Any:
    """Return a loader of one half, or None if there is one batch only."""
    if type(loader) is DataLoader and not isinstance(loader.dataset, IterableDataset):
        number = len(loader.dataset)  # type: ignore[arg-type]
        sampler: Any = loader.sampler
        if loader.batch_size is not None and type(sampler) in _IN_ORDER and number > 1:
            return loader_like(loader, Subset(loader.dataset, _indices(number, which)))
        is_batched = loader.batch_size is None and type(sampler) is BatchSampler and type(sampler.sampler) in _IN_ORDER
        if is_batched and number > 1:
            batches = BatchSampler(_indices(number, which), sampler.batch_size, sampler.drop_last)
            return loader_like(loader, loader.dataset, sampler=batches)
    try:
        number = len(loader)
    except TypeError:
        return _EverySecond(loader, which)
    return _SizedEverySecond(loader, which) if number > 1 else None


def _indices(number: int, which: int) -> list[int]:
    """Return the indices of one half: at random, since sorted and alternating data have regular classes."""
    order = torch.randperm(number, generator=torch.Generator().manual_seed(_SEED))
    return sorted(order[which::2].tolist())


class _EverySecond:
    """Yields every second batch of a loader."""

    def __init__(self, loader: Iterable[Any], which: int) -> None:
        self._loader, self._which = loader, which
        self.shards_data = bool(getattr(loader, "shards_data", False))

    def __iter__(self) -> Iterator[Any]:
        return (batch for number, batch in enumerate(self._loader) if number % 2 == self._which)


class _SizedEverySecond(_EverySecond):
    """Every second batch of a loader with a length."""

    def __len__(self) -> int:
        loader: Any = self._loader
        return (len(loader) + 1 - self._which) // 2
