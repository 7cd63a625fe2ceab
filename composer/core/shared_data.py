"""Data that an evaluation reads while training is in the middle of it, if its iterators share a position."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from composer.core.data_sharding import samplers_of
from composer.core.epoch_iterator import counts_samples, has_state_dict, state_of

__all__ = ["KeptStarts", "independent_copy", "indexed_state", "positioned"]

# What a copy of a loader must not take over from it; the last two are those of torchdata's StatefulDataLoader.
_FRESH = {
    "_iterator": None,
    "persistent_workers": False,
    "next_iter_state": None,
    "_initial_iter_for_state_dict": False,
}


def positioned(loader: Any) -> Any:
    """Return the loader or dataset whose iterators begin where it is, rather than at the start of its data, or None.

    Args:
        loader: A loader.

    >>> from composer.datasets import TensorLoader
    >>> loader = TensorLoader([torch.arange(3)], 1, device="cpu")
    >>> positioned(loader) is loader, positioned(DataLoader(torch.arange(3)))
    (True, None)
    """
    dataset = getattr(loader, "dataset", None)
    if has_state_dict(dataset) and counts_samples(dataset):  # streaming datasets begin at the start of an epoch
        return None
    if has_state_dict(loader) and not _is_torchdata(loader):
        return loader
    in_workers = getattr(loader, "num_workers", 0) > 0  # which have copies of the dataset
    return dataset if isinstance(dataset, IterableDataset) and has_state_dict(dataset) and not in_workers else None


def indexed_state(loader: Any) -> Any:
    """Return the dataset with indices that has a state in this process, such as a generator for transforms, or None.

    Args:
        loader: A loader.

    >>> indexed_state(DataLoader(torch.arange(3))) is None
    True
    """
    dataset = getattr(loader, "dataset", None)
    in_workers = getattr(loader, "num_workers", 0) > 0  # which have copies of the dataset
    if in_workers or isinstance(dataset, IterableDataset) or not has_state_dict(dataset) or counts_samples(dataset):
        return None
    return dataset


class KeptStarts:
    """The states of loaders and datasets whose iterators begin where they are, before others read them.

    Args:
        loaders: Loaders, of which those without such a position are left out.

    >>> from composer.datasets import TensorLoader
    >>> loader = TensorLoader([torch.arange(3)], 1, device="cpu")
    >>> starts = KeptStarts(loader)
    >>> starts.keep()
    >>> _ = next(iter(loader))
    >>> starts.restore()
    >>> len(list(loader))
    3
    """

    def __init__(self, *loaders: Any) -> None:
        self._data = {id(data): data for data in map(positioned, loaders) if data is not None}
        self._states: dict[int, Any] = {}

    def keep(self) -> None:
        """Keep the current states, unless this was done before."""
        if not self._states:
            self._states = {key: copy.deepcopy(state_of(data)) for key, data in self._data.items()}

    def of(self, loader: Any) -> tuple[Any, ...]:
        """Return, in a tuple, the state of a loader or its dataset; empty if none was kept.

        Args:
            loader: The loader.
        """
        key = id(positioned(loader))
        return (self._states[key],) if key in self._states else ()

    def restore(self) -> None:
        """Load the kept states."""
        for key, state in self._states.items():
            self._data[key].load_state_dict(copy.deepcopy(state))


def independent_copy(loader: Any, starts: KeptStarts | None = None) -> Any:
    """Return a copy of a loader whose iterators do not affect those of the loader, or None if there can be none.

    It has workers of its own, and copies of a dataset and of samplers that have a position, but shares read-only
    arrays. Of other loaders than those of torch and torchdata, whose state may be anywhere, only those with a method
    ``__independent_copy__`` are copied; streaming datasets, which have one iterator, are not.

    Args:
        loader: The loader.
        starts: The states of datasets at their start, as far as they are known: others begin where they are.

    >>> loader = DataLoader(torch.arange(2))
    >>> list(independent_copy(loader))
    [tensor([0]), tensor([1])]
    """
    if hasattr(loader, "__independent_copy__"):
        return loader.__independent_copy__(starts)
    if not isinstance(loader, DataLoader) or (has_state_dict(loader) and not _is_torchdata(loader)):
        return None
    dataset: Any = loader.dataset
    if has_state_dict(dataset) and counts_samples(dataset):
        return None
    made = copy.copy(loader)
    vars(made).update({name: value for name, value in _FRESH.items() if name in vars(made)})
    if positioned(loader) is dataset:
        try:
            own = copy.deepcopy(dataset, _read_only(dataset))
        except Exception:  # it holds an open file, for example
            return None
        for state in () if starts is None else starts.of(loader):
            own.load_state_dict(copy.deepcopy(state))
        vars(made)["dataset"] = own
    if any(map(has_state_dict, samplers_of(loader))):  # torchdata's StatefulDistributedSampler, for example
        try:
            own = copy.deepcopy((loader.sampler, loader.batch_sampler), {id(dataset): made.dataset})
        except Exception:
            return None
        vars(made)["sampler"], vars(made)["batch_sampler"] = own
    return made


def _read_only(dataset: Any) -> dict[int, Any]:
    """Return the read-only arrays of a dataset by their id: mapped files, for example, may not fit into memory."""
    values = list(getattr(dataset, "__dict__", {}).values())
    for value in tuple(values):
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, (list, tuple)):
            values += value
    return {id(one): one for one in values if isinstance(one, np.ndarray) and not one.flags.writeable}


def _is_torchdata(loader: Any) -> bool:
    return any(each.__module__.partition(".")[0] == "torchdata" for each in type(loader).__mro__)
