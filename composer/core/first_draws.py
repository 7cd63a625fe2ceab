"""Random state before the first batch of a data set: data that sample values lazily and keep them resume exactly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from composer import rng

if TYPE_CHECKING:
    from composer.core.types import Batch

__all__ = ["FirstDraws"]


class FirstDraws:
    """Notes the generators' states before the first batch is fetched, if that draws; in another process draws again.

    A data set may make all of its values when it is first asked for one, from the generators of the process. A run that
    is resumed asks first with the generators of the checkpoint, which are elsewhere, and would train on other data.

    >>> first = FirstDraws()
    >>> batches = list(first.noting([], (torch.rand(1) for _ in range(2))))
    >>> later = FirstDraws()
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
        """Take over what another process noted.

        Args:
            state: Its :attr:`state`.
        """
        self.state, self._loader, self._is_loaded = None if state is None else dict(state), None, state is not None

    def noting(self, loader: Any, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the batches, of which the first is watched if it is the first of a loader.

        Args:
            loader: Where they come from.
            batches: A pass that begins.
        """
        if self._loader is loader:
            return batches
        self.state, self._loader, self._is_loaded = None, loader, False
        return itertools.chain(self._first(batches), batches)

    def repeat(self, loader: Any, begin: Callable[[], Iterator[Batch]]) -> None:
        """Fetch the first batch as the other process did, once; the generators are put back afterwards.

        Args:
            loader: Where the batches come from.
            begin: Begins a pass.
        """
        if not self._is_loaded or self.state is None:
            return
        self._is_loaded, self._loader = False, loader
        with rng.preserved():
            batches = begin()
            rng.set_local_rng_state(self.state)
            next(batches, None)

    def _first(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        before = rng.get_local_rng_state()
        for batch in itertools.islice(batches, 1):
            if not _are_same(before, rng.get_local_rng_state()):
                self.state = before
            yield batch


def _are_same(one: Any, other: Any) -> bool:
    """Whether two states of the generators are equal."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return all(_are_same(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        return all(map(_are_same, one, other))
    return one == other
