"""What the trainer has to know of data: how to count a batch and how to split it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from composer._text import plural
from composer.core.data_sharding import DataShard
from composer.core.epoch_iterators import EpochIterators
from composer.core.microbatches import as_microbatch, count_samples, split
from composer.core.sample_order import length_of
from composer.core.types import Batch
from composer.core.user_counts import as_quantity, ask, count_targets, entry_of, takes_type

__all__ = ["DataSpec", "ensure_data_spec", "microbatch_size_of"]


class DataSpec:
    """A data loader with the functions that count, split and transform its batches.

    Training time is counted on the host, from the batch as the loader yields it, before it is copied to the device.
    With ``batch_transforms`` it is counted from what they return, and a loader such as :class:`.TensorLoader` yields
    batches that are on the device already: there a function that reads values, rather than shapes, makes each step wait
    for the device. Microbatches are counted on the device, after the methods that edit batches; a tensor returned for
    one stays there.

    Args:
        dataloader: Yields batches; a :class:`torch.utils.data.DataLoader` or any iterable. None, which an attribute
            of this name replaces before the data is used, is for code that only counts and splits.
        num_samples: Number of samples in one pass over all processes; from the data set by default.
        num_tokens: Number of tokens in one pass.
        batch_transforms: Applied to a whole batch, on the device, before ``AFTER_DATALOADER``.
        microbatch_transforms: Applied to each microbatch before its forward pass.
        split_batch: ``(batch, microbatch_size) -> microbatches``, one or more.
        get_num_samples_in_batch: ``(batch) -> int``; other numbers are taken too, also as tensors. Training time counts
            whole samples; a microbatch counts for as much as this says.
        get_num_tokens_in_batch: ``(batch) -> int``, or a mapping with ``"total"`` (int) and ``"loss_generating"``
            (int or tensor, the number of tokens that the loss averages over). Training time counts the total; only with
            ``Trainer(accumulate_train_batch_on_tokens=True)`` does the other, or a plain number, weight microbatches.
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
    ) -> None:
        if batch_transforms is not None and device_transforms is not None:
            raise ValueError("device_transforms is an old name of batch_transforms; give one of them.")
        if dataloader is not None:
            _check_iterable("dataloader", dataloader)
        self.dataloader: Any = dataloader
        self.num_tokens = num_tokens
        self.batch_transforms = device_transforms if batch_transforms is None else batch_transforms
        self.microbatch_transforms = microbatch_transforms
        self.split_batch = split_batch or split
        self.get_num_samples_in_batch = get_num_samples_in_batch or self._default_get_num_samples_in_batch
        self.__count_tokens = get_num_tokens_in_batch
        self.__passes: EpochIterators | None = None
        dataset = getattr(dataloader, "dataset", None)
        # An iterable data set may have a length that does not say how much it yields.
        sized = isinstance(dataset, Sized) and not isinstance(dataset, torch.utils.data.IterableDataset)
        self.num_samples = len(cast(Sized, dataset)) if num_samples is None and sized else num_samples
        self.__max_seq_len: int | None = getattr(dataset, "max_seq_len", None)

    @property
    def __counts_tokens__(self) -> bool:
        """Whether the user has said how tokens are counted: by a function, or by a method in the place of ours."""
        names = ("get_num_tokens_in_batch", "_default_get_num_tokens_in_batch")
        return self.__count_tokens is not None or any(_is_replaced(self, name) for name in names)

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
            return ask(self._default_get_num_tokens_in_batch, batch, token_type)
        return entry_of(self.__count_tokens(batch), token_type)

    def __tokens__(self, batch: Batch, token_type: str = "total") -> Any:
        """Return what the user's function says of the tokens of a batch, with all entries of a mapping.

        Without such a function it is a number; a mapping with one entry if a method of a subclass counts that type.

        Args:
            batch: The batch.
            token_type: What is asked for, in :meth:`get_num_tokens_in_batch`.

        >>> DataSpec([], get_num_tokens_in_batch=lambda batch: {"total": 5}).__tokens__(None)
        {'total': 5}
        """
        if self.__count_tokens is not None and not _is_replaced(self, "get_num_tokens_in_batch"):
            return self.__count_tokens(batch)
        if token_type == "total" or not takes_type(self.get_num_tokens_in_batch):
            return self.get_num_tokens_in_batch(batch)
        return {token_type: self.get_num_tokens_in_batch(batch, token_type)}

    # Data specs of scripts call these two by the names that they had.
    _default_get_num_samples_in_batch = staticmethod(count_samples)

    def _default_get_num_tokens_in_batch(self, batch: Batch, token_type: str = "total") -> int | Tensor:
        if token_type == "loss_generating" and (targets := count_targets(batch)) is not None:
            return targets
        if isinstance(batch, Mapping) and isinstance(ids := cast("Mapping[str, Any]", batch).get("input_ids"), Tensor):
            return ids.numel()
        return self.__max_seq_len * self.__num_samples__(batch) if self.__max_seq_len else 0

    def __num_samples__(self, batch: Batch) -> int:
        """Return the number of samples of a batch as a whole number, in whatever form the user's function has it.

        Args:
            batch: The batch.

        >>> DataSpec([], get_num_samples_in_batch=lambda batch: batch["n"]).__num_samples__(
        ...     {"n": torch.tensor(3)}
        ... )
        3
        """
        count = self.get_num_samples_in_batch(batch)
        return int(as_quantity("get_num_samples_in_batch", count))

    @property
    def __splits_itself__(self) -> bool:
        """Whether the user has said how batches are split."""
        return self.split_batch is not split

    def __microbatches__(self, batch: Batch, size: int | None, samples: int) -> Sequence[Batch]:
        """Return the microbatches of a batch, as the model gets them.

        A ``split_batch`` of the user's is asked for every batch, as it may do more than split; without one a batch
        that fits is not touched, but for a plain list, which becomes a tuple as in :func:`.split`.

        Args:
            batch: The batch.
            size: Number of samples in a microbatch; None is the whole batch.
            samples: Number of samples in the batch.

        Raises:
            ValueError: The user's ``split_batch`` returned nothing.

        >>> DataSpec([]).__microbatches__([torch.zeros(1), torch.ones(1)], None, 1)
        [(tensor([0.]), tensor([1.]))]
        """
        if not self.__splits_itself__ and (size is None or size >= samples):
            return [as_microbatch(batch)]
        parts = list(self.split_batch(batch, samples if size is None else size))
        if not parts:
            raise ValueError(
                f"split_batch returned no microbatch of a batch with {plural(samples, 'sample')}; it must "
                f"return a list of at least one batch."
            )
        return parts

    @property
    def __length__(self) -> int | None:
        """Number of batches in one pass, or None where the loader does not tell."""
        return length_of(self.dataloader)

    def __length_of__(self, share: DataShard, *, whole_batches: bool = False) -> int | None:
        """Return the number of steps in a pass of several processes; None where the loader does not tell.

        Args:
            share: What this process gets.
            whole_batches: Whether the loader's own batches are dealt out, as in evaluations.

        >>> spec = DataSpec(DataLoader(torch.utils.data.TensorDataset(torch.arange(10)), batch_size=2))
        >>> spec.__length__, spec.__length_of__(DataShard(0, 2))
        (5, 3)
        """
        if share.size == 1:
            return self.__length__
        return EpochIterators(self.dataloader, 0, share, whole_batches).length

    def __passes__(self, seed: int, share: DataShard) -> EpochIterators:
        """Return what begins passes over the loader's own batches, in several processes.

        Args:
            seed: Of the run, the same in all processes.
            share: What this process gets.
        """
        if self.__passes is None or self.__passes.share != share:
            self.__passes = EpochIterators(self.dataloader, seed, share, whole_batches=True)
        return self.__passes

    @property
    def __batch_size__(self) -> int | None:
        """Number of samples that the loader puts into a batch, or None where it does not tell."""
        return getattr(self.dataloader, "batch_size", None)


