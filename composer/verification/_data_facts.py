"""Facts about the training data: whether batches split as they should, and whether training modifies the data set."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from composer import rng, trees
from composer._text import plural
from composer.core.data_spec import DataSpec
from composer.core.microbatches import count_samples
from composer.core.state import State
from composer.verification.digests import digest
from composer.verification.objects import is_own, name_of

__all__ = ["after", "before", "ignored_labels", "names", "rows", "token_function"]

# Seconds for fetching samples before and after training.
_TIME = 1.0
_ROWS = 4096
_MAX_INDICES = 1_000_000
# The largest share of an epoch that a mistake in the bounds of a sampler repeats.
_MISTAKES = 0.1


def rows(spec: DataSpec, batch: Any) -> tuple[Sequence[Any], list[tuple[str, str]]]:
    """Return the samples of a batch, each as a batch of one, and what is wrong with how the batch is counted and split.

    Args:
        spec: The data.
        batch: A batch of it.

    Returns:
        The samples, and for each error the name of the function that makes it, and the error.

    >>> rows(DataSpec([]), [torch.ones(3, 1)])[1]
    []
    """
    problems: list[tuple[str, str]] = []
    try:
        size: int | None = count_samples(batch)
    except NotImplementedError:
        size = None  # only the user's own function knows
    counted = spec.get_num_samples_in_batch(batch)
    if size is not None and counted != size:
        problem = f"get_num_samples_in_batch returns {counted} for a batch of {size}"
        problems.append((_function("get_num_samples_in_batch", spec), problem))
    single = list(spec.split_batch(batch, 1))
    split = _function("split_batch", spec)
    if size is not None and len(single) != size:
        problem = f"split_batch with microbatch_size=1 returns {len(single)} microbatches of {size} samples"
        problems.append((split, problem))
    elif size is not None:
        problems += [(split, problem) for problem in _unequal(spec, batch, single, size)]
    return single, problems


def _function(name: str, spec: DataSpec) -> str:
    """Return the name of a function of the data, with that of the function of the program that it is."""
    function = getattr(spec, name)
    return f"{name} ({name_of(function)})" if is_own(function) else name


def _unequal(spec: DataSpec, batch: Any, single: list[Any], size: int) -> list[str]:
    """Return how the rows of microbatches differ from those of the batch."""
    expected = sorted(_rows(_tensors(batch, size)))
    number = len(_tensors(batch, size))
    for microbatch_size in (1, max(size // 2, 1)):
        microbatches = single if microbatch_size == 1 else list(spec.split_batch(batch, microbatch_size))
        parts = [_tensors(each, None) for each in microbatches]
        if any(len(part) != number or len({len(leaf) for leaf in part}) > 1 for part in parts):
            continue  # a container that does not keep its tensors
        if sorted(row for part in parts for row in _rows(part)) != expected:
            return [f"split_batch with microbatch_size={microbatch_size} loses, repeats or changes rows"]
    return []


def ignored_labels(batch: Any) -> dict[str, Any] | None:
    """Return where a batch has labels that a loss can ignore, such as -100, or None if it has none.

    Args:
        batch: A batch of the data: a mapping or a sequence.

    Returns:
        ``"labels"``, the expression for the labels in code; ``"ignored"``, the negative value; and ``"counts"``, the
        smallest and the largest number of other values in a sample.

    >>> ignored_labels({"labels": torch.tensor([[1, 2, -100], [1, -100, -100]])})
    {'labels': "batch['labels']", 'ignored': -100, 'counts': [1, 2]}
    """
    keys = batch.keys() if isinstance(batch, Mapping) else range(len(batch)) if isinstance(batch, list | tuple) else ()
    for key in keys:
        labels = batch[key]
        if not isinstance(labels, Tensor) or labels.ndim == 0 or labels.is_floating_point() or labels.is_complex():
            continue
        negative = labels[labels < 0]
        if negative.numel() and bool((negative == negative[0]).all()):
            counts = (labels != negative[0]).flatten(1).sum(1) if labels.ndim > 1 else labels != negative[0]
            value = int(negative[0])
            return {"labels": f"batch[{key!r}]", "ignored": value, "counts": [int(counts.min()), int(counts.max())]}
    return None


def _tensors(batch: Any, size: int | None) -> list[Tensor]:
    """Return the tensors of a batch that have a row for each sample."""
    found = [leaf for leaf in trees.leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim > 0]
    return [leaf for leaf in found if size is None or leaf.shape[0] == size]


def _rows(tensors: Sequence[Tensor]) -> list[str]:
    """Return a digest of each row of tensors of equal length, of all tensors together."""
    return [digest(list(row)) for row in zip(*tensors, strict=True)]


def names(spec: DataSpec) -> list[str]:
    """Return the class names of the parts of the data that the program defines.

    Args:
        spec: The data.

    >>> names(DataSpec([]))
    []
    """
    loader = spec.dataloader
    parts = [getattr(loader, name, None) for name in ("batch_sampler", "sampler", "dataset", "collate_fn")]
    transforms = [part for each in parts for part in _inner(each)]
    found = [name_of(part) for part in (*parts, *transforms, loader) if part is not None and is_own(part)]
    found += [type(part).__name__ for part in parts if isinstance(part, DistributedSampler)]
    if not found and not type(parts[2]).__module__.startswith(("builtins", "torch.utils.data")):
        found = [name_of(parts[2])]  # a data set of a library, such as MNIST
    return list(dict.fromkeys(found))


def token_function(spec: DataSpec) -> str:
    """Return the name of the program's function that counts tokens; empty if there is none.

    Args:
        spec: The data.

    >>> token_function(DataSpec([]))
    ''
    """
    function = vars(spec).get("_DataSpec__count_tokens")
    return "" if function is None else name_of(function)


def _inner(part: Any) -> list[Any]:
    values = getattr(part, "__dict__", {}).values()
    return [one for value in values for one in (value if isinstance(value, list | tuple) else [value])][:64]


def before(state: State) -> dict[str, Any]:
    """Return digests of samples of the training data before training, and what is wrong with the order of samples.

    Args:
        state: The state of the run.
    """
    dataset = _dataset(state)
    stored = _stored(dataset)
    first = _fetched(dataset, None)
    changed = [name for name, value in _stored(dataset).items() if stored.get(name) != value]
    own = first != _fetched(dataset, len(first))
    if not own:
        changed = []  # a cache that is filled, or a count of fetches
    return {
        "first": first,
        "own random numbers": own,
        "random": not own and first != _fetched(dataset, len(first), seed=len(first)),
        "changed by a fetch": changed,
        "order": _order(state),
    }


def after(state: State, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts about the data: whether samples have changed in training.

    Args:
        state: The state of the run, after training.
        facts: What :func:`before` returned.
    """
    first, own = facts.pop("first"), facts["own random numbers"]
    modified: list[int] = []
    if first and not own:
        pairs = zip(first, _fetched(_dataset(state), len(first)), strict=True)
        modified = [i for i, (one, other) in enumerate(pairs) if one != other]
    return {**facts, "rows": len(first), "modified": modified}


