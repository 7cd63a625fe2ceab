"""An iterator over the remaining batches of an epoch that a checkpoint can resume, and that can repeat a batch."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from composer import rng
from composer.core.first_batch_rng import FirstBatchRNG, are_same
from composer.core.types import Batch

__all__ = ["EpochIterator", "counts_samples", "has_state_dict", "state_of"]

_log = logging.getLogger(__name__)


class EpochIterator:
    """An iterator over the remaining batches of an epoch, with a position that can be saved and resumed.

    Args:
        resume_by: How the epoch is resumed: "loader", "dataset", "indices" or "replay", see :class:`.EpochIterators`.
        iterator: Yields the batches.
        stateful: The loader or dataset that saves its position in a ``state_dict``, if any.
        start: The random state at the beginning of the epoch.
        position: Number of entries of the sample order that were consumed before.
        step: Number of entries that each step consumes.
        length: Number of batches in the full epoch, if it differs from the usual number.
        fetched: Whether batches of the epoch were fetched from the data before.
        ended: Whether the data had ended before.
        restart: Loads a state of the data, and returns an iterator from there; None if this may not be exact.

    >>> list(EpochIterator("indices", iter([1, 2])))
    [1, 2]
    """

    def __init__(
        self,
        resume_by: str,
        iterator: Iterator[Batch],
        *,
        stateful: Any = None,
        start: dict[str, Any] | None = None,
        position: int = 0,
        step: int = 1,
        length: int | None = None,
        fetched: bool = False,
        ended: bool = False,
        restart: Callable[[Any], Iterator[Batch]] | None = None,
    ) -> None:
        self.resume_by = resume_by
        self.length = length
        self._fetched, self._ended = fetched, ended
        self._iterator = self._source = iterator
        self._stateful: Any = stateful
        self._restart = restart
        self.start = start
        self._position, self._step = position, step
        # Batches to yield again, last to first; those after them come from what was fetched ahead, or the iterator.
        self._again: list[Batch] = []
        self._ahead: _Ahead | None = None
        self._held: dict[str, Any] | None = None

    def __iter__(self) -> EpochIterator:
        """Return itself."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch."""
        self._fetched = True
        if self._again:
            batch = self._again.pop()
        elif self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            batch = self._fetch_again(ahead) if self._restart is not None and ahead.is_outdated else ahead.take()
        else:
            try:
                batch = next(self._iterator)
            except StopIteration:
                self._ended = True
                raise
        self._position += self._step
        return batch

    def _fetch_again(self, ahead: _Ahead) -> Batch:
        """Fetch the batch that was fetched ahead with the random numbers that training has reached."""
        assert self._restart is not None
        self._iterator = self._source = iter(())  # the old one shares the data, and must not change them later
        with rng.preserve_rng_state():
            self._iterator = self._source = self._restart(ahead.state)
        return next(self._iterator)

    def position_before(self, batches: int = 1) -> int | None:
        """Return the number of entries of the sample order before the last batches; None if there were none.

        Args:
            batches: Number of these batches.
        """
        return self._position - batches * self._step if batches and self._position else None

    @property
    def step(self) -> int:
        """Number of entries of the sample order that each step consumes, on all ranks together."""
        return self._step

    @property
    def source(self) -> Iterator[Batch]:
        """The underlying iterator, without a wrapper that records the random state of the first batch."""
        return self._source

    @property
    def has_state_dict(self) -> bool:
        """Whether the loader or the dataset saves its position in a ``state_dict``."""
        return self._stateful is not None

    @property
    def stateful_name(self) -> str:
        """Class name of the loader or dataset that saves its position."""
        return type(self._stateful).__name__

    @property
    def can_step_back(self) -> bool:
        """Whether the position before the last batches, which were yielded, can still be determined."""
        if self.resume_by in ("indices", "replay"):
            return True
        return hasattr(self._stateful, "__state_before__") or counts_samples(self._stateful)

    def watch_first(self, first: FirstBatchRNG, loader: Any) -> None:
        """Record the random state before the first batch, which has not been fetched yet.

        Args:
            first: Records the random state if fetching the batch samples values.
            loader: The loader of the batches.
        """
        self._iterator = first.record(loader, self._iterator)

    def step_back(self, steps: int) -> int:
        """Move back by a number of steps in the sample order; return the new position.

        Args:
            steps: Number of steps.
        """
        self._position -= steps * self._step
        return self._position

    def push_back(self, batches: Sequence[Batch]) -> None:
        """Yield batches again.

        Args:
            batches: The last yielded batches.
        """
        self._again += reversed(batches)
        self._position -= len(batches) * self._step

    def continue_with(self, begin: Callable[[], Iterator[Batch]]) -> None:
        """Yield the batches of another iterator from now on.

        Args:
            begin: Creates that iterator; called with the next request, with the random state preserved.
        """
        self._again, self._ahead = [], None
        self._iterator = self._source = _LazyIterator(begin)

    def hold(self, sample: int, *, uncounted: int = 0, sized: bool = True) -> tuple[dict[str, Any], int]:
        """Fetch nothing until :meth:`continue_at`, so that other code can iterate over the same stateful data.

        Return the position, as :meth:`state_dict` does, and the number of batches that were fetched after it: batches
        that were fetched and not yielded yet are kept.

        Args:
            sample: As for :meth:`state_dict`.
            uncounted: Number of yielded batches that ``sample`` does not count.
            sized: As for :meth:`state_dict`.
        """
        is_counting = counts_samples(self._stateful)
        if is_counting:
            state = self._stateful.state_dict(sample, True)
        elif self._ahead is not None and self._ahead.batches:
            state = self._ahead.state
        else:
            state = copy.deepcopy(state_of(self._stateful))
        sized = sized or getattr(self._stateful, "__state_has_end__", False)
        position = {"kind": self.resume_by, "state": state}
        if self._ended or (not sized and self._is_over(state)):
            # The end of the data was only found now: their state there is that of the next epoch.
            end = state if is_counting else copy.deepcopy(state_of(self._stateful))
            position |= {"state": end, "over": True}
        fetched = int(self._ahead is not None and bool(self._ahead.batches))
        if is_counting:
            fetched += uncounted + len(self._again)
        self._iterator = self._source = iter(())  # the old one shares the data, and must not change them later
        self._held = position
        return position, fetched

    def continue_at(self, source: Iterator[Batch], fetched: int) -> None:
        """Continue with an iterator at the position that :meth:`hold` returned.

        Args:
            source: The iterator.
            fetched: Number of its first batches to leave out, which were fetched before.
        """
        for _ in itertools.islice(source, fetched):
            pass
        self._iterator = self._source = source
        self._held = None

    @contextlib.contextmanager
    def state_kept(self) -> Generator[None]:
        """Return the current state of the data in :meth:`state_dict` meanwhile, while other code changes it."""
        stateful = self._stateful
        if stateful is not None:
            self._stateful = _KeptState(copy.deepcopy(state_of(stateful)))
        try:
            yield
        finally:
            self._stateful = stateful

    def stop(self) -> None:
        """Fetch no more batches, and release the workers."""
        self._iterator = iter(())

    def state_dict(self, sample: int = 0, *, uncounted: int = 0, sized: bool = True) -> dict[str, Any]:
        """Return the position, from which a later process can resume.

        Args:
            sample: Number of samples of the epoch that are done, for datasets that require it.
            uncounted: Number of yielded batches that are not done. The position is before them, unless the data cannot
                step back.
            sized: Whether the number of batches determines where the epoch ends. If not, the next batch is fetched,
                unless the data has ``__state_has_end__``: another ``state_dict`` does not distinguish the end of an
                epoch from the beginning of the next. The random numbers that this uses are taken from the generators
                when the batch is yielded. If others were taken in the meantime, the batch is fetched again from the
                state before it, where that is exact.
        """
        if self.resume_by == "replay":
            # Before the first batch, the random numbers of fetching it are still to be used.
            return {"kind": self.resume_by, "rng": self.start, **({} if self._fetched else {"fetched": False})}
        position = (
            {"kind": self.resume_by, "place": self._position - uncounted * self._step}
            if self.resume_by == "indices"
            else {"kind": self.resume_by}
        )
        if self._stateful is None:
            return position
        if self._held is not None:  # other code iterates over the data
            return self._held
        state = {**position, "state": self._state(sample, uncounted)}
        # Once that data has ended, while other ranks still have batches, its state is that of the next epoch.
        sized = sized or (not self._ended and getattr(self._stateful, "__state_has_end__", False))
        if sized or (uncounted and self.can_step_back):
            return state
        state["state"] = copy.deepcopy(state["state"])  # the data may change this object when a batch is fetched
        if not self._is_over(state["state"]):
            return state
        return {**position, "state": self._state(sample, uncounted), "over": True}

    def _state(self, sample: int, uncounted: int) -> Any:
        """Return the state of the loader or dataset, before the batch that was fetched ahead, if any."""
        if counts_samples(self._stateful):
            return self._stateful.state_dict(sample, True)
        is_ahead = self._ahead is not None and bool(self._ahead.batches)
        behind = uncounted + len(self._again) + is_ahead
        if behind and hasattr(self._stateful, "__state_before__"):
            return self._stateful.__state_before__(behind)
        if self._again:
            _log.warning(
                "The saved position in the training data is after a batch that was not trained because of an "
                "exception: the earlier position of %s is unknown. A run that resumes from here skips that batch.",
                type(self._stateful).__name__,
            )
        return self._ahead.state if self._ahead is not None and is_ahead else state_of(self._stateful)

    def _is_over(self, before: Any = None) -> bool:
        if self._again:
            return False
        if self._ahead is None:
            self._ahead = _Ahead.fetch(self._iterator, before)
        return not self._ahead.batches


