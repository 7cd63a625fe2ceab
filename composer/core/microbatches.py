"""Count the samples of a batch, split it into microbatches (gradient accumulation), and join batches."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import torch
from torch import Tensor

from composer import trees
from composer._containers import is_mapping, is_sequence, rebuild, with_attributes, with_items
from composer.core.types import Batch
from composer.core.user_counts import as_quantity
from composer.warnings import ComposerWarning

__all__ = ["as_microbatch", "count_samples", "join", "split"]

Count: TypeAlias = Callable[[Batch], Any]
"""``(batch) -> number of samples``, as users define it."""


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


def split(batch: Batch, microbatch_size: int, count: Count | None = None) -> Sequence[Batch]:
    """Split a batch into microbatches along the first dimension of its tensors; the last may be smaller.

    Tensors and arrays are split, in mappings, sequences and dataclasses too, which keep their class; but a plain list
    of tensors, which is what torch collates pairs to, becomes a tuple. Sequences with one entry for each sample are
    split as well: those without tensors, and those whose tensors differ in length (ragged data). Other values go into
    every microbatch.

    Args:
        batch: The batch.
        microbatch_size: Number of samples in a microbatch.
        count: Returns the number of samples of the batch, if its tensors differ in length: those of this length are
            split. Without it, or if none has this length, these are the longest.

    Raises:
        NotImplementedError: The batch contains nothing to split.
        ValueError: The size is not a positive integer.

    >>> split([torch.arange(3), {"y": torch.arange(3)}], 2)
    [(tensor([0, 1]), {'y': tensor([0, 1])}), (tensor([2]), {'y': tensor([2])})]
    >>> split({"text": ["a", "b", "c"]}, 2)
    [{'text': ['a', 'b']}, {'text': ['c']}]
    >>> split({"text": ["a", "b"], "choices": ["x", "y", "z"]}, 1, count=lambda batch: len(batch["text"]))
    [{'text': ['a'], 'choices': ['x', 'y', 'z']}, {'text': ['b'], 'choices': ['x', 'y', 'z']}]
    """
    if not isinstance(microbatch_size, SupportsIndex) or int(microbatch_size) < 1:
        raise ValueError(f"microbatch_size must be a positive integer; got {microbatch_size!r}.")
    total, depth = _extent(batch, count)
    parts = _split(batch, int(microbatch_size), total, depth)
    if parts is None:
        raise NotImplementedError(
            f"Cannot split a batch of type {type(batch).__name__}: it contains neither a tensor nor a list of samples, "
            f"or lists of different lengths. Pass DataSpec(dataloader, split_batch=...)."
        )
    # A list of samples stays a list.
    return [tuple(part) for part in parts] if type(batch) is list and depth > 0 else parts


def join(batches: Sequence[Batch], count: Count | None = None) -> Batch:
    """Join batches along the first dimension of their tensors, the reverse of :func:`split`; the order is kept.

    Tensors, arrays and lists with one entry for each sample are concatenated, in mappings, sequences and dataclasses
    too, which keep their class. Other values must be equal in all batches, and stay.

    Sequences that were padded to different lengths are padded to the longest if the batch is a mapping with an
    ``"attention_mask"`` (B, S): the mask with 0, ``"labels"`` with -100, ``"input_ids"`` and ``"token_type_ids"`` with
    the values that the mask excludes, on the side where the batches are padded. If the mask excludes none, with 0 on
    the right.

    Args:
        batches: One or more batches of the same structure.
        count: Returns the number of samples of a batch, as for :func:`split`.

    Raises:
        ValueError: They cannot be joined.

    >>> join([{"x": torch.arange(2), "text": ["a", "b"]}, {"x": torch.arange(1), "text": ["c"]}])
    {'x': tensor([0, 1, 0]), 'text': ['a', 'b', 'c']}
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    extents = [_extent(batch, count) for batch in batches]
    totals = [total for total, _ in extents]
    if not all(totals):
        raise _join_error("", "contains neither a tensor nor a list of samples, or lists of different lengths")
    padding = _padding_of(batches) if is_mapping(first) and "attention_mask" in first else {}
    return _join("", list(batches), totals, extents[0][1], padding)


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


def _extent(batch: Batch, count: Count | None = None) -> tuple[int, int]:
    """Return the number of samples and its depth in the batch: that of the longest tensor at the outermost level.

    Without tensors or arrays, it is the length of the lists of samples; 0 if their lengths differ or there are none. If
    lengths differ and ``count`` returns one of them, it is that one.
    """
    if count is not None and (given := _given_extent(batch, count)):
        return given
    for lengths, depth in _rows_by_level(batch):
        return max(lengths), depth
    found = list(_lengths_of_lists(batch))
    return (found[0][0], min(depth for _, depth in found)) if len({length for length, _ in found}) == 1 else (0, 0)


def _given_extent(batch: Batch, count: Count) -> tuple[int, int] | None:
    """Return the number of samples by the user's function and its depth, of tensors first; None if nothing has it."""
    found = [(length, depth) for lengths, depth in _rows_by_level(batch) for length in lengths]
    found += _lengths_of_lists(batch)
    if len({length for length, _ in found}) < 2:
        return None  # the function need not be called, which may wait for a device
    samples = as_quantity("get_num_samples_in_batch", count(batch))
    return next((extent for extent in found if extent[0] == samples), None)


def _rows_by_level(batch: Batch) -> Iterator[tuple[list[int], int]]:
    """Yield the lengths of tensors and arrays in a batch, and their depth, from the outermost level that has any."""
    level, depth = [batch], 0
    while level:
        lengths = [rows for value in level if (rows := _rows(value)) is not None]
        if lengths:
            yield lengths, depth
        level = [part for value in level for part in _open(value)[0]]
        depth += 1


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


