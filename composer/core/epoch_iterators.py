"""Create iterators over the training data at any position, to resume in the middle of an epoch."""

from __future__ import annotations

import copy
import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from composer import dist, rng
from composer._text import plural
from composer.core.data_sharding import FULL_SHARD, DataShard, is_data_sharded
from composer.core.epoch_iterator import EpochIterator, counts_samples, has_state_dict
from composer.core.epoch_start import agree_on_seed, set_epoch
from composer.core.loader_workers import is_finished, iterate, lend, restore_end, take_back
from composer.core.sample_order import SampleOrder, length_of, resumable_loader
from composer.core.shared_data import KeptStarts, indexed_state
from composer.core.types import Batch

__all__ = ["EpochIterators"]

_log = logging.getLogger(__name__)


@dataclass
class EpochIterators:
    """Creates iterators over a loader, each starting at any position of an epoch.

    How an epoch is resumed depends on the loader. The first of these that it supports is used: the ``state_dict`` of a
    dataset that takes the number of samples consumed by all ranks (as streaming datasets do); the ``state_dict`` of the
    loader (such as torchdata's ``StatefulDataLoader``); the ``state_dict`` of its dataset; the sample indices, which
    are known without fetching samples. Otherwise the earlier batches are fetched again.

    In distributed training, data with indices is sharded among ranks, see :class:`.SampleOrder`; other loaders, and the
    position in them, are separate on each rank. A loader that shards its data itself declares ``shards_data = True``:
    its state is then the same on all ranks and fits any number of ranks, and ``steps_left`` is the number of steps that
    remain, or None if unknown.

    Before each epoch, ``set_epoch`` of sampler, dataset and loader is called, or ``next_epoch`` is set as in streaming
    datasets, so that a resumed run has the same order.

    Args:
        loader: Yields batches.
        seed: Seed of the run, the same on all ranks.
        shard: The data shard of this rank.
        shard_batches: Whether complete batches of the loader are sharded, instead of the samples of a step.
        fetch_again: Whether a batch that was fetched ahead of a checkpoint is fetched again, if it used random numbers
            other than those that it would use when it is needed.
        starts: Keeps the states of loaders and datasets before the first epoch.

    >>> next(
    ...     EpochIterators([1, 2, 3], seed=0).begin(epoch=0, batch=2, saved={"kind": "replay", "rng": None})
    ... )
    3
    """

    loader: Any
    seed: int
    shard: DataShard = FULL_SHARD
    shard_batches: bool = False
    fetch_again: bool = True
    starts: KeptStarts = field(default_factory=KeptStarts, repr=False)
    _sharded: tuple[SampleOrder, DataLoader[Any]] | None = field(default=None, repr=False)

    @property
    def resume_by(self) -> str:
        """How an epoch is resumed: "loader", "dataset", "indices" or "replay"."""
        dataset = getattr(self.loader, "dataset", None)
        if has_state_dict(dataset) and counts_samples(dataset):
            return "dataset"  # before the loader's, which may be valid only for the current number of ranks
        if has_state_dict(self.loader):
            return "loader"
        by_index = type(self.loader) is DataLoader and not isinstance(dataset, IterableDataset)
        if has_state_dict(dataset) and not (by_index or self._has_workers):
            return "dataset"
        # A custom loader class may do more than fetch the indices of its sampler.
        return "indices" if by_index else "replay"

    @property
    def length(self) -> int | None:
        """Number of steps in a full epoch, or None if the loader has no length."""
        if self.resume_by != "indices":
            return length_of(self.loader)
        return SampleOrder(self.loader, self.shard, shard_batches=self.shard_batches).steps_after(0)

    @property
    def is_per_rank(self) -> bool:
        """Whether data, and the position in it, are separate on each rank."""
        if self.resume_by == "dataset":
            return not counts_samples(self.loader.dataset)
        if self.resume_by == "loader":
            return not getattr(self.loader, "shards_data", False)
        return self.resume_by != "indices" or is_data_sharded(self.loader, self.shard)

    def _sharded_loader(self) -> tuple[SampleOrder, DataLoader[Any]]:
        if self._sharded is None:
            indices = SampleOrder(self.loader, self.shard, shard_batches=self.shard_batches)
            indices.seed = self.seed
            agree_on_seed(indices)
            self._sharded = indices, resumable_loader(self.loader, indices, self.seed + self.shard.rank)
        return self._sharded

    @property
    def order(self) -> SampleOrder | None:
        """The sample order of data with indices, once an epoch has begun; None for other data."""
        return None if self._sharded is None else self._sharded[0]

    @property
    def _has_workers(self) -> bool:
        """Whether DataLoader workers hold copies of the dataset, whose state changes there."""
        return getattr(self.loader, "num_workers", 0) > 0

    def begin(self, epoch: int, batch: int = 0, saved: Mapping[str, Any] | None = None) -> EpochIterator:
        """Create an iterator over an epoch.

        Args:
            epoch: Number of the epoch, from 0.
            batch: Number of batches of the epoch that are done.
            saved: What :meth:`position` returned at that point; None at the beginning of an epoch.

        Raises:
            ValueError: The loader is resumed in another way than the saved one, or its position cannot be restored on
                this number of ranks.
        """
        self.starts.keep()
        set_epoch(self.loader, epoch)
        resume_by = self.resume_by
        if saved is not None and saved["kind"] == "any":
            # Written by a version that saved only the number of batches.
            resume_by = resume_by if resume_by == "indices" else "replay"
            saved = {"kind": resume_by, "ranks": [{"kind": resume_by, "rng": None}] * self.shard.size}
        if saved is not None and saved["kind"] != resume_by:
            raise ValueError(
                f"The position in the training data was saved by {_BY[saved['kind']]}, but the current data resumes by "
                f"{_BY[resume_by]}. Pass the same type of loader, or spin_dataloaders=False to restart the data."
            )
        if saved is not None and (self.is_per_rank or resume_by == "replay"):
            saved = self.of_this_rank(saved)
        if resume_by == "replay":
            return self._by_replay(epoch, batch, saved)
        if resume_by == "indices":
            stateful = indexed_state(self.loader)
        else:
            stateful = self.loader if resume_by == "loader" else self.loader.dataset
        if saved is not None and stateful is not None and "state" in saved:
            stateful.load_state_dict(saved["state"])
        if saved is not None and (saved.get("over") or is_finished(saved.get("state"))):
            ended: Iterator[Batch] = iter(())
            if resume_by == "loader" and isinstance(self.loader, DataLoader):
                # A torch DataLoader samples its seed when iteration starts: do it now for the finished epoch.
                ended = restore_end(self.loader, saved["state"])
            return EpochIterator(resume_by, ended, stateful=stateful, ended=True)
        if resume_by == "indices":
            return self._by_indices(epoch, batch, saved, stateful)
        is_shared = saved is not None and resume_by == "loader" and not self.is_per_rank
        left = self.loader.steps_left if is_shared else None
        length = None if left is None else batch + left
        batches = iterate(self.loader, resumed=saved is not None, restarted=epoch > 0 and resume_by == "dataset")
        restart = functools.partial(self._restart, stateful) if self._can_restart else None
        return EpochIterator(resume_by, batches, stateful=stateful, length=length, restart=restart)

    @property
    def _can_restart(self) -> bool:
        """Return whether data can return to an earlier state within an epoch, exactly and at once.

        A loader such as torchdata's reads a dataset that has no state again, from its beginning.
        """
        if not self.fetch_again or self._has_workers or not self.is_per_rank:
            return False
        return not isinstance(self.loader, DataLoader) or has_state_dict(self.loader.dataset)

    def _restart(self, stateful: Any, state: Any) -> Iterator[Batch]:
        stateful.load_state_dict(copy.deepcopy(state))  # a checkpoint may contain that object
        return iterate(self.loader, resumed=True)

    def position(
        self,
        current: EpochIterator,
        sample: int,
        *,
        uncounted: int = 0,
        sized: bool = True,
        everywhere: bool = True,
    ) -> dict[str, Any]:
        """Return the position for a checkpoint, from which later processes resume; all ranks must call this.

        Args:
            current: The iterator of this rank.
            sample: Number of samples of the epoch that are done on all ranks.
            uncounted: Number of batches of this rank that were fetched, but are not done.
            sized: Whether the number of batches determines where the epoch ends.
            everywhere: Whether all ranks get the positions of all, or only rank 0, which saves them.
        """
        if self.shard.size == 1 or not self.is_per_rank:
            return current.state_dict(sample, uncounted=uncounted, sized=sized)
        # Other ranks may have more batches than this one.
        return self.all_gather(current.state_dict(sample, uncounted=uncounted, sized=False), everywhere=everywhere)

    def position_after(
        self, ended: EpochIterator, sample: int, batch: int, *, sized: bool = True, everywhere: bool = True
    ) -> dict[str, Any] | None:
        """Return the state to begin the epoch after a finished one, or None; all ranks must call this.

        Data with its own ``state_dict`` may hold more than a position, such as the generator of the next order. Other
        data needs no state.

        Args:
            ended: The finished iterator of this rank.
            sample: Number of samples on all ranks.
            batch: Number of batches.
            sized: Whether the number of batches determined where the epoch ended.
            everywhere: As for :meth:`position`.
        """
        if not ended.has_state_dict:
            return None
        position = ended.state_dict(sample, sized=sized)
        if self.shard.size > 1 and self.is_per_rank:
            position = self.all_gather(position, everywhere=everywhere)
        return {**position, "ended": batch}

    def restore_after(self, epoch: int, saved: Mapping[str, Any]) -> None:
        """Restore the data to the end of an epoch; data other than the saved one starts from the beginning.

        Args:
            epoch: Number of that epoch.
            saved: What :meth:`position_after` returned.
        """
        if self.accepts(saved):
            self.begin(epoch, saved["ended"], saved)

    def accepts(self, saved: Mapping[str, Any]) -> bool:
        """Return whether a position at the start of an epoch, or after one, is of this data; log a warning if not.

        Args:
            saved: What :meth:`position` or :meth:`position_after` returned.
        """
        num_ranks = len(saved.get("ranks", [saved]))
        if saved["kind"] == self.resume_by and not (self.is_per_rank and num_ranks != self.shard.size):
            return True
        _log.warning("The training data differs from that of the checkpoint; it starts from the beginning.")
        return False

    def all_gather(self, mine: Mapping[str, Any], *, everywhere: bool = True) -> dict[str, Any]:
        """Gather the positions of all ranks; all ranks must call this.

        Args:
            mine: The position of this rank.
            everywhere: Whether all ranks get the positions, or only rank 0; on others there are none then.
        """
        gather = dist.all_gather_object if everywhere else dist.gather_object
        ranks = dict(gather((self.shard.rank, mine)) or ())
        return {"kind": mine["kind"], "ranks": [ranks[rank] for rank in range(self.shard.size)] if ranks else []}

    @property
    def can_prefetch(self) -> bool:
        """Whether the first batch can be fetched here without an effect on an epoch that begins afterwards."""
        return self.resume_by in ("indices", "replay") and not (self._has_workers or isinstance(self.loader, Iterator))

    def rewind(
        self,
        current: EpochIterator,
        epoch: int,
        batch: int,
        fetched: tuple[Batch, ...],
        *,
        is_complete: bool = True,
    ) -> bool:
        """Make an iterator yield the last batches again, or those of a step that failed to load; return whether it can.

        Args:
            current: The iterator.
            epoch: Number of its epoch.
            batch: Number of batches of the epoch that are done.
            fetched: The last batches, which are fetched again if the data has indices; empty if fetching failed.
            is_complete: Whether no batch after them failed to load.
        """
        if current.resume_by == "indices":
            position = current.step_back(len(fetched))
            current.continue_with(lambda: self._by_indices(epoch, batch, {"place": position}, None))
        elif fetched and is_complete:
            current.push_back(fetched)
        elif current.resume_by == "replay" and not isinstance(self.loader, Iterator):
            current.continue_with(lambda: self._by_replay(epoch, batch, {"rng": current.start}))
        else:
            current.push_back(fetched)  # only the batch that failed is lost
            return False
        return True

    def hold(
        self, current: EpochIterator, epoch: int, batch: int, sample: int, *, uncounted: int = 0, sized: bool = True
    ) -> Callable[[], None]:
        """Stop an iterator, so that other code can iterate over the same stateful data; return what continues it.

        Args:
            current: The iterator.
            epoch: Number of its epoch.
            batch: Number of batches of the epoch that are done.
            sample: As for :meth:`position`.
            uncounted: As for :meth:`position`.
            sized: As for :meth:`position`.
        """
        position, fetched = current.hold(sample, uncounted=uncounted, sized=sized)
        saved = {**position, "ranks": [position] * self.shard.size}
        if saved.get("over") and self.resume_by == "dataset" and counts_samples(self.loader.dataset):
            return lambda: current.continue_at(iter(()), 0)  # the number of the next epoch says where it begins
        return lambda: current.continue_at(self.begin(epoch, batch, saved).source, fetched)

    def return_to_start(self, current: EpochIterator | None) -> None:
        """Return stateful data to its start, or to that of the current epoch, for another iterator that begins there.

        Args:
            current: The held iterator of the current epoch, if any.
        """
        self.starts.restore()
        if current is not None and self.resume_by == "dataset" and counts_samples(dataset := self.loader.dataset):
            dataset.load_state_dict(dataset.state_dict(0, True))

    def lend_workers(self, current: EpochIterator | None, epoch: int, batch: int) -> None:
        """Let the user's loader use the persistent workers until the next batch is requested.

        Args:
            current: The current iterator, which then restarts at its position; None between epochs.
            epoch: Number of its epoch.
            batch: Number of batches of the epoch that are done.
        """
        if self._sharded is not None and lend(self._sharded[1], self.loader) and current is not None:
            self.rewind(current, epoch, batch, ())

    def of_this_rank(self, saved: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the saved position of this rank.

        Args:
            saved: The positions of all ranks, as "ranks".

        Raises:
            ValueError: They are of another number of ranks.
        """
        ranks: list[Any] = saved.get("ranks", [saved])
        if len(ranks) != self.shard.size:
            now = plural(self.shard.size, "rank")
            raise ValueError(
                f"The position in the training data was saved by {plural(len(ranks), 'rank')} with separate data, but "
                f"the run now has {now}. Resume with the same number of ranks, or give spin_dataloaders=False to "
                f"restart the data. A torch DataLoader with a plain sampler can be resumed with any number of ranks."
            )
        return ranks[self.shard.rank]

    def _by_indices(self, epoch: int, batch: int, saved: Mapping[str, Any] | None, stateful: Any) -> EpochIterator:
        indices, loader = self._sharded_loader()
        take_back(loader, self.loader)
        start = 0 if saved is None else saved.get("place", batch * indices.step)
        indices.epoch, indices.start = epoch, start
        # With another number of ranks or another batch size, the epoch has another number of batches.
        rest = None if saved is None else indices.steps_after(start)
        length = None if rest is None else batch + rest
        batches = iterate(loader, owner=self.loader)
        return EpochIterator("indices", batches, stateful=stateful, position=start, step=indices.step, length=length)

    def _by_replay(self, epoch: int, batch: int, saved: Mapping[str, Any] | None) -> EpochIterator:
        start = rng.get_local_rng_state() if saved is None else saved["rng"]
        if saved is not None and start is not None:
            rng.set_local_rng_state(start)
        iterator = iterate(self.loader, restarted=epoch > 0)
        if saved is None:
            return EpochIterator("replay", iterator, start=start)
        if batch == 0:
            fetched = saved.get("fetched", True)
            # Saved within the first step: its batch was fetched, and with it the order of the epoch drawn.
            first = list(itertools.islice(iterator, 1)) if fetched else []
            return EpochIterator("replay", itertools.chain(first, iterator), start=start, fetched=fetched)
        _log.warning(
            "Fetching the first %d batches again to resume the training data at its position: %s has neither a "
            "state_dict nor indices. Use a torchdata StatefulDataLoader, or data with state_dict and load_state_dict, "
            "to avoid this.",
            batch,
            type(self.loader).__name__,
        )
        for _ in itertools.islice(iterator, batch):
            pass
        return EpochIterator("replay", iterator, start=start, fetched=True)


_BY = {
    "loader": "the state_dict of the loader",
    "dataset": "the state_dict of the dataset",
    "indices": "the indices of a torch DataLoader",
    "replay": "fetching earlier batches again",
}
