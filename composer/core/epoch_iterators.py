"""Create iterators over the training data at any position, to resume in the middle of an epoch."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from composer import dist, rng
from composer._text import plural
from composer.core.data_sharding import WHOLE, DataShard, is_data_sharded
from composer.core.epoch_iterator import EpochIterator, counts_samples
from composer.core.loader_workers import iterate, lend, take_back
from composer.core.sample_order import SampleOrder, length_of, resumable
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
    position in them, are separate on each rank. A loader that shards its data itself declares ``is_dealt = True``: its
    state is then the same on all ranks and fits any number of ranks, and ``steps_left`` is the number of steps that
    remain.

    Before each epoch, ``set_epoch`` of sampler, dataset and loader is called, or ``next_epoch`` is set as in streaming
    datasets, so that a resumed run has the same order.

    Args:
        loader: Yields batches.
        seed: Seed of the run, the same on all ranks.
        share: The data shard of this rank.
        whole_batches: Whether complete batches of the loader are sharded, instead of the samples of a step.

    >>> next(
    ...     EpochIterators([1, 2, 3], seed=0).begin(epoch=0, batch=2, saved={"kind": "replay", "rng": None})
    ... )
    3
    """

    loader: Any
    seed: int
    share: DataShard = WHOLE
    whole_batches: bool = False
    _made: tuple[SampleOrder, DataLoader[Any]] | None = field(default=None, repr=False)

    @property
    def kind(self) -> str:
        """How an epoch is resumed: "loader", "dataset", "indices" or "replay"."""
        dataset = getattr(self.loader, "dataset", None)
        if _keeps_state(dataset) and counts_samples(dataset):
            return "dataset"  # before the loader's, which may be valid only for the current number of ranks
        if _keeps_state(self.loader):
            return "loader"
        by_index = type(self.loader) is DataLoader and not isinstance(dataset, IterableDataset)
        if _keeps_state(dataset) and not (by_index or self._has_workers):
            return "dataset"
        # A custom loader class may do more than fetch the indices of its sampler.
        return "indices" if by_index else "replay"

    @property
    def length(self) -> int | None:
        """Number of steps in a full epoch, or None if the loader has no length."""
        if self.kind != "indices":
            return length_of(self.loader)
        return SampleOrder(self.loader, self.share, whole_batches=self.whole_batches).steps_after(0)

    @property
    def is_own(self) -> bool:
        """Whether data, and the position in it, are separate on each rank."""
        if self.kind == "dataset":
            return not counts_samples(self.loader.dataset)
        if self.kind == "loader":
            return not getattr(self.loader, "is_dealt", False)
        return self.kind != "indices" or is_data_sharded(self.loader, self.share)

    def _dealt(self) -> tuple[SampleOrder, DataLoader[Any]]:
        if self._made is None:
            indices = SampleOrder(self.loader, self.share, whole_batches=self.whole_batches)
            indices.seed = self.seed
            if self.share.size > 1 and not indices.is_data_sharded:
                # Each rank may have a generator with a different seed.
                own_seed = [indices.own_seed]
                dist.broadcast_object_list(own_seed)
                indices.own_seed = own_seed[0]
            self._made = indices, resumable(self.loader, indices, self.seed + self.share.rank)
        return self._made

    @property
    def _has_workers(self) -> bool:
        """Whether DataLoader workers hold copies of the dataset, whose state changes there."""
        return getattr(self.loader, "num_workers", 0) > 0

    def begin(self, epoch: int, batch: int = 0, saved: Mapping[str, Any] | None = None) -> EpochIterator:
        """Create an iterator over an epoch.

        Args:
            epoch: Number of the epoch, from 0.
            batch: Number of batches of the epoch that are done.
            saved: What :meth:`place` returned at that point; None at the beginning of an epoch.

        Raises:
            ValueError: The loader is resumed in another way than the saved one, or its position cannot be restored on
                this number of ranks.
        """
        self._tell_epoch(epoch)
        kind = self.kind
        if saved is not None and saved["kind"] == "any":
            # Written by a version that saved only the number of batches.
            kind = kind if kind == "indices" else "replay"
            saved = {"kind": kind, "ranks": [{"kind": kind, "rng": None}] * self.share.size}
        if saved is not None and saved["kind"] != kind:
            raise ValueError(
                f"The place in the training data was saved by {_BY[saved['kind']]}, but the data given now goes by "
                f"{_BY[kind]}. Give the same kind of loader, or spin_dataloaders=False to begin the data anew."
            )
        if saved is not None and (self.is_own or kind == "replay"):
            saved = self._of_this_rank(saved)
        if kind == "replay":
            return self._by_replay(batch, saved)
        owner = self.loader if kind == "loader" else self.loader.dataset
        if kind == "indices" and (self._has_workers or not _keeps_state(owner)):
            owner = None
        if saved is not None and owner is not None and "state" in saved:
            owner.load_state_dict(saved["state"])
        if saved is not None and saved.get("over"):
            if kind == "loader" and isinstance(self.loader, DataLoader):
                # A torch DataLoader samples its seed when iteration starts: do it now for the finished epoch.
                iterate(self.loader)
            return EpochIterator(kind, iter(()), owner=owner)
        if kind == "indices":
            return self._by_indices(epoch, batch, saved, owner)
        length = None if saved is None or self.is_own or kind != "loader" else batch + self.loader.steps_left
        return EpochIterator(kind, iterate(self.loader, resumed=saved is not None), owner=owner, length=length)

    def _tell_epoch(self, epoch: int) -> None:
        owners: list[Any] = [getattr(self.loader, name, None) for name in ("sampler", "batch_sampler", "dataset")]
        for each in {id(owner): owner for owner in (*owners, self.loader)}.values():
            if callable(set_epoch := getattr(each, "set_epoch", None)):
                set_epoch(epoch)
            elif type(getattr(each, "next_epoch", None)) is int:
                each.next_epoch = epoch

    def place(self, current: EpochIterator, sample: int, *, sized: bool = True) -> dict[str, Any]:
        """Return the position for a checkpoint, from which later processes resume; all ranks must call this.

        Args:
            current: The iterator of this rank.
            sample: Number of samples of the epoch that are done on all ranks.
            sized: Whether the number of batches determines where the epoch ends.
        """
        if self.share.size == 1 or not self.is_own:
            return current.state_dict(sample, sized=sized)
        # Other ranks may have more batches than this one.
        return self.gather(current.state_dict(sample, sized=False))

    def place_after(
        self, ended: EpochIterator, sample: int, batch: int, *, sized: bool = True
    ) -> dict[str, Any] | None:
        """Return the state to begin the epoch after a finished one, or None; all ranks must call this.

        Data with its own ``state_dict`` may hold more than a position, such as the generator of the next order. Other
        data needs no state.

        Args:
            ended: The finished iterator of this rank.
            sample: Number of samples on all ranks.
            batch: Number of batches.
            sized: Whether the number of batches determined where the epoch ended.
        """
        if not ended.has_owner:
            return None
        place = ended.state_dict(sample, sized=sized)
        return {**(self.gather(place) if self.share.size > 1 and self.is_own else place), "ended": batch}

    def go_after(self, epoch: int, saved: Mapping[str, Any]) -> None:
        """Restore the data to the end of an epoch; data other than the saved one starts from the beginning.

        Args:
            epoch: Number of that epoch.
            saved: What :meth:`place_after` returned.
        """
        if saved["kind"] != self.kind or (self.is_own and len(saved.get("ranks", [saved])) != self.share.size):
            _log.warning("The training data is not what it was when the checkpoint was saved; it begins anew.")
            return
        self.begin(epoch, saved["ended"], saved)

    def gather(self, mine: Mapping[str, Any]) -> dict[str, Any]:
        """All-gather the positions of all ranks; all ranks must call this.

        Args:
            mine: The position of this rank.
        """
        ranks = dict(dist.all_gather_object((self.share.rank, mine)))
        return {"kind": mine["kind"], "ranks": [ranks[rank] for rank in range(self.share.size)]}

    @property
    def can_be_touched(self) -> bool:
        """Whether the first batch can be fetched here without an effect on an epoch that begins afterwards."""
        return self.kind in ("indices", "replay") and not (self._has_workers or isinstance(self.loader, Iterator))

    def rewind(self, current: EpochIterator, epoch: int, batch: int, fetched: tuple[Batch, ...]) -> bool:
        """Make an iterator yield the last batch again, or the batch that failed to load; return whether it can.

        Args:
            current: The iterator.
            epoch: Number of its epoch.
            batch: Number of batches of the epoch that are done.
            fetched: The last batch, which is fetched again if the data has indices; empty if fetching failed.
        """
        if current.kind == "indices":
            place = current.step_back(1 if fetched else 0)
            current.begin_later(lambda: self._by_indices(epoch, batch, {"place": place}, None))
        elif fetched:
            current.hold(fetched[0])
        elif current.kind == "replay" and not isinstance(self.loader, Iterator):
            current.begin_later(lambda: self._by_replay(batch, {"rng": current.start}))
        else:
            return False
        return True

    def lend_workers(self, current: EpochIterator | None, epoch: int, batch: int) -> None:
        """Let the user's loader have the persistent workers until the next batch is wanted.

        Args:
            current: The iterator under way, which then begins again at its place; None between epochs.
            epoch: Number of its epoch.
            batch: Number of batches of the epoch that are done.
        """
        if self._made is not None and lend(self._made[1], self.loader) and current is not None:
            self.rewind(current, epoch, batch, ())

    def _of_this_rank(self, saved: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the saved position of this rank."""
        ranks: list[Any] = saved.get("ranks", [saved])
        if len(ranks) != self.share.size:
            now = plural(self.share.size, "rank")
            raise ValueError(
                f"The place in the training data was saved by {plural(len(ranks), 'rank')}, each with data of its own, "
                f"but there {'is' if self.share.size == 1 else 'are'} now {now}. Resume with as many, or give "
                f"spin_dataloaders=False to begin the data anew. The samples of a torch DataLoader with a plain "
                f"sampler are dealt out to any number."
            )
        return ranks[self.share.rank]

    def _by_indices(self, epoch: int, batch: int, saved: Mapping[str, Any] | None, owner: Any) -> EpochIterator:
        indices, loader = self._dealt()
        take_back(loader, self.loader)
        start = 0 if saved is None else saved.get("place", batch * indices.step)
        indices.epoch, indices.start = epoch, start
        # With another number of ranks or another batch size, the epoch has another number of batches.
        rest = None if saved is None else indices.steps_after(start)
        length = None if rest is None else batch + rest
        batches = iterate(loader, owner=self.loader)
        return EpochIterator("indices", batches, owner=owner, place=start, step=indices.step, length=length)

    def _by_replay(self, batch: int, saved: Mapping[str, Any] | None) -> EpochIterator:
        if saved is None or batch == 0:
            state = rng.get_local_rng_state()
            return EpochIterator("replay", iterate(self.loader), start=state)
        _log.warning(
            "Fetching the first %d batches again to get to where the training data was left: %s has neither a "
            "state_dict nor indices. A torchdata StatefulDataLoader, or data with state_dict and load_state_dict, "
            "would save this.",
            batch,
            type(self.loader).__name__,
        )
        if saved["rng"] is not None:
            rng.set_local_rng_state(saved["rng"])
        iterator = iterate(self.loader)
        for _ in itertools.islice(iterator, batch):
            pass
        return EpochIterator("replay", iterator, start=saved["rng"])


_BY = {
    "loader": "the state_dict of the loader",
    "dataset": "the state_dict of the data set",
    "indices": "the indices of a torch DataLoader",
    "replay": "fetching the batches before again",
}


def _keeps_state(owner: Any) -> bool:
    return callable(getattr(owner, "state_dict", None)) and callable(getattr(owner, "load_state_dict", None))
