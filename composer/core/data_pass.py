"""A pass over the training data that can be taken up where another process left it."""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from composer import dist, rng
from composer._text import plural
from composer.core.dealing import WHOLE, DataShare, is_divided
from composer.core.indices import Indices, length_of, resumable
from composer.core.types import Batch
from composer.core.workers import iterate

__all__ = ["DataPass", "PassFactory"]

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
        if _keeps_state(dataset) and _counts_samples(dataset):
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
            return not _counts_samples(self.loader.dataset)
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


class DataPass:
    """The rest of a pass: an iterator over batches that knows how to be taken up.

    Args:
        kind: See :class:`PassFactory`.
        iterator: Yields the batches.
        owner: The loader or data set that keeps its place.
        start: The state of the random generators at the beginning.
        place: Number of entries of the order of indices that were done before.
        step: Number of them that each step takes.
        length: Number of batches of the whole pass, where it is another than usual.

    >>> list(DataPass("indices", iter([1, 2])))
    [1, 2]
    """

    def __init__(
        self,
        kind: str,
        iterator: Iterator[Batch],
        *,
        owner: Any = None,
        start: dict[str, Any] | None = None,
        place: int = 0,
        step: int = 1,
        length: int | None = None,
    ) -> None:
        self.kind = kind
        self.length = length
        self._iterator = iterator
        self._owner = owner
        self._start = start
        self._place, self._step = place, step
        # The next batch, if it had to be looked for already.
        self._held: list[Batch] = []

    def __iter__(self) -> DataPass:
        """Return itself."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch."""
        batch = self._held.pop() if self._held else next(self._iterator)
        self._place += self._step
        return batch

    @property
    def source(self) -> Iterator[Batch]:
        """The iterator that batches are fetched from."""
        return self._iterator

    @property
    def has_owner(self) -> bool:
        """Whether the loader or the data set keeps its own place."""
        return self._owner is not None

    def leave(self) -> None:
        """Fetch no more, and let go of the workers."""
        self._iterator = iter(())

    def state_dict(self, sample: int = 0, *, sized: bool = True) -> dict[str, Any]:
        """Return what a later process needs to go on here.

        Args:
            sample: Number of samples of the pass that are done, for data sets that want to know.
            sized: Whether the number of batches tells where the pass ends. If not, the next batch is fetched: data that
                keep their own place do not say whether they are at the end of a pass or the beginning of one.
        """
        if self.kind == "replay":
            return {"kind": self.kind, "rng": self._start}
        place = {"kind": self.kind, "place": self._place} if self.kind == "indices" else {"kind": self.kind}
        if self._owner is None:
            return place
        state = {**place, "state": _state_of(self._owner, sample)}
        if sized or not self._is_over():
            return state
        return {**place, "state": _state_of(self._owner, sample), "over": True}

    def _is_over(self) -> bool:
        if not self._held:
            self._held = list(itertools.islice(self._iterator, 1))
        return not self._held


_BY = {
    "loader": "the state_dict of the loader",
    "dataset": "the state_dict of the data set",
    "indices": "the indices of a torch DataLoader",
    "replay": "fetching the batches before again",
}


def _keeps_state(owner: Any) -> bool:
    return callable(getattr(owner, "state_dict", None)) and callable(getattr(owner, "load_state_dict", None))


def _counts_samples(dataset: Any) -> bool:
    """Whether a data set's state is asked for with a number of samples and where it counts from, as streaming's is."""
    parameters = inspect.signature(dataset.state_dict).parameters.values()
    return sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters) == 2


def _state_of(owner: Any, sample: int) -> Any:
    return owner.state_dict(sample, True) if _counts_samples(owner) else owner.state_dict()
