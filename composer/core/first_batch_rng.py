"""Record and replay the random state before the first batch, to resume data that is sampled lazily and kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from composer import rng

if TYPE_CHECKING:
    from composer.core.types import Batch

__all__ = ["FirstBatchRNG", "are_same"]


class FirstBatchRNG:
    """Records the random state before the first batch if fetching it samples values, and replays that after a resume.

    A dataset may create all of its values at the first access, from the random generators of the process. In a resumed
    run, the first access would use the random state of the checkpoint instead, and training would see other data.

    >>> first = FirstBatchRNG()
    >>> batches = list(first.record([], (torch.rand(1) for _ in range(2))))
    >>> later = FirstBatchRNG()
    >>> later.load(first.state)
    >>> made = []
    >>> later.repeat([], lambda: (made.append(torch.rand(1)) for _ in range(2)))
    >>> made == batches[:1]
    True
    """

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None
        self._loader: Any = None
        self._is_loaded = False

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Load the state that an earlier process recorded.

        Args:
            state: The :attr:`state` of that process.
        """
        self.state, self._loader, self._is_loaded = None if state is None else dict(state), None, state is not None

    def state_for(self, loader: Any) -> dict[str, Any] | None:
        """Return the random state before the first batch of a loader, if that was recorded or repeated.

        Args:
            loader: The loader.
        """
        return self.state if self._loader is loader else None

    def record(self, loader: Any, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the batches; if they are the first of a loader, record the random state before the first batch.

        Args:
            loader: The loader of the batches.
            batches: An iterator at its beginning.
        """
        if self._loader is loader:
            return batches
        self.state, self._loader, self._is_loaded = None, loader, False
        return itertools.chain(self._first(batches), batches)

    def repeat(self, loader: Any, begin: Callable[[], Iterator[Batch]]) -> None:
        """Fetch the first batch once as the earlier process did; the random state is restored afterwards.

        Args:
            loader: The loader of the batches.
            begin: Creates an iterator over the batches.
        """
        if not self._is_loaded or self.state is None:
            return
        self._is_loaded, self._loader = False, loader
        with rng.preserve_rng_state():
            batches = begin()
            rng.set_local_rng_state(self.state)
            next(batches, None)

    def _first(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        before = rng.get_local_rng_state()
        for batch in itertools.islice(batches, 1):
            if not are_same(before, rng.get_local_rng_state()):
                self.state = before
            yield batch


def are_same(one: Any, other: Any) -> bool:
    """Return whether two random states are equal.

    Args:
        one: From :func:`.get_local_rng_state`, or a value in it.
        other: Likewise.

    >>> before = rng.get_local_rng_state()
    >>> are_same(before, rng.get_local_rng_state())
    True
    >>> _ = torch.rand(1)
    >>> are_same(before, rng.get_local_rng_state())
    False
    """
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return all(are_same(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        return all(map(are_same, one, other))
    return one == other
