"""Begins passes over the training data, each anywhere, so that an epoch is resumed where another process left it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from composer import dist, rng
from composer._text import plural
from composer.core.data_pass import DataPass, counts_samples
from composer.core.dealing import WHOLE, DataShare, is_divided
from composer.core.indices import Indices, length_of, resumable
from composer.core.types import Batch
from composer.core.workers import iterate

__all__ = ["PassFactory"]

_log = logging.getLogger(__name__)


@dataclass
class PassFactory:
    """Begins passes over a loader, each anywhere.

    How a pass is taken up depends on what the loader offers, the first of these that there is: the ``state_dict`` of a
    data set that asks for the number of samples that all processes had (as streaming's does); the loader's own (as
    torchdata's ``StatefulDataLoader`` has); its data set's; the indices of its samples, which are known without
    fetching any; else the batches before are fetched again.

    In several processes data with indices is dealt out, see :class:`.Indices`; other loaders are each process's own, as
    is the place in them. A loader that deals itself out says so by ``is_dealt = True``: its state is then the same in
    all processes and fits any number of them, and ``steps_left`` is the number of steps from there to the end.

    Before each pass the epoch is told to all of sampler, data set and loader that have ``set_epoch``, or ``next_epoch``
    as streaming's data sets do: one that begins in another process has the order that it would have had.

    Args:
        loader: Yields batches.
        seed: Of the run, the same in all processes.
        share: What this process gets.
        whole_batches: Whether the loader's own batches are dealt out, rather than the samples of a step.

    >>> next(PassFactory([1, 2, 3], seed=0).begin(epoch=0, batch=2, saved={"kind": "replay", "rng": None}))
    3
    """

    loader: Any
    seed: int
    share: DataShare = WHOLE
    whole_batches: bool = False
    _made: tuple[Indices, DataLoader[Any]] | None = field(default=None, repr=False)

    @property
    def kind(self) -> str:
        """By what a pass is taken up: "loader", "dataset", "indices" or "replay"."""
        dataset = getattr(self.loader, "dataset", None)
        if _keeps_state(dataset) and counts_samples(dataset):
            return "dataset"  # before the loader's, which may hold for as many processes as there are now only
        if _keeps_state(self.loader):
            return "loader"
        by_index = type(self.loader) is DataLoader and not isinstance(dataset, IterableDataset)
        if _keeps_state(dataset) and not (by_index or self._has_workers):
            return "dataset"
        # A class of one's own may do more than fetch what its sampler says.
        return "indices" if by_index else "replay"

    @property
    def length(self) -> int | None:
        """Number of steps of a whole pass, or None where the loader does not tell."""
        if self.kind != "indices":
            return length_of(self.loader)
        return Indices(self.loader, self.share, whole_batches=self.whole_batches).steps_after(0)

    @property
    def is_own(self) -> bool:
        """Whether this process's data, and the place in it, are not those of the others."""
        if self.kind == "dataset":
            return not counts_samples(self.loader.dataset)
        if self.kind == "loader":
            return not getattr(self.loader, "is_dealt", False)
        return self.kind != "indices" or is_divided(self.loader, self.share)

    def _dealt(self) -> tuple[Indices, DataLoader[Any]]:
        if self._made is None:
            indices = Indices(self.loader, self.share, whole_batches=self.whole_batches)
            indices.seed = self.seed
            if self.share.size > 1 and not indices.is_divided:
                # Each process may have been given a generator of its own.
                own_seed = [indices.own_seed]
                dist.broadcast_object_list(own_seed)
                indices.own_seed = own_seed[0]
            self._made = indices, resumable(self.loader, indices, self.seed + self.share.rank)
        return self._made

    @property
    def _has_workers(self) -> bool:
        """Whether the data set that changes is a copy in another process."""
        return getattr(self.loader, "num_workers", 0) > 0

    def begin(self, epoch: int, batch: int = 0, saved: Mapping[str, Any] | None = None) -> DataPass:
        """Begin a pass.

        Args:
            epoch: Which, from 0.
            batch: Number of batches of it that are done.
            saved: What :meth:`place` gave when they were; None at the beginning of a pass.

        Raises:
            ValueError: The loader is of another kind than the one that was saved, or its place cannot be found by this
                number of processes.
        """
        self._tell_epoch(epoch)
        kind = self.kind
        if saved is not None and saved["kind"] == "any":
            # Written by a version that kept no more than the number of batches.
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
                # A loader of torch draws its numbers when it begins again: for the pass that is over now, not later.
                iterate(self.loader)
            return DataPass(kind, iter(()), owner=owner)
        if kind == "indices":
            return self._by_indices(epoch, batch, saved, owner)
        length = None if saved is None or self.is_own or kind != "loader" else batch + self.loader.steps_left
        return DataPass(kind, iterate(self.loader, resumed=saved is not None), owner=owner, length=length)

    def _tell_epoch(self, epoch: int) -> None:
        owners: list[Any] = [getattr(self.loader, name, None) for name in ("sampler", "batch_sampler", "dataset")]
        for each in {id(owner): owner for owner in (*owners, self.loader)}.values():
            if callable(set_epoch := getattr(each, "set_epoch", None)):
                set_epoch(epoch)
            elif type(getattr(each, "next_epoch", None)) is int:
                each.next_epoch = epoch

    def place(self, current: DataPass, sample: int, *, sized: bool = True) -> dict[str, Any]:
        """Return what later processes need to go on where this one and the others are; all of them have to call this.

        Args:
            current: The pass of this process.
            sample: Number of samples of the pass that are done, by all processes.
            sized: Whether the number of batches tells where the pass ends.
        """
        if self.share.size == 1 or not self.is_own:
            return current.state_dict(sample, sized=sized)
        # Others may have more batches than this process.
        return self.gather(current.state_dict(sample, sized=False))

    def place_after(self, ended: DataPass, sample: int, batch: int, *, sized: bool = True) -> dict[str, Any] | None:
        """Return what later processes need to begin the pass after one that has ended; all have to call this.

        Data that keep their own place may keep more: the generator that the next order comes from. Of others there is
        nothing to be kept.

        Args:
            ended: The pass of this process.
            sample: Number of samples that all processes had.
            batch: Number of batches.
            sized: Whether the number of batches told where the pass ended.
        """
        if not ended.has_owner:
            return None
        place = ended.state_dict(sample, sized=sized)
        return {**(self.gather(place) if self.share.size > 1 and self.is_own else place), "ended": batch}

    def go_after(self, epoch: int, saved: Mapping[str, Any]) -> None:
        """Bring the data to where they were at the end of a pass; other data than were saved begin anew.

        Args:
            epoch: That pass.
            saved: What :meth:`place_after` gave.
        """
        if saved["kind"] != self.kind or (self.is_own and len(saved.get("ranks", [saved])) != self.share.size):
            _log.warning("The training data is not what it was when the checkpoint was saved; it begins anew.")
            return
        self.begin(epoch, saved["ended"], saved)

    def gather(self, mine: Mapping[str, Any]) -> dict[str, Any]:
        """Return the places of all processes, of which each has its own; all of them have to call this.

        Args:
            mine: What the pass of this process gave.
        """
        ranks = dict(dist.all_gather_object((self.share.rank, mine)))
        return {"kind": mine["kind"], "ranks": [ranks[rank] for rank in range(self.share.size)]}

    @property
    def can_be_touched(self) -> bool:
        """Whether the first batch may be fetched by this process, and then a pass begun as if it had not been."""
        return self.kind in ("indices", "replay") and not (self._has_workers or isinstance(self.loader, Iterator))

    def rewind(self, current: DataPass, epoch: int, batch: int, fetched: tuple[Batch, ...]) -> bool:
        """Have a pass yield again what was fetched last, or what failed to be fetched; tell whether it can.

        Args:
            current: The pass.
            epoch: Its number.
            batch: Number of batches of it that are done.
            fetched: The batch, which is fetched again where the data has indices; empty if that failed.
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

    def _of_this_rank(self, saved: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was saved of the own data of this process."""
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

    def _by_indices(self, epoch: int, batch: int, saved: Mapping[str, Any] | None, owner: Any) -> DataPass:
        indices, loader = self._dealt()
        start = 0 if saved is None else saved.get("place", batch * indices.step)
        indices.epoch, indices.start = epoch, start
        # Where processes or samples in a batch are not as many as before, the pass has another number of batches.
        rest = None if saved is None else indices.steps_after(start)
        length = None if rest is None else batch + rest
        return DataPass("indices", iterate(loader), owner=owner, place=start, step=indices.step, length=length)

    def _by_replay(self, batch: int, saved: Mapping[str, Any] | None) -> DataPass:
        if saved is None or batch == 0:
            state = rng.get_local_rng_state()
            return DataPass("replay", iterate(self.loader), start=state)
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
        return DataPass("replay", iterator, start=saved["rng"])


_BY = {
    "loader": "the state_dict of the loader",
    "dataset": "the state_dict of the data set",
    "indices": "the indices of a torch DataLoader",
    "replay": "fetching the batches before again",
}


def _keeps_state(owner: Any) -> bool:
    return callable(getattr(owner, "state_dict", None)) and callable(getattr(owner, "load_state_dict", None))
