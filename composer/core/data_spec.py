"""DataSpec: how to count the samples and tokens of custom batches, and how to split and transform them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from composer._containers import is_mapping
from composer._numbers import whole_number
from composer._text import plural
from composer.core.data_sharding import DataShard
from composer.core.epoch_iterators import EpochIterators
from composer.core.microbatches import as_microbatch, count_samples, join, split
from composer.core.sample_order import length_of
from composer.core.types import Batch
from composer.core.user_counts import as_quantity, call_count, count_targets, entry_of, takes_type

__all__ = ["DataSpec", "ensure_data_spec", "microbatch_size_of"]


class DataSpec:
    """A data loader with the functions that count, split and transform its batches.

    The timestamp counts samples and tokens on the host, from the batch as the loader yields it, before it is copied to
    the device. With ``batch_transforms``, they are counted on the transformed batch on the device, and a loader such as
    :class:`.TensorLoader` yields batches on the device: a function that then reads values, rather than shapes,
    synchronizes with the device in each step. Microbatches are counted on the device, after algorithms edited the
    batch; a tensor returned for a microbatch stays there.

    Args:
        dataloader: Yields batches; a :class:`torch.utils.data.DataLoader` or any iterable. None is for code that only
            counts and splits; set the attribute of this name before the data is used.
        num_samples: Number of samples per epoch on all ranks; from the dataset by default.
        num_tokens: Number of tokens per epoch.
        batch_transforms: Applied to a full batch, on the device, before ``AFTER_DATALOADER``.
        microbatch_transforms: Applied to each microbatch before its forward pass.
        split_batch: ``(batch, microbatch_size) -> microbatches``, one or more.
        get_num_samples_in_batch: ``(batch) -> int``; other numbers are accepted, also as tensors. The timestamp counts
            an integer number of samples; the loss weight of a microbatch is the number as returned. If the tensors of a
            batch differ in length, those of this length are split into microbatches, and each microbatch gets all of
            the others.
        get_num_tokens_in_batch: ``(batch) -> int``, or a mapping with ``"total"`` (int) and ``"loss_generating"``
            (int or tensor, the number of tokens that the loss averages over). The timestamp counts the total. Only with
            ``Trainer(accumulate_train_batch_on_tokens=True)`` is the other entry, or a plain number, the loss weight of
            a microbatch.
        device_transforms: Name of ``batch_transforms`` in early versions.
        join_batches: ``(batches) -> batch``, joins a list of batches of the loader to a larger one, the reverse of
            ``split_batch``, for :class:`.BatchSizeWarmup`; by default as :func:`.join` does.

    Raises:
        TypeError: The loader is not iterable.
        ValueError: Both ``batch_transforms`` and ``device_transforms`` are given.

    >>> spec = DataSpec([(torch.ones(5, 2), torch.zeros(5))])
    >>> batch = next(iter(spec.dataloader))
    >>> spec.get_num_samples_in_batch(batch), [len(x) for x, y in spec.split_batch(batch, 2)]
    (5, [2, 2, 1])
    """

    def __init__(
        self,
        dataloader: Iterable[Batch] | None,
        num_samples: int | None = None,
        num_tokens: int | None = None,
        batch_transforms: Callable[[Batch], Batch] | None = None,
        microbatch_transforms: Callable[[Batch], Batch] | None = None,
        split_batch: Callable[[Batch, int], Sequence[Batch]] | None = None,
        get_num_samples_in_batch: Callable[[Batch], int | float] | None = None,
        get_num_tokens_in_batch: Callable[[Batch], int | Mapping[str, int | Tensor]] | None = None,
        *,
        device_transforms: Callable[[Batch], Batch] | None = None,
        join_batches: Callable[[Sequence[Batch]], Batch] | None = None,
    ) -> None:
        if batch_transforms is not None and device_transforms is not None:
            raise ValueError("device_transforms is an old name of batch_transforms; give one of them.")
        if dataloader is not None:
            _check_iterable("dataloader", dataloader)
        self.dataloader: Any = dataloader
        self.num_tokens = None if num_tokens is None else whole_number("num_tokens", num_tokens)
        if num_samples is not None:
            num_samples = whole_number("num_samples", num_samples)
        self.batch_transforms = device_transforms if batch_transforms is None else batch_transforms
        self.microbatch_transforms = microbatch_transforms
        self.get_num_samples_in_batch = get_num_samples_in_batch or self._default_get_num_samples_in_batch
        own = self.get_num_samples_in_batch
        count = None if own is count_samples else own
        self.__split = split if count is None else functools.partial(split, count=count)
        self.split_batch = split_batch or self.__split
        self.join_batches = join_batches or (join if count is None else functools.partial(join, count=count))
        self.__count_tokens = get_num_tokens_in_batch
        self.__epoch_iterators: EpochIterators | None = None
        dataset = getattr(dataloader, "dataset", None)
        # The length of an iterable dataset may differ from the number of samples that it yields.
        sized = isinstance(dataset, Sized) and not isinstance(dataset, torch.utils.data.IterableDataset)
        self.num_samples = len(cast(Sized, dataset)) if num_samples is None and sized else num_samples
        self.__max_seq_len: int | None = getattr(dataset, "max_seq_len", None)

    @property
    def __counts_tokens__(self) -> bool:
        """Whether the user defines how tokens are counted, by a function or an overridden method."""
        names = ("get_num_tokens_in_batch", "_default_get_num_tokens_in_batch")
        return self.__count_tokens is not None or any(_is_replaced(self, name) for name in names)

    def get_num_tokens_in_batch(self, batch: Batch, token_type: str = "total") -> int | Tensor:
        """Count the tokens of a batch.

        By default, the total is the number of elements of ``batch["input_ids"]`` (B, S), or the dataset's
        ``max_seq_len`` for every sample, or 0. The type ``"loss_generating"`` counts the entries of ``batch["labels"]``
        that are not -100 (the total without labels), as a tensor, to avoid a device synchronization.

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
            return call_count(self._default_get_num_tokens_in_batch, batch, token_type)
        return entry_of(self.__count_tokens(batch), token_type)

    def __tokens__(self, batch: Batch, token_type: str = "total") -> Any:
        """Return the result of the user's token-counting function, with all entries if it is a mapping.

        Without such a function, return a number, or a mapping with one entry if a method of a subclass counts that
        type.

        Args:
            batch: The batch.
            token_type: The type of tokens, as for :meth:`get_num_tokens_in_batch`.

        >>> DataSpec([], get_num_tokens_in_batch=lambda batch: {"total": 5}).__tokens__(None)
        {'total': 5}
        """
        if self.__count_tokens is not None and not _is_replaced(self, "get_num_tokens_in_batch"):
            return self.__count_tokens(batch)
        if token_type == "total" or not takes_type(self.get_num_tokens_in_batch):
            return self.get_num_tokens_in_batch(batch)
        return {token_type: self.get_num_tokens_in_batch(batch, token_type)}

    # Data specs of scripts for the predecessor call these two by these names.
    _default_get_num_samples_in_batch = staticmethod(count_samples)

    def _default_get_num_tokens_in_batch(self, batch: Batch, token_type: str = "total") -> int | Tensor:
        if token_type == "loss_generating" and (targets := count_targets(batch)) is not None:
            return targets
        if is_mapping(batch) and isinstance(ids := cast("Mapping[str, Any]", batch).get("input_ids"), Tensor):
            return ids.numel()
        return self.__max_seq_len * self.__num_samples__(batch) if self.__max_seq_len else 0

    def __num_samples__(self, batch: Batch) -> int:
        """Return the number of samples in a batch as an integer, converted from the result of the user's function.

        Args:
            batch: The batch.

        >>> DataSpec([], get_num_samples_in_batch=lambda batch: batch["n"]).__num_samples__(
        ...     {"n": torch.tensor(3)}
        ... )
        3
        """
        count = self.get_num_samples_in_batch(batch)
        if type(count) is int and count >= 0:  # the usual case first: this runs in each step
            return count
        return int(as_quantity("get_num_samples_in_batch", count))

    @property
    def __splits_itself__(self) -> bool:
        """Whether the user defines how batches are split."""
        return self.split_batch is not self.__split

    def __microbatches__(self, batch: Batch, size: int | None, samples: int) -> Sequence[Batch]:
        """Return the microbatches of a batch, for gradient accumulation.

        A custom ``split_batch`` is called for every batch, as it may do more than split. Without one, a batch that is
        not larger than ``size`` is returned unchanged, except that a plain list becomes a tuple as in :func:`.split`.

        Args:
            batch: The batch.
            size: Number of samples in a microbatch; None is the full batch.
            samples: Number of samples in the batch.

        Raises:
            ValueError: A custom ``split_batch`` returned an empty sequence.

        >>> DataSpec([]).__microbatches__([torch.zeros(1), torch.ones(1)], None, 1)
        [(tensor([0.]), tensor([1.]))]
        """
        if not self.__splits_itself__ and (size is None or size >= samples):
            return [as_microbatch(batch)]
        microbatches = list(self.split_batch(batch, samples if size is None else size))
        if not microbatches:
            raise ValueError(
                f"split_batch returned no microbatch for a batch with {plural(samples, 'sample')}; it must "
                f"return a list of at least one batch."
            )
        return microbatches

    @property
    def __length__(self) -> int | None:
        """Number of batches per epoch, or None if the loader has no length."""
        return length_of(self.dataloader)

    def __length_of__(self, shard: DataShard, *, shard_batches: bool = False) -> int | None:
        """Return the number of steps per epoch in distributed training; None if the loader has no length.

        Args:
            shard: The data shard of this rank.
            shard_batches: Whether complete batches of the loader are sharded, as in evaluations.

        >>> spec = DataSpec(DataLoader(torch.utils.data.TensorDataset(torch.arange(10)), batch_size=2))
        >>> spec.__length__, spec.__length_of__(DataShard(0, 2))
        (5, 3)
        """
        if shard.size == 1:
            return self.__length__
        return EpochIterators(self.dataloader, 0, shard, shard_batches).length

    def __epoch_iterators__(self, seed: int, shard: DataShard) -> EpochIterators:
        """Return a factory of iterators over the complete batches of the loader that belong to this rank.

        Args:
            seed: Seed of the run, the same on all ranks.
            shard: The data shard of this rank.
        """
        if self.__epoch_iterators is None or self.__epoch_iterators.shard != shard:
            self.__epoch_iterators = EpochIterators(self.dataloader, seed, shard, shard_batches=True)
        return self.__epoch_iterators

    @property
    def __batch_size__(self) -> int | None:
        """Batch size of the loader, or None if unknown."""
        return getattr(self.dataloader, "batch_size", None)


