"""A pass over the training data that can be taken up where another process left it."""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from composer import rng
from composer.core.indices import Indices, resumable
from composer.core.types import Batch
from composer.core.workers import iterate

__all__ = ["DataPass", "PassFactory"]

_log = logging.getLogger(__name__)


@dataclass
class PassFactory:
    """Begins passes over a loader, each anywhere.

    How a pass is taken up depends on what the loader offers, the first of these that there is: its own ``state_dict``
    (as torchdata's ``StatefulDataLoader`` and streaming's loader have); its data set's; the indices of its samples,
    which are known without fetching any; else the batches before are fetched again.

    Args:
        loader: Yields batches.
        seed: Of the run.

    >>> next(PassFactory([1, 2, 3], seed=0).begin(epoch=0, batch=2, saved={"kind": "replay", "rng": None}))
    3
    """

    loader: Any
    seed: int
    _made: tuple[Indices, DataLoader[Any]] | None = field(default=None, repr=False)

    @property
    def kind(self) -> str:
        """By what a pass is taken up: "loader", "dataset", "indices" or "replay"."""
        if _keeps_state(self.loader):
            return "loader"
        dataset = getattr(self.loader, "dataset", None)
        by_index = type(self.loader) is DataLoader and not isinstance(dataset, IterableDataset)
        if _keeps_state(dataset) and (_counts_samples(dataset) or not (by_index or self._has_workers)):
            return "dataset"
        # A class of one's own may do more than fetch what its sampler says.
        return "indices" if by_index else "replay"

    @property
    def _has_workers(self) -> bool:
        """Whether the data set that changes is a copy in another process."""
        return getattr(self.loader, "num_workers", 0) > 0

    def begin(self, epoch: int, batch: int = 0, saved: Mapping[str, Any] | None = None) -> DataPass:
        """Begin a pass.

        Args:
            epoch: Which, from 0.
            batch: Number of batches of it that are done.
            saved: What :meth:`DataPass.state_dict` gave when they were; None at the beginning of a pass.

        Raises:
            ValueError: The loader is of another kind than the one that was saved.
        """
        set_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        kind = self.kind
        if saved is not None and saved["kind"] == "any":
            # Written by a version that kept no more than the number of batches.
            saved = {"kind": kind if kind == "indices" else "replay", "rng": None}
            kind = saved["kind"]
        if saved is not None and saved["kind"] != kind:
            raise ValueError(
                f"The place in the training data was saved by {_BY[saved['kind']]}, but the data given now goes by "
                f"{_BY[kind]}. Give the same kind of loader, or spin_dataloaders=False to begin the data anew."
            )
        if kind == "replay":
            return self._by_replay(batch, saved)
        owner = self.loader if kind == "loader" else self.loader.dataset
        if kind == "indices" and (self._has_workers or not _keeps_state(owner)):
            owner = None
        if saved is not None and owner is not None and "state" in saved:
            owner.load_state_dict(saved["state"])
        if saved is not None and saved.get("over"):
            return DataPass(kind, iter(()), owner=owner)
        return DataPass(
            kind, self._by_indices(epoch, batch) if kind == "indices" else iterate(self.loader), owner=owner
        )

    def _by_indices(self, epoch: int, batch: int) -> Iterator[Batch]:
        if self._made is None:
            indices = Indices(self.loader)
            self._made = indices, resumable(self.loader, indices, self.seed)
        indices, loader = self._made
        indices.seed, indices.epoch, indices.start = self.seed, epoch, batch
        return iterate(loader)

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

    >>> list(DataPass("indices", iter([1, 2])))
    [1, 2]
    """

    def __init__(
        self, kind: str, iterator: Iterator[Batch], *, owner: Any = None, start: dict[str, Any] | None = None
    ) -> None:
        self.kind = kind
        self._iterator = iterator
        self._owner = owner
        self._start = start
        # The next batch, if it had to be looked for already.
        self._held: list[Batch] = []

    def __iter__(self) -> DataPass:
        """Return itself."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch."""
        return self._held.pop() if self._held else next(self._iterator)

    def state_dict(self, sample: int = 0, *, sized: bool = True) -> dict[str, Any]:
        """Return what a later process needs to go on here.

        Args:
            sample: Number of samples of the pass that are done, for data sets that want to know.
            sized: Whether the number of batches tells where the pass ends. If not, the next batch is fetched: data that
                keep their own place do not say whether they are at the end of a pass or the beginning of one.
        """
        if self.kind == "replay":
            return {"kind": self.kind, "rng": self._start}
        if self._owner is None:
            return {"kind": self.kind}
        state = {"kind": self.kind, "state": _state_of(self._owner, sample)}
        if sized or not self._is_over():
            return state
        return {"kind": self.kind, "state": _state_of(self._owner, sample), "over": True}

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