def microbatch_size_of(argument: str, size: Any, spec: DataSpec | None) -> int:
    """Return a number of samples that go through the model at once, as given.

    Args:
        argument: What the caller calls it, for errors.
        size: What was given; a whole number in whatever form, or for a ``split_batch`` of the user's any number.
        spec: The data, if there is any.

    Raises:
        ValueError: It is not positive, or not whole and nothing splits by it.

    >>> microbatch_size_of("device_train_microbatch_size", 2.0, None)
    2
    """
    number = size.item() if getattr(size, "shape", None) == () else size
    number = int(number) if isinstance(number, float) and number.is_integer() else number
    # Typed as whole, as it is for all but a split_batch of the user's.
    if isinstance(number, float) and number > 0 and spec is not None and spec.__splits_itself__:
        return cast(int, number)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{argument} must be a positive whole number, or 'auto' to find it; got {size!r}.")
    return number


def ensure_data_spec(
    dataloader: DataSpec | Iterable[Batch] | Mapping[str, Any] | None, argument: str = "dataloader"
) -> DataSpec:
    """Return a :class:`DataSpec` of what users may give as a data loader.

    Args:
        dataloader: A data spec, a loader or None, or a mapping of the arguments of :class:`DataSpec`.
        argument: Name of the argument that it was given as, for errors.

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
            f"{argument}: got the data set {dataloader!r} itself; give a DataLoader(dataset, batch_size=...) of it."
        )
    if dataloader is not None:
        _check_iterable(argument, dataloader)
    return DataSpec(cast("Iterable[Batch] | None", dataloader))


def _check_iterable(argument: str, data: Any) -> None:
    """Refuse what yields no batches, and say what would."""
    name = getattr(data, "__name__", type(data).__name__)
    if isinstance(data, type):
        raise TypeError(f"{argument}: got the class {name}; give an object of it: {name}(...).")
    if isinstance(data, Mapping):
        keys = list(cast("Mapping[Any, Any]", data))
        raise TypeError(
            f"{argument}: got a mapping with the keys {keys}. Give one loader, such as a torch DataLoader, or the "
            f"arguments of DataSpec, with the key 'dataloader'; a single batch goes into a list: [batch]."
        )
    if hasattr(data, "__iter__") and not isinstance(data, (str, bytes)):
        return
    if inspect.isgeneratorfunction(inspect.unwrap(getattr(data, "func", data)) if callable(data) else data):
        raise TypeError(
            f"{argument}: got the generator function {name} itself. Call it, {name}(), for data of one epoch, or wrap "
            f"it for any number of epochs, in an object whose __iter__ returns {name}()."
        )
    if callable(data):
        raise TypeError(f"{argument}: got the function {name} itself. Call it and give what it returns: {name}().")
    raise TypeError(f"{argument} must be iterable, such as a torch DataLoader; got {data!r}.")


def _is_replaced(spec: DataSpec, name: str) -> bool:
    """Whether a method is one of a subclass, or a function that was put in its place."""
    return name in vars(spec) or getattr(type(spec), name) is not getattr(DataSpec, name)
