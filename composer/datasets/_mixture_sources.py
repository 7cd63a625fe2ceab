"""The sources of a mixture: endless batches of a loader, epoch after epoch, resumable at any position."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch.utils.data import DataLoader

from composer._text import plural
from composer.core.data_sharding import DataShard, check_sharded_data
from composer.core.data_spec import ensure_data_spec
from composer.core.epoch_iterator import EpochIterator
from composer.core.epoch_iterators import EpochIterators
from composer.core.epoch_start import agree_on_seed, set_epoch
from composer.core.infinite_data import infinite_reason
from composer.core.loader_workers import iterate
from composer.core.random_order import mix_seed
from composer.core.sample_order import Order, SampleOrder, SeededIndices, resumable_loader
from composer.core.shared_data import KeptStarts, indexed_state
from composer.core.types import Batch
from composer.datasets.tensor_loader import TensorLoader

__all__ = ["Source", "make_source"]


class Source(Protocol):
    """A source of a mixture.

    Attributes:
        is_per_rank: Whether its data, and the position in them, are separate on each rank.
        per_epoch: Number of samples in an epoch of its own, on all ranks; None if unknown.
        per_step: Number of samples in a step, on all ranks; None if unknown or varying.
        never_ends: Why its epochs are known to be infinite, or None.
    """

    @property
    def is_per_rank(self) -> bool: ...
    @property
    def per_epoch(self) -> int | None: ...
    @property
    def per_step(self) -> int | None: ...
    @property
    def never_ends(self) -> str | None: ...

    def agree(self) -> None:
        """Agree with the other ranks on the order; all ranks must call this before the first batch."""

    def draw(self, samples: int) -> tuple[Batch] | None:
        """Return the next batch of this rank, in a tuple; None once at the end of each epoch, unless batches span it.

        ``samples`` were drawn before, on all ranks.
        """

    def passes(self) -> int:
        """Return the number of epochs that were completed since :meth:`mark`."""
        ...

    def mark(self) -> None:
        """Count :meth:`passes` from the current position."""

    def reset(self) -> None:
        """Return to the first epoch."""

    def state_dict(self, samples: int) -> dict[str, Any]:
        """Return the position; ``samples`` were drawn, on all ranks."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a position; before the random state of a checkpoint, as starting a loader may use random numbers."""


def make_source(name: str, loader: Any, seed: int, shard: DataShard) -> Source:
    """Return the source of a loader.

    Args:
        name: Its name, for errors.
        loader: The loader.
        seed: Seed of its order, the same on all ranks.
        shard: The data shard of this rank.

    Raises:
        TypeError: It is not a loader.
        ValueError: It is empty, can be read only once, or cannot be sharded.

    >>> source = make_source("a", [1, 2], 0, DataShard())
    >>> [source.draw(0), source.draw(1), source.draw(2), source.draw(2), source.passes()]
    [(1,), (2,), None, (1,), 1]
    """
    argument = f"source {name!r}"
    given = ensure_data_spec(loader, argument).dataloader
    if given is not loader or loader is None:
        raise TypeError(
            f"{argument} must be a loader, but got {loader!r}. A mixture has one DataSpec for the batches of all its "
            f"sources: DataSpec(Mixture(...), ...)."
        )
    if isinstance(loader, Iterator):
        raise ValueError(
            f"{argument} is an iterator ({type(loader).__name__}), which can be read only once, but sources of a "
            f"mixture are repeated. Pass an object that can be iterated in every epoch, such as a DataLoader or a list."
        )
    check_sharded_data(loader, shard, argument)
    if isinstance(loader, TensorLoader):
        return _TensorSource(argument, loader, shard)
    iterators = EpochIterators(loader, seed, shard, starts=KeptStarts(loader))
    if iterators.resume_by == "indices":
        order = SampleOrder(loader, shard)
        order.seed = seed
        if order.full_order(0) is not None:
            return _IndexedSource(argument, loader, order, shard)
        if shard.size > 1 and not order.is_data_sharded:
            raise ValueError(
                f"{argument} has a custom batch sampler, or a sampler without length, which a mixture cannot shard "
                f"among {shard.size} ranks: in the last step of an epoch, some would have no batch. Pass a DataLoader "
                f"with batch_size and a sampler of single indices."
            )
    return _EpochSource(argument, iterators)


