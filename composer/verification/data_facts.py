"""Facts about the training data: whether batches split as they should, and whether training modifies the data set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset

from composer import rng, trees
from composer.core.data_spec import DataSpec
from composer.core.microbatches import count_samples
from composer.core.state import State
from composer.verification.digests import digest

__all__ = ["after", "before", "rows"]

# Seconds for fetching samples before and after training.
_TIME = 1.0
_ROWS = 4096


def rows(spec: DataSpec, batch: Any) -> tuple[Sequence[Any], list[str]]:
    """Return the samples of a batch, each as a batch of one, and what is wrong with how the batch is counted and split.

    Args:
        spec: The data.
        batch: A batch of it.

    >>> rows(DataSpec([]), [torch.ones(3, 1)])[1]
    []
    """
    problems: list[str] = []
    try:
        size: int | None = count_samples(batch)
    except NotImplementedError:
        size = None  # only the user's own function knows
    counted = spec.get_num_samples_in_batch(batch)
    if size is not None and counted != size:
        problems.append(f"get_num_samples_in_batch returns {counted} for a batch of {size} samples")
    single = list(spec.split_batch(batch, 1))
    if size is not None and len(single) != size:
        problems.append(f"split_batch with microbatch_size=1 returns {len(single)} microbatches of {size} samples")
    elif size is not None:
        problems += _unequal(spec, batch, single, size)
    return single, problems


def _unequal(spec: DataSpec, batch: Any, single: list[Any], size: int) -> list[str]:
    """Return how the rows of microbatches differ from those of the batch."""
    expected = [sorted(_row_digests(leaf)) for leaf in _tensors(batch, size)]
    for microbatch_size in (1, max(size // 2, 1)):
        microbatches = single if microbatch_size == 1 else list(spec.split_batch(batch, microbatch_size))
        parts = [_tensors(each, None) for each in microbatches]
        if any(len(each) != len(expected) for each in parts):
            continue  # a container that does not keep its tensors
        found = [sorted(d for part in parts for d in _row_digests(part[i])) for i in range(len(expected))]
        if found != expected:
            return [f"split_batch with microbatch_size={microbatch_size} loses, repeats or changes rows of the batch"]
    return []


def _tensors(batch: Any, size: int | None) -> list[Tensor]:
    """Return the tensors of a batch that have a row for each sample."""
    found = [leaf for leaf in trees.leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim > 0]
    return [leaf for leaf in found if size is None or leaf.shape[0] == size]


def _row_digests(tensor: Tensor) -> list[str]:
    return [digest(row) for row in tensor]


def before(state: State) -> dict[str, Any]:
    """Return digests of samples of the training data before training.

    Args:
        state: The state of the run.
    """
    first, second = _fetched(state, None), None
    if first:
        second = _fetched(state, len(first))
    return {"first": first, "own random numbers": first != second if first else False}


def after(state: State, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts about the data: whether samples have changed in training.

    Args:
        state: The state of the run, after training.
        facts: What :func:`before` returned.
    """
    first = facts.get("first", [])
    own = facts.get("own random numbers", False)
    modified: list[int] = []
    if first and not own:
        modified = [i for i, pair in enumerate(zip(first, _fetched(state, len(first)), strict=True)) if pair[0] != pair[1]]
    return {"rows": len(first), "own random numbers": own, "modified": modified}


def _fetched(state: State, count: int | None) -> list[str]:
    """Return digests of the first samples of the data, each fetched with the same random state.

    Args:
        state: The state of the run.
        count: Number of samples; None for as many as can be fetched in a second.
    """
    loader = state.train_phase.loader.dataloader if state.train_phase.loader is not None else None
    dataset = loader if isinstance(loader, list | tuple) else getattr(loader, "dataset", None)
    if dataset is None or isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return []
    found: list[str] = []
    start = time.monotonic()
    with rng.preserve_rng_state():
        for index in range(min(len(dataset), _ROWS) if count is None else count):
            if count is None and time.monotonic() - start > _TIME:
                break
            rng.seed_all(index)
            found.append(digest(dataset[index]))
    return found