def microbatch_size_of(argument: str, size: Any, spec: DataSpec | None) -> int:
    """Check and return a microbatch size.

    Args:
        argument: Name of the argument, for error messages.
        size: The given value: an integer, also as a float or tensor; with a custom ``split_batch``, any number.
        spec: The data, if any.

    Raises:
        ValueError: It is not positive, or not an integer without a custom ``split_batch``.

    >>> microbatch_size_of("device_train_microbatch_size", 2.0, None)
    2
    """
    number = size.item() if getattr(size, "shape", None) == () else size
    number = int(number) if isinstance(number, float) and number.is_integer() else number
    # Typed as int, although a custom split_batch may use other numbers.
    if isinstance(number, float) and number > 0 and spec is not None and spec.__splits_itself__:
        return cast(int, number)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{argument} must be a positive integer, or 'auto' to determine it; got {size!r}.")
    return number


def ensure_data_spec(
    dataloader: DataSpec | Iterable[Batch] | Mapping[str, Any] | None, argument: str = "dataloader"
) -> DataSpec:
    """Return a :class:`DataSpec` for a data spec, a data loader, or the arguments of a data spec.

    Args:
        dataloader: A data spec, a loader or None, or a mapping of the arguments of :class:`DataSpec`.
        argument: Name of the argument, for error messages.

    Raises:
        TypeError: It is none of these.

    >>> ensure_data_spec([1, 2]).__length__
    2
    """
    if isinstance(dataloader, DataSpec):
        return dataloader
    if isinstance(dataloader, Mapping) and "dataloader" in dataloader:
        return DataSpec(**cast("dict[str, Any]", dataloader))
    is_foreign = type(dataloader).__module__.partition(".")[0] == "datasets" and not isinstance(dataloader, Mapping)
    if is_foreign or (isinstance(dataloader, torch.utils.data.Dataset) and not isinstance(dataloader, DataLoader)):
        raise TypeError(
            f"{argument}: got the dataset {dataloader!r} itself; give DataLoader(dataset, batch_size=...) instead."
        )
    if dataloader is not None:
        _check_iterable(argument, dataloader)
    return DataSpec(cast("Iterable[Batch] | None", dataloader))