class _PositionedSource:
    """A source whose batches are computed from the number of samples before them: all its batches are full.

    The step that reaches the end of an epoch continues with the first samples of the next one.
    """

    never_ends = None

    def __init__(self, argument: str, samples: int, step: int, num_orders: int = 1) -> None:
        if not samples:
            raise ValueError(f"{argument} is empty: its dataset has no samples. Remove it.")
        self._argument = argument
        # Of the order that this rank follows, which all ranks share or of which each has one.
        self._samples, self._step = samples, step
        self.per_epoch, self.per_step = samples * num_orders, step * num_orders
        self.position = self._mark = 0

    def agree(self) -> None:
        """The order does not depend on the rank."""

    def passes(self) -> int:
        return (self.position - self._mark) // self._samples

    def mark(self) -> None:
        self._mark = self.position

    def _move(self, position: int) -> None:
        self.position = position

    def reset(self) -> None:
        self._move(0)
        self.mark()

    def state_dict(self, samples: int) -> dict[str, Any]:
        return {"samples": self._samples, "place": self.position, "mark": self._mark}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("samples") != self._samples:
            before = plural(state["samples"], "sample") if "samples" in state else "no known number of samples"
            raise ValueError(
                f"{self._argument} has {plural(self._samples, 'sample')} in an epoch, but in the saved state it has "
                f"{before}. Give it another name to start it from its beginning."
            )
        self._move(state["place"])
        self._mark = state["mark"]


