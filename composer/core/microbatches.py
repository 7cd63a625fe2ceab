"""Count the samples of a batch and split it into microbatches, for gradient accumulation."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, SupportsIndex

from torch import Tensor

from composer import trees
from composer._containers import is_mapping, is_sequence, rebuild, with_attributes, with_items
from composer.core.types import Batch
from composer.warnings import ComposerWarning

__all__ = ["as_microbatch", "count_samples", "split"]


def count_samples(batch: Batch) -> int:
    """Return the number of samples in a batch: the first dimension, on which its tensors and arrays must agree.

    Without tensors and arrays it is the length of its lists, on which they must agree: of the batch itself if it is a
    list of samples, else of the values of a mapping or the elements of a sequence.

    Args:
        batch: A tensor, or a (nested) sequence or mapping with tensors, arrays or lists of samples.

    Raises:
        NotImplementedError: There is nothing with a length, or the lengths differ.

    >>> count_samples({"x": torch.zeros(3, 2), "y": torch.zeros(3)})
    3
    >>> count_samples({"tokens": [[1, 2], [3], [4, 5, 6]], "label": [0, 1, 0]}), count_samples(["a", "b"])
    (3, 2)
    """
    cls: Any = type(batch)
    if (cls is tuple or cls is list) and len(batch) == 2 and type(batch[0]) is type(batch[1]) is Tensor:
        # The usual batch, in a third of the time: every training step is counted.
        x, y = batch[0].shape, batch[1].shape
        if x and y and x[0] == y[0]:
            return x[0]
    if isinstance(batch, Tensor) and batch.ndim > 0:
        return batch.shape[0]
    sizes = {rows for leaf in trees.leaves(batch) if (rows := _rows(leaf)) is not None}
    what = "tensors"
    if not sizes:
        sizes, what = {length for length, _ in _lengths_of_lists(batch)}, "lists"
    if len(sizes) != 1:
        nothing = f"neither a tensor with rows nor a list of samples in a {type(batch).__name__}"
        found = f"{what} with {sorted(sizes)} samples" if sizes else nothing
        raise NotImplementedError(
            f"Cannot determine the number of samples of a batch: found {found}. Pass "
            f"DataSpec(dataloader, get_num_samples_in_batch=...)."
        )
    return sizes.pop()


def split(batch: Batch, microbatch_size: int) -> Sequence[Batch]:
    """Split a batch into microbatches along the first dimension of its tensors; the last may be smaller.

    Tensors and arrays are split, in mappings, sequences and dataclasses too, which keep their class; but a plain list
    of tensors, which is what torch collates pairs to, becomes a tuple. Sequences with one entry for each sample are
    split as well: those without tensors, and those whose tensors differ in length (ragged data). Other values go into
    every microbatch.

    Args:
        batch: The batch.
        microbatch_size: Number of samples in a microbatch.

    Raises:
        NotImplementedError: The batch contains nothing to split.
        ValueError: The size is not a positive integer.

    >>> split([torch.arange(3), {"y": torch.arange(3)}], 2)
    [(tensor([0, 1]), {'y': tensor([0, 1])}), (tensor([2]), {'y': tensor([2])})]
    >>> split({"text": ["a", "b", "c"]}, 2)
    [{'text': ['a', 'b']}, {'text': ['c']}]
    """
    if not isinstance(microbatch_size, SupportsIndex) or int(microbatch_size) < 1:
        raise ValueError(f"microbatch_size must be a positive integer; got {microbatch_size!r}.")
    total, depth = _extent(batch)
    parts = _split(batch, int(microbatch_size), total, depth)
    if parts is None:
        raise NotImplementedError(
            f"Cannot split a batch of type {type(batch).__name__}: it contains neither a tensor nor a list of samples, "
            f"or lists of different lengths. Pass DataSpec(dataloader, split_batch=...)."
        )
    # A list of samples stays a list.
    return [tuple(part) for part in parts] if type(batch) is list and depth > 0 else parts


def as_microbatch(batch: Batch) -> Batch:
    """Return a batch as a single microbatch, of the same type as the microbatches of :func:`split`.

    Args:
        batch: The batch.

    >>> as_microbatch([torch.zeros(1), torch.ones(1)]), as_microbatch(["a", "b"])
    ((tensor([0.]), tensor([1.])), ['a', 'b'])
    """
    if type(batch) is not list or not batch:
        return batch
    # The usual batch first: this runs in each training step.
    return tuple(batch) if type(batch[0]) is Tensor or _extent(batch)[1] > 0 else batch


def _rows(leaf: Any) -> int | None:
    """Return the first dimension of a tensor or array; None for scalars and other values."""
    shape = getattr(leaf, "shape", None)
    return int(shape[0]) if isinstance(shape, tuple) and shape else None


def _extent(batch: Batch) -> tuple[int, int]:
    """Return the number of samples and its depth in the batch: that of the longest tensor at the outermost level.

    Without tensors or arrays, it is the length of the lists of samples; 0 if their lengths differ or there are none.
    """
    level, depth = [batch], 0
    while level:
        lengths = [rows for value in level if (rows := _rows(value)) is not None]
        if lengths:
            return max(lengths), depth
        level = [part for value in level for part in _open(value)[0]]
        depth += 1
    found = list(_lengths_of_lists(batch))
    return (found[0][0], min(depth for _, depth in found)) if len({length for length, _ in found}) == 1 else (0, 0)


def _lengths_of_lists(batch: Batch) -> Iterator[tuple[int, int]]:
    """Yield the lengths and depths of the lists of samples in a batch without tensors that have rows.

    If the elements of a sequence contain lists, these are lists of samples; otherwise the sequence is one. A tuple is a
    list of samples only if it contains values of one type, such as strings: others are the fields of one sample.
    """
    parts, _ = _open(batch)
    found = [length for part in parts for length in _lengths_inside(part, 1)]
    if found:
        yield from found
        return
    is_list = _holds_samples(batch) and not any(isinstance(leaf, Tensor) for leaf in trees.leaves(batch))
    if isinstance(batch, tuple):
        is_list = is_list and len({type(part) for part in parts}) == 1 and not _is_container(parts[0])
    if parts and is_list:
        yield len(parts), 0


def _lengths_inside(part: Any, depth: int) -> Iterator[tuple[int, int]]:
    if _holds_samples(part):
        yield len(part), depth
    else:
        for inner in _open(part)[0]:
            yield from _lengths_inside(inner, depth + 1)


def _holds_samples(value: Any) -> bool:
    """Return whether the entries may be samples: those of a named tuple are fields of the batch."""
    return is_sequence(value) and not hasattr(value, "_fields")


def _split(value: Any, size: int, total: int, depth: int) -> list[Any] | None:
    """Split a value that has one entry for each sample; return None for a value that belongs to the full batch.

    Sequences above ``depth`` hold the fields of a batch, regardless of their number.
    """
    rows = _rows(value)
    if rows is not None:
        if rows != total:
            if size < total:
                _warn_unsplit(rows, total)
            return None
        if isinstance(value, Tensor):
            return list(value.split(size))
        return [value[start : start + size] for start in range(0, max(total, 1), size)]
    if not _is_container(value):
        return None
    parts, make = _open(value)
    if parts and depth <= 0 and len(parts) == total and _holds_samples(value):
        lengths = {rows for leaf in trees.leaves(value) if (rows := _rows(leaf)) is not None}
        if lengths != {total}:
            return [make(parts[start : start + size]) for start in range(0, total, size)]
    split_parts = [_split(part, size, total, depth - 1) for part in parts]
    count = max((len(pieces) for pieces in split_parts if pieces is not None), default=None)
    if count is None:
        return None
    columns = [[part] * count if pieces is None else pieces for part, pieces in zip(parts, split_parts, strict=True)]
    return [make(list(row)) for row in zip(*columns, strict=True)]


def _is_container(value: Any) -> bool:
    return is_mapping(value) or is_sequence(value) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _open(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the elements of a container (none for other values), and a function that builds one of the same type."""
    if is_mapping(value):
        return list(value.values()), lambda parts: with_items(value, dict(zip(value, parts, strict=True)))
    if is_sequence(value):
        return list(value), lambda parts: rebuild(value, parts)
    if not _is_container(value):
        return [], lambda parts: value
    names = [field.name for field in dataclasses.fields(value)]
    parts = [getattr(value, name) for name in names]
    return parts, lambda parts: with_attributes(value, dict(zip(names, parts, strict=True)))


def _warn_unsplit(length: int, total: int) -> None:
    message = (
        f"A tensor in the batch has {length} rows, but there are {total} samples; every microbatch gets all of it. "
        f"Pass DataSpec(dataloader, split_batch=...) to split it."
    )
    warnings.warn(message, ComposerWarning, stacklevel=2)
