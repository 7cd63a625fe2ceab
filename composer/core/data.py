"""What the trainer has to know of data: how to count a batch and how to split it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, SupportsIndex, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from composer import trees
from composer._containers import is_mapping, is_sequence, rebuild, with_attributes, with_items
from composer.core.dealing import DataShare
from composer.core.indices import length_of
from composer.core.pass_factory import PassFactory
from composer.core.types import Batch
from composer.warnings import ComposerWarning

__all__ = ["DataSpec", "count_samples", "ensure_data_spec", "split"]

IGNORED_TARGET = -100


class DataSpec:
    """A data loader with the functions that count, split and transform its batches.

    Args:
        dataloader: Yields batches; a :class:`torch.utils.data.DataLoader` or any iterable.
        num_samples: Number of samples in one pass over all processes; from the data set by default.
        num_tokens: Number of tokens in one pass.
        batch_transforms: Applied to a whole batch, on the device, before ``AFTER_DATALOADER``.
        microbatch_transforms: Applied to each microbatch before its forward pass.
        split_batch: ``(batch, microbatch_size) -> microbatches``.
        get_num_samples_in_batch: ``(batch) -> int``.
        get_num_tokens_in_batch: ``(batch) -> int``, or a mapping with ``"total"`` (int) and ``"loss_generating"``
            (int or tensor, the number of tokens that the loss averages over).
        device_transforms: What early versions call ``batch_transforms``.

    Raises:
        TypeError: The loader cannot be iterated.
        ValueError: Both ``batch_transforms`` and ``device_transforms`` are given.

    >>> spec = DataSpec([(torch.ones(5, 2), torch.zeros(5))])
    >>> batch = next(iter(spec.dataloader))
    >>> spec.get_num_samples_in_batch(batch), [len(x) for x, y in spec.split_batch(batch, 2)]
    (5, [2, 2, 1])
    """

    def __init__(
        self,
        dataloader: Iterable[Batch],
        num_samples: int | None = None,
        num_tokens: int | None = None,
        batch_transforms: Callable[[Batch], Batch] | None = None,
        microbatch_transforms: Callable[[Batch], Batch] | None = None,
        split_batch: Callable[[Batch, int], Sequence[Batch]] | None = None,
        get_num_samples_in_batch: Callable[[Batch], int] | None = None,
        get_num_tokens_in_batch: Callable[[Batch], int | Mapping[str, int | Tensor]] | None = None,
        *,
        device_transforms: Callable[[Batch], Batch] | None = None,
    ) -> None:
        if batch_transforms is not None and device_transforms is not None:
            raise ValueError("device_transforms is an old name of batch_transforms; give one of them.")
        if not hasattr(dataloader, "__iter__") or isinstance(dataloader, (str, bytes, Mapping)):
            raise TypeError(f"dataloader must be iterable, such as a torch DataLoader; got {dataloader!r}.")
        self.dataloader = dataloader
        self.num_tokens = num_tokens
        self.batch_transforms = device_transforms if batch_transforms is None else batch_transforms
        self.microbatch_transforms = microbatch_transforms
        self.split_batch = split_batch or split
        self.get_num_samples_in_batch = get_num_samples_in_batch or count_samples
        self.__count_tokens = get_num_tokens_in_batch
        self.__passes: PassFactory | None = None
        dataset = getattr(dataloader, "dataset", None)
        # An iterable data set may have a length that does not say how much it yields.
        sized = isinstance(dataset, Sized) and not isinstance(dataset, torch.utils.data.IterableDataset)
        self.num_samples = len(cast(Sized, dataset)) if num_samples is None and sized else num_samples
        self.__max_seq_len: int | None = getattr(dataset, "max_seq_len", None)

    @property
    def __counts_tokens__(self) -> bool:
        """Whether the user has said how tokens are counted."""
        return self.__count_tokens is not None

    def get_num_tokens_in_batch(self, batch: Batch, token_type: str = "total") -> int | Tensor:
        """Count the tokens of a batch.

        By default all of ``batch["input_ids"]`` (B, S), or the data set's ``max_seq_len`` for every sample, or 0; of
        type ``"loss_generating"`` those whose ``batch["labels"]`` are not -100 (the total where there are no labels),
        as a tensor, so that nobody waits for the device.

        Args:
            batch: The batch.
            token_type: ``"total"`` or ``"loss_generating"``.

        Raises:
            ValueError: The user's function returned a mapping without that type.

        >>> spec = DataSpec([])
        >>> batch = {"input_ids": torch.ones(2, 3), "labels": torch.tensor([[1, 2, -100], [1, -100, -100]])}
        >>> spec.get_num_tokens_in_batch(batch), spec.get_num_tokens_in_batch(batch, "loss_generating")
        (6, tensor(3))
        """
        if self.__count_tokens is None:
            return self.__default_count(batch, token_type)
        count = self.__count_tokens(batch)
        if not isinstance(count, Mapping):
            return count
        if token_type not in count:
            raise ValueError(
                f"get_num_tokens_in_batch returned a mapping without {token_type!r}; it has {sorted(count)}. "
                f"Add that entry, or return a number."
            )
        return count[token_type]

    def __default_count(self, batch: Batch, token_type: str) -> int | Tensor:
        if isinstance(batch, Mapping):
            batch = cast("Mapping[str, Any]", batch)
            if token_type == "loss_generating" and isinstance(labels := batch.get("labels"), Tensor):
                return (labels != IGNORED_TARGET).sum()
            if isinstance(ids := batch.get("input_ids"), Tensor):
                return ids.numel()
        return self.__max_seq_len * self.get_num_samples_in_batch(batch) if self.__max_seq_len else 0

    @property
    def __length__(self) -> int | None:
        """Number of batches in one pass, or None where the loader does not tell."""
        return length_of(self.dataloader)

    def __length_of__(self, share: DataShare, *, whole_batches: bool = False) -> int | None:
        """Return the number of steps in a pass of several processes; None where the loader does not tell.

        Args:
            share: What this process gets.
            whole_batches: Whether the loader's own batches are dealt out, as in evaluations.

        >>> spec = DataSpec(DataLoader(torch.utils.data.TensorDataset(torch.arange(10)), batch_size=2))
        >>> spec.__length__, spec.__length_of__(DataShare(0, 2))
        (5, 3)
        """
        if share.size == 1:
            return self.__length__
        return PassFactory(self.dataloader, 0, share, whole_batches).length

    def __passes__(self, seed: int, share: DataShare) -> PassFactory:
        """Return what begins passes over the loader's own batches, in several processes.

        Args:
            seed: Of the run, the same in all processes.
            share: What this process gets.
        """
        if self.__passes is None or self.__passes.share != share:
            self.__passes = PassFactory(self.dataloader, seed, share, whole_batches=True)
        return self.__passes

    @property
    def __batch_size__(self) -> int | None:
        """Number of samples that the loader puts into a batch, or None where it does not tell."""
        return getattr(self.dataloader, "batch_size", None)


def ensure_data_spec(dataloader: DataSpec | Iterable[Batch] | Mapping[str, Any]) -> DataSpec:
    """Return a :class:`DataSpec` of what users may give as a data loader.

    Args:
        dataloader: A data spec, a loader, or a mapping of the arguments of :class:`DataSpec`.

    Raises:
        TypeError: It is none of these.

    >>> ensure_data_spec([1, 2]).__length__
    2
    """
    if isinstance(dataloader, DataSpec):
        return dataloader
    if isinstance(dataloader, Mapping) and "dataloader" in dataloader:
        return DataSpec(**cast("dict[str, Any]", dataloader))
    if isinstance(dataloader, torch.utils.data.Dataset) and not isinstance(dataloader, DataLoader):
        raise TypeError(f"Got the data set {dataloader!r} itself; give a DataLoader(dataset, batch_size=...) of it.")
    return DataSpec(cast("Iterable[Batch]", dataloader))


def count_samples(batch: Batch) -> int:
    """Return the number of samples in a batch: the first dimension, on which its tensors must agree.

    Args:
        batch: A tensor, or a (nested) sequence or mapping with tensors.

    Raises:
        NotImplementedError: There is no tensor, or the tensors disagree.

    >>> count_samples({"x": torch.zeros(3, 2), "y": torch.zeros(3)})
    3
    """
    if isinstance(batch, Tensor) and batch.ndim > 0:
        return batch.shape[0]
    kind = type(batch)
    if (kind is tuple or kind is list) and len(batch) == 2 and type(batch[0]) is type(batch[1]) is Tensor:
        # The usual batch, in a third of the time: every training step is counted.
        x, y = cast("tuple[Tensor, Tensor]", batch)
        if x.ndim and y.ndim and (size := x.shape[0]) == y.shape[0]:
            return size
    sizes = {leaf.shape[0] for leaf in trees.leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim > 0}
    if len(sizes) != 1:
        found = f"tensors with {sorted(sizes)} samples" if sizes else f"no tensor with rows in a {type(batch).__name__}"
        raise NotImplementedError(
            f"Cannot tell the number of samples of a batch: found {found}. Give "
            f"DataSpec(dataloader, get_num_samples_in_batch=...)."
        )
    return sizes.pop()


def split(batch: Batch, microbatch_size: int) -> Sequence[Batch]:
    """Split a batch into microbatches along the first dimension of its tensors; the last may be smaller.

    Tensors are split, in mappings, sequences and dataclasses too, which keep their kind. So are sequences with one
    entry for each sample: those without tensors, and those whose tensors differ in length (ragged data). Other values
    go into every microbatch.

    Args:
        batch: The batch.
        microbatch_size: Number of samples in a microbatch.

    Raises:
        NotImplementedError: There is nothing to split.
        ValueError: The size is not a positive whole number.

    >>> split((torch.arange(3), {"y": torch.arange(3)}), 2)
    [(tensor([0, 1]), {'y': tensor([0, 1])}), (tensor([2]), {'y': tensor([2])})]
    """
    if not isinstance(microbatch_size, SupportsIndex) or int(microbatch_size) < 1:
        raise ValueError(f"microbatch_size must be a positive whole number; got {microbatch_size!r}.")
    total, depth = _extent(batch)
    parts = _split(batch, int(microbatch_size), total, depth)
    if parts is None:
        raise NotImplementedError(
            f"Cannot split a batch of type {type(batch).__name__} in which there is no tensor. Give "
            f"DataSpec(dataloader, split_batch=...)."
        )
    return parts


def _extent(batch: Batch) -> tuple[int, int]:
    """The number of samples, and how deep in the batch it was found: the longest tensor of those nearest the surface.

    Where there is no tensor, it is the length of the first sequence that holds no container.
    """
    level, depth, found = [batch], 0, (0, 0)
    while level:
        lengths = [len(value) for value in level if isinstance(value, Tensor) and value.ndim > 0]
        if lengths:
            return max(lengths), depth
        opened = [(value, _open(value)[0]) for value in level]
        if not found[0]:
            flat = (len(parts) for value, parts in opened if is_sequence(value) and not any(map(_is_container, parts)))
            found = next(flat, 0), depth
        level = [part for _, parts in opened for part in parts]
        depth += 1
    return found


def _split(value: Any, size: int, total: int, depth: int) -> list[Any] | None:
    """Split what has one entry for each sample; None for what belongs to the whole batch.

    Sequences outside of ``depth`` hold the parts of a batch, however many they are.
    """
    if isinstance(value, Tensor):
        if value.ndim == 0:
            return None
        if len(value) != total:
            if size < total:
                _warn_unsplit(len(value), total)
            return None
        return list(value.split(size))
    if not _is_container(value):
        return None
    parts, make = _open(value)
    if is_sequence(value) and depth <= 0 and len(parts) == total and not hasattr(value, "_fields"):
        lengths = {len(leaf) for leaf in trees.leaves(value) if isinstance(leaf, Tensor) and leaf.ndim > 0}
        if lengths != {total}:
            return [make(parts[start : start + size]) for start in range(0, max(total, 1), size)]
    split_parts = [_split(part, size, total, depth - 1) for part in parts]
    count = max((len(pieces) for pieces in split_parts if pieces is not None), default=None)
    if count is None:
        return None
    columns = [[part] * count if pieces is None else pieces for part, pieces in zip(parts, split_parts, strict=True)]
    return [make(list(row)) for row in zip(*columns, strict=True)]


def _is_container(value: Any) -> bool:
    return is_mapping(value) or is_sequence(value) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _open(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The parts of a container, none if it is no container, and how to make another of its kind."""
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
        f"Give DataSpec(dataloader, split_batch=...) if it is to be split."
    )
    warnings.warn(message, ComposerWarning, stacklevel=2)