class _IndexedSource(_PositionedSource):
    """A DataLoader over a dataset with indices."""

    def __init__(self, argument: str, loader: DataLoader[Any], order: SampleOrder, shard: DataShard) -> None:
        first = order.full_order(0)
        assert first is not None
        self.is_per_rank, self._order = order.is_data_sharded, order
        self._stream = _IndexStream(argument, loader, order, first.n, DataShard() if self.is_per_rank else shard)
        super().__init__(argument, first.n, self._stream.step, shard.size if self.is_per_rank else 1)
        # The copy fetches what is asked for; its workers sample nothing from the default generator.
        self._loader, self._user_loader = resumable_loader(loader, self._stream, order.seed + shard.rank), loader
        self._iterator: Iterator[Batch] | None = None
        self._dataset = indexed_state(loader)

    def agree(self) -> None:
        agree_on_seed(self._order)

    def draw(self, samples: int) -> tuple[Batch] | None:
        if self._iterator is None:
            self._stream.begin(self.position)
            self._iterator = iterate(self._loader, owner=self._user_loader)
        try:
            batch = next(self._iterator)
        except StopIteration:  # this epoch's; the datasets and samplers are set to the next one
            self._iterator = None
            return self.draw(samples)
        self.position += self._step
        return (batch,)

    def _move(self, position: int) -> None:
        self.position, self._iterator = position, None

    def state_dict(self, samples: int) -> dict[str, Any]:
        state = super().state_dict(samples)
        return state if self._dataset is None else {**state, "dataset": copy.deepcopy(self._dataset.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self._dataset is not None and "dataset" in state:
            self._dataset.load_state_dict(state["dataset"])


class _IndexStream:
    """The batches of indices from a position up to the end of an epoch, all of them full; used as a batch sampler."""

    def __init__(
        self, argument: str, loader: DataLoader[Any], order: SampleOrder, num_samples: int, shard: DataShard
    ) -> None:
        self._argument, self._loader, self._order, self._n, self._shard = argument, loader, order, num_samples, shard
        self.step = order.step
        self._start = 0
        self._kept: dict[int, Order] = {}

    def begin(self, position: int) -> None:
        """Start at a position."""
        self._start = position
        self._order_of(position // self._n)

    def __iter__(self) -> Iterator[SeededIndices]:
        start, rank, size = self._start, self._shard.rank, self._shard.size
        for position in range(start, (start // self._n + 1) * self._n, self.step):
            seed = mix_seed(self._order.seed, position + rank)
            yield SeededIndices(self._indices(position + rank, position + self.step, size), seed)

    def _indices(self, start: int, stop: int, step: int) -> list[int]:
        found: list[int] = []
        while start < stop:
            epoch, first = divmod(start, self._n)
            indices = self._order_of(epoch).slice(first, min(self._n, first + stop - start), step)
            found += indices
            start += len(indices) * step
        return found

    def _order_of(self, epoch: int) -> Order:
        """Return the order of an epoch; it and its neighbor are kept."""
        if epoch not in self._kept:
            set_epoch(self._loader, epoch)
            order = self._order.full_order(epoch)
            if order is None or order.n != self._n:
                now = "no length" if order is None else plural(order.n, "sample")
                raise ValueError(
                    f"{self._argument}: its sampler has {now} in epoch {epoch}, but had {plural(self._n, 'sample')} in "
                    f"the first. In a mixture, all epochs of a source must be equally long."
                )
            self._kept = {number: kept for number, kept in self._kept.items() if number == epoch - 1} | {epoch: order}
        return self._kept[epoch]


class _TensorSource(_PositionedSource):
    """A :class:`TensorLoader`."""

    is_per_rank = False

    def __init__(self, argument: str, loader: TensorLoader, shard: DataShard) -> None:
        if (loader.rank, loader.num_replicas) != (shard.rank, shard.size):
            raise ValueError(
                f"{argument}: the TensorLoader has rank={loader.rank} and num_replicas={loader.num_replicas}, but the "
                f"mixture rank={shard.rank} and num_replicas={shard.size}. Pass the same to both."
            )
        super().__init__(argument, loader.num_samples, loader.batch_size * shard.size)
        self._loader = loader

    def draw(self, samples: int) -> tuple[Batch] | None:
        batch = self._loader.batch_at(self.position)
        self.position += self._step
        return (batch,)


class _EpochSource:
    """A loader that is iterated epoch by epoch: with a state of its own, or read again up to a position."""

    per_epoch = per_step = None

    def __init__(self, argument: str, iterators: EpochIterators) -> None:
        self._argument, self._iterators = argument, iterators
        self.is_per_rank = iterators.is_per_rank
        self.never_ends = infinite_reason(iterators.loader)
        # Number of batches in the current epoch, and in others; None if only reading tells.
        self._length = self._usual_length = iterators.length
        self._epoch = self._batch = self._mark = self._first_sample = 0
        # The state after the last epoch, until the next one begins.
        self._between: Mapping[str, Any] | None = None
        self._iterator: EpochIterator | None = None

    def draw(self, samples: int) -> tuple[Batch] | None:
        if self._iterator is None:
            self._iterator, self._between = self._iterators.begin(self._epoch), None
        if self._length is None or self._batch < self._length:
            for batch in self._iterator:
                self._batch += 1
                return (batch,)
        if not self._batch:
            raise ValueError(f"{self._argument} is empty: it yielded no batch in epoch {self._epoch}. Remove it.")
        self._between = self._end_position(samples)
        self._iterator.stop()
        self._epoch, self._batch, self._iterator, self._first_sample = self._epoch + 1, 0, None, samples
        self._length = self._usual_length
        return None

    def _end_position(self, samples: int) -> dict[str, Any] | None:
        """Return the state after an epoch: a loader may keep more than a position, such as a generator."""
        iterator = self._iterator
        if iterator is None or not iterator.has_state_dict:
            return None
        return {**self._state_of(iterator, samples), "ended": self._batch}

    def _state_of(self, iterator: EpochIterator, samples: int) -> dict[str, Any]:
        return iterator.state_dict(samples - self._first_sample, sized=self._length is not None)

    def agree(self) -> None:
        """Each epoch begins on all ranks."""

    def passes(self) -> int:
        return self._epoch - self._mark

    def mark(self) -> None:
        self._mark = self._epoch

    def reset(self) -> None:
        self._epoch = self._batch = self._mark = self._first_sample = 0
        self._iterator = self._between = None
        self._length = self._usual_length
        self._iterators.return_to_start(None)

    def state_dict(self, samples: int) -> dict[str, Any]:
        position = self._between if self._iterator is None else self._state_of(self._iterator, samples)
        return {
            "length": self._length,
            "epoch": self._epoch,
            "batch": self._batch,
            "mark": self._mark,
            "first_sample": self._first_sample,
            "position": position,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epoch, self._batch, self._mark = state["epoch"], state["batch"], state["mark"]
        self._first_sample, position = state["first_sample"], state["position"]
        # On another number of ranks, the epoch has another number of batches.
        self._length = self._usual_length if state["length"] == self._usual_length else None
        self._iterator = self._between = None
        if position is None:
            if not self._epoch:  # it was not read yet, but may have been since, by an evaluation
                self._iterators.return_to_start(None)
            return
        # All-gathering the positions of all ranks is done by the checkpoint of the mixture.
        saved: dict[str, Any] = {**position, "ranks": [position] * self._iterators.shard.size}
        if "ended" in position:
            self._iterators.begin(self._epoch - 1, position["ended"], saved)
            self._between = position
        else:
            self._iterator = self._iterators.begin(self._epoch, self._batch, saved)