def _check_iterable(argument: str, data: Any) -> None:
    """Raise if ``data`` does not yield batches, with a remedy."""
    name = getattr(data, "__name__", type(data).__name__)
    if isinstance(data, type):
        raise TypeError(f"{argument}: got the class {name}; give an instance: {name}(...).")
    if isinstance(data, Mapping):
        keys = list(cast("Mapping[Any, Any]", data))
        raise TypeError(
            f"{argument}: got a mapping with the keys {keys}. Pass one loader, such as a torch DataLoader, or the "
            f"arguments of DataSpec, with the key 'dataloader'; wrap a single batch in a list: [batch]."
        )
    if hasattr(data, "__iter__") and not isinstance(data, (str, bytes)):
        return
    if inspect.isgeneratorfunction(inspect.unwrap(getattr(data, "func", data)) if callable(data) else data):
        raise TypeError(
            f"{argument}: got the generator function {name} itself. Call it, {name}(), for data of one epoch; for "
            f"several epochs, give an object whose __iter__ returns {name}()."
        )
    if callable(data):
        raise TypeError(f"{argument}: got the function {name} itself. Call it and give the result: {name}().")
    raise TypeError(f"{argument} must be iterable, such as a torch DataLoader; got {data!r}.")


def _is_replaced(spec: DataSpec, name: str) -> bool:
    """Return whether a method is overridden in a subclass or replaced on the object."""
    return name in vars(spec) or getattr(type(spec), name) is not getattr(DataSpec, name)