@dataclass(frozen=True)
class _Ahead:
    """The next batch, fetched ahead, with the random state that training would have left before and after it.

    Attributes:
        batches: The batch; empty at the end of the data.
        state: The state of the loader or dataset before that batch.
        before: The random state before it; None if fetching used no random numbers.
        after: The random state after it.
    """

    batches: list[Batch]
    state: Any
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None

    @classmethod
    def fetch(cls, iterator: Iterator[Batch], state: Any) -> _Ahead:
        """Fetch the next batch, and restore the random state."""
        before = rng.get_local_rng_state()
        batches, after = list(itertools.islice(iterator, 1)), rng.get_local_rng_state()
        if are_same(before, after):
            return cls(batches, state)
        rng.set_local_rng_state(before)
        return cls(batches, state, before, after)

    @property
    def is_outdated(self) -> bool:
        """Whether the batch used random numbers other than those that it would use now."""
        is_random = bool(self.batches) and self.state is not None and self.after is not None
        return is_random and not are_same(self.before, rng.get_local_rng_state())

    def take(self) -> Batch:
        """Return the batch, and use the random numbers of fetching it, unless others were used in the meantime."""
        if self.after is not None and are_same(self.before, rng.get_local_rng_state()):
            rng.set_local_rng_state(self.after)
        if not self.batches:
            raise StopIteration
        return self.batches[0]