def _dataset(state: State) -> Any:
    """Return the data with rows of the run, or None."""
    loader = state.train_phase.loader.dataloader if state.train_phase.loader is not None else None
    dataset = loader if isinstance(loader, list | tuple) else getattr(loader, "dataset", None)
    if dataset is None or isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return None
    return dataset


def _stored(dataset: Any) -> dict[str, str]:
    """Return digests of the tensors and arrays that a data set holds."""
    held = {
        **getattr(dataset, "__dict__", {}),
        **{f"tensors.{i}": t for i, t in enumerate(getattr(dataset, "tensors", ()))},
    }
    return {name: digest(value) for name, value in held.items() if isinstance(value, Tensor | np.ndarray)}


def _fetched(dataset: Any, count: int | None, seed: int = 0) -> list[str]:
    """Return digests of the first samples of the data, each fetched with the same random state.

    Args:
        dataset: The data.
        count: Number of samples; None for as many as can be fetched in a second.
        seed: Determines the random states.
    """
    if dataset is None:
        return []
    found: list[str] = []
    start = time.monotonic()
    with rng.preserve_rng_state():
        for index in range(min(len(dataset), _ROWS) if count is None else count):
            if count is None and time.monotonic() - start > _TIME:
                break
            rng.seed_all(seed + index)
            found.append(digest(dataset[index]))
    return found


def _order(state: State) -> list[tuple[str, str, str]]:
    """Return what is wrong with the indices that a custom sampler yields in an epoch: causes, names and summaries."""
    loader = getattr(state.train_phase.loader, "dataloader", None)
    dataset = getattr(loader, "dataset", None)
    custom = [
        part for part in (getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)) if is_own(part)
    ]
    if (
        not custom
        or isinstance(dataset, IterableDataset)
        or not isinstance(dataset, Sized)
        or len(dataset) > _MAX_INDICES
    ):
        return []
    sampler: Any = custom[0]
    with rng.preserve_rng_state():
        length, counted = _epoch(sampler, len(dataset))
        again = _epoch(sampler, len(dataset))[1]
    repeated = {index for index, times in counted.items() if times > 1}
    missing = len(dataset) - len(counted)
    name, more = name_of(sampler), f"{plural(len(repeated), 'sample')} more than once in an epoch"
    if _draws(counted, again):
        return [("drawn_with_repeats", name, f"{name} draws {more}, others in the next")]
    # A sampler of another length over- or undersamples on purpose.
    if repeated and isinstance(sampler, Sized) and len(sampler) in (len(dataset), length) and missing:
        return [("repeated_samples", name, f"{name} yields {more}, and {missing} never")]
    if missing and isinstance(sampler, BatchSampler) and not sampler.drop_last:
        return [("lost_samples", name, f"{name} never yields {missing} of {len(dataset)} samples in an epoch")]
    return []


def _epoch(sampler: Any, most: int) -> tuple[int, Counter[Any]]:
    """Return how many entries a sampler yields in an epoch, up to one more than ``most``, and how often each index."""
    entries = list(itertools.islice(iter(sampler), most + 1))
    return len(entries), Counter(
        index for entry in entries for index in (entry if isinstance(entry, list | tuple) else [entry])
    )


def _draws(one: Counter[Any], other: Counter[Any]) -> bool:
    """Return whether a sampler draws at random with repeats, judged by the times of indices in two epochs.

    A mistake in the bounds repeats a few samples, or the same ones in each epoch.
    """
    repeats = min(each.total() - len(each) for each in (one, other))
    return one != other and repeats > _MISTAKES * one.total()
