"""An iterator over the rest of an epoch's batches that a checkpoint can resume, and that can yield a batch again."""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from composer import rng
from composer.core.first_batch_rng import FirstBatchRNG
from composer.core.types import Batch

__all__ = ["EpochIterator", "counts_samples"]

_log = logging.getLogger(__name__)


class EpochIterator:
    """The rest of a pass: an iterator over batches that knows how to be taken up.

    Args:
        kind: See :class:`EpochIterators`.
        iterator: Yields the batches.
        owner: The loader or data set that keeps its place.
        start: The state of the random generators at the beginning.
        place: Number of entries of the order of indices that were done before.
        step: Number of them that each step takes.
        length: Number of batches of the whole pass, where it is another than usual.

    >>> list(EpochIterator("indices", iter([1, 2])))
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
        self._iterator = self._source = iterator
        self._owner = owner
        self.start = start
        self._place, self._step = place, step
        # The next batch, if it had to be looked for already.
        self._held: list[Batch] = []
        # The owner's state before that, where it is known.
        self._before: Any = None

    def __iter__(self) -> EpochIterator:
        """Return itself."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch."""
        batch = self._held.pop() if self._held else next(self._iterator)
        self._place += self._step
        return batch

    @property
    def source(self) -> Iterator[Batch]:
        """The iterator that batches are fetched from, whatever watches the first one."""
        return self._source

    @property
    def has_owner(self) -> bool:
        """Whether the loader or the data set keeps its own place."""
        return self._owner is not None

    def note_first(self, first: FirstBatchRNG, loader: Any) -> None:
        """Watch the first batch, which has not been fetched.

        Args:
            first: Notes whether random numbers are drawn for it.
            loader: Where the batches come from.
        """
        self._iterator = first.noting(loader, self._iterator)

    def step_back(self, steps: int) -> int:
        """Go back by a number of steps in the order of indices; return the place there.

        Args:
            steps: Number of steps.
        """
        self._place -= steps * self._step
        return self._place

    def hold(self, batch: Batch) -> None:
        """Yield a batch again.

        Args:
            batch: The last that was yielded.
        """
        self._held, self._before = [batch], None
        self._place -= self._step

    def begin_later(self, begin: Callable[[], Iterator[Batch]]) -> None:
        """Yield other batches from now on.

        Args:
            begin: Returns their iterator; called when the next one is wanted, and no random number is drawn by it.
        """
        self._held = []
        self._iterator = self._source = _Later(begin)

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
            return {"kind": self.kind, "rng": self.start}
        place = {"kind": self.kind, "place": self._place} if self.kind == "indices" else {"kind": self.kind}
        if self._owner is None:
            return place
        state = {**place, "state": self._state(sample)}
        if sized or not self._is_over(state["state"]):
            return state
        return {**place, "state": self._state(sample), "over": True}

    def _state(self, sample: int) -> Any:
        """The state of the owner before the batch that is held, if one is."""
        if counts_samples(self._owner):
            return self._owner.state_dict(sample, True)
        if not self._held:
            return self._owner.state_dict()
        if self._before is None:
            _log.warning(
                "The place in the training data is saved after a batch that an exception kept from being trained: %s "
                "does not tell where it was before. A run that resumes from here leaves that batch out.",
                type(self._owner).__name__,
            )
            return self._owner.state_dict()
        return self._before

    def _is_over(self, before: Any = None) -> bool:
        if not self._held:
            self._held, self._before = list(itertools.islice(self._iterator, 1)), before
        return not self._held


class _Later:
    """The batches of an iterator that is made when the first is wanted: to make it may start workers."""

    def __init__(self, begin: Callable[[], Iterator[Batch]]) -> None:
        self._begin = begin
        self._iterator: Iterator[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._iterator is None:
            with rng.preserve_rng_state():
                self._iterator = self._begin()
        return next(self._iterator)


def counts_samples(dataset: Any) -> bool:
    """Tell whether ``state_dict`` takes a number of samples and where it counts from, as that of streaming does.

    Args:
        dataset: Has a method ``state_dict``.

    >>> from types import SimpleNamespace
    >>> counts_samples(SimpleNamespace(state_dict=lambda num_samples, from_beginning: {}))
    True
    """
    parameters = inspect.signature(dataset.state_dict).parameters.values()
    return sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters) == 2