@dataclass(frozen=True)
class _KeptState:
    """Stands in for data whose state other code changes."""

    state: Any

    def state_dict(self) -> Any:
        return self.state


class _LazyIterator:
    """An iterator that is created with the first request, since creating it may start workers."""

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
    """Return whether ``state_dict`` takes ``(num_samples, from_beginning)``, as streaming datasets do.

    Args:
        dataset: An object with a method ``state_dict``.

    >>> from types import SimpleNamespace
    >>> counts_samples(SimpleNamespace(state_dict=lambda num_samples, from_beginning: {}))
    True
    """
    parameters = inspect.signature(dataset.state_dict).parameters.values()
    return sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters) == 2


def has_state_dict(stateful: Any) -> bool:
    """Return whether a loader or dataset has a state that can be saved and loaded.

    Args:
        stateful: The loader or dataset.

    >>> has_state_dict(torch.nn.Linear(1, 1)), has_state_dict([1, 2])
    (True, False)
    """
    return callable(getattr(stateful, "state_dict", None)) and callable(getattr(stateful, "load_state_dict", None))


def state_of(stateful: Any) -> Any:
    """Return the state of a loader or dataset on this rank, without communication if the loader provides for that.

    Ranks ask for it at different times: once more, for example, where data have ended.

    Args:
        stateful: The loader or dataset.

    >>> from types import SimpleNamespace
    >>> state_of(SimpleNamespace(state_dict=lambda: {"epoch": 1}))
    {'epoch': 1}
    """
    return getattr(stateful, "__state_of_rank__", stateful.state_dict)()