def _are_samples(value: Any, total: int) -> bool:
    """Return whether the entries of a container are its samples, rather than fields with a row for each sample."""
    if not _holds_samples(value) or not len(value) == total > 0:
        return False
    lengths = {rows for leaf in trees.leaves(value) if (rows := _rows(leaf)) is not None}
    return lengths != {total}


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
    if depth <= 0 and _are_samples(value, total):
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


class _Padding(NamedTuple):
    value: int
    on_the_left: bool


# What extends the sequences of a batch, where its attention mask excludes them: a token, and no target.
_PADDING = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0, "labels": -100}


def _join(path: str, values: list[Any], totals: list[int], depth: int, padding: Mapping[Any, _Padding]) -> Any:
    """Join the values that all batches have at one place, as ``_split`` splits them.

    Args:
        path: The place, such as ``['x'][0]``.
        values: The value of each batch.
        totals: Number of samples of each batch.
        depth: Depth of the samples below the place.
        padding: How the entries of the place are padded, by key.
    """
    first = values[0]
    if len({type(value) for value in values}) > 1:
        raise _join_error(path, f"has different types, {sorted({type(value).__name__ for value in values})}")
    rows = [_rows(value) for value in values]
    if rows == totals:
        return _concatenated(path, values)
    if rows[0] is not None or not _is_container(first):
        return _common(path, values)
    if is_mapping(first) and any(value.keys() != first.keys() for value in values):
        raise _join_error(path, f"has different keys, such as {list(first)} and {list(values[-1])}")
    keys = list(first) if is_mapping(first) else range(len(_open(first)[0]))
    parts = [[value[key] for key in keys] if is_mapping(first) else _open(value)[0] for value in values]
    make = _open(first)[1]
    if depth <= 0 and [len(each) for each in parts] == totals and any(map(_are_samples, values, totals)):
        return make([part for each in parts for part in each])
    if len({len(each) for each in parts}) > 1:
        raise _join_error(path, f"has different numbers of entries, {sorted({len(each) for each in parts})}")
    joined: list[Any] = []
    for key, column in zip(keys, zip(*parts, strict=True), strict=True):
        entries = _padded(list(column), padding[key]) if key in padding else list(column)
        joined.append(_join(f"{path}[{key!r}]", entries, totals, depth - 1, {}))
    return make(joined)


def _concatenated(path: str, values: list[Any]) -> Any:
    """Concatenate tensors or arrays."""
    if len({tuple(value.shape[1:]) for value in values}) > 1:
        shapes = " and ".join(str(tuple(value.shape)) for value in (values[0], values[-1]))
        raise _join_error(path, f"has different shapes, such as {shapes}, and it is not known how to pad it")
    if not isinstance(values[0], Tensor):
        import numpy as np  # installed, since there is an array

        return np.concatenate(values)
    if len({value.dtype for value in values}) == 1 and values[0].is_pinned():
        # Pinned as well, so that the copy to the device does not block the host.
        shape = (sum(len(value) for value in values), *values[0].shape[1:])
        return torch.cat(values, out=torch.empty(shape, dtype=values[0].dtype, pin_memory=True))
    return torch.cat(values)


def _padding_of(batches: Sequence[Any]) -> dict[str, _Padding]:
    """Return how the sequences of batches are padded by key, as far as their attention masks show it."""
    masks: list[Any] = [batch["attention_mask"] for batch in batches]
    is_left, tokens = False, dict(_PADDING)
    if all(isinstance(mask, Tensor) and mask.ndim == 2 for mask in masks) and len({m.shape[1] for m in masks}) > 1:
        is_left = any(bool((mask[:, 0] == 0).any()) for mask in masks)
        if is_left and any(bool((mask[:, -1] == 0).any()) for mask in masks):
            raise _join_error("['attention_mask']", "excludes both the first and the last tokens of sequences")
        for key in ("input_ids", "token_type_ids"):
            pairs = ((batch.get(key), mask) for batch, mask in zip(batches, masks, strict=True))
            excluded = (ids[mask == 0] for ids, mask in pairs if isinstance(ids, Tensor) and ids.shape == mask.shape)
            tokens[key] = next((int(values[0]) for values in excluded if len(values)), tokens[key])
    return {key: _Padding(value, is_left) for key, value in tokens.items()}


def _padded(values: list[Any], padding: _Padding) -> list[Any]:
    """Pad sequences (B, S) to the longest; return others as they are."""
    if not all(isinstance(each, Tensor) and each.ndim == 2 for each in values):
        return values
    longest = max(each.shape[1] for each in values)
    missing = [longest - each.shape[1] for each in values]
    sides = [(number, 0) if padding.on_the_left else (0, number) for number in missing]
    pairs = zip(values, sides, strict=True)
    return [torch.nn.functional.pad(each, side, value=padding.value) for each, side in pairs]


def _common(path: str, values: list[Any]) -> Any:
    """Return the value that all batches share."""
    first = values[0]
    if all(_is_equal(first, value) for value in values[1:]):
        return first
    raise _join_error(path, "has one value per batch, not per sample, and they differ")


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if getattr(one, "shape", None) != getattr(other, "shape", None):
        return False
    equal: Any = one == other
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)


def _join_error(path: str, reason: str) -> ValueError:
    return ValueError(
        f"Cannot join batches of the data loader to a larger one: batch{path} {reason}. Pass DataSpec(dataloader, "
        f"join_batches=...), a function that joins a list of batches."
    )
