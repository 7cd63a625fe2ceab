"""Which sizes of a microbatch have been found to fit into memory, for each shape of batches."""

from __future__ import annotations

from torch import Tensor

from composer import trees
from composer.core.types import Batch

__all__ = ["MicrobatchSizes", "Shape", "shape_of"]

Shape = tuple[tuple[int, ...], ...]

# Clean batches until a larger size is tried; twice as many after each failure of such a try.
_PATIENCE = 64
_MOST_PATIENCE = 64 * 64


def shape_of(batch: Batch) -> Shape:
    """Return what of a batch's form decides how much memory a sample takes: all dimensions but the first.

    Args:
        batch: Any nesting of tensors.

    >>> import torch
    >>> shape_of({"x": torch.zeros(8, 3, 32, 32), "y": torch.zeros(8)})
    ((3, 32, 32), ())
    """
    return tuple(tuple(leaf.shape[1:]) for leaf in trees.leaves(batch) if isinstance(leaf, Tensor))


class MicrobatchSizes:
    """The sizes by shape: whole batches at first, half of what has failed afterwards, twice as much now and then.

    A shape that is not known yet begins with the size of one that is smaller or as large in each dimension, since what
    was too much for that one is too much for it.

    Args:
        start: The size to begin with, found in an earlier run; None is the whole batch.

    >>> sizes, shape = MicrobatchSizes(), ((3, 32, 32),)
    >>> sizes.choose(shape, samples=12)
    12
    >>> sizes.fail(shape, 12)
    >>> sizes.choose(shape, samples=12)
    6
    """

    def __init__(self, start: int | None = None) -> None:
        self._start = start
        self._limits: dict[Shape, int | None] = {}
        self._longest: dict[Shape, int] = {}
        self._clean = 0
        self._patience = _PATIENCE

    def choose(self, shape: Shape, samples: int, *, larger: bool = False) -> int:
        """Return the size for a batch; for one that is shorter than others it may be more than there are samples.

        Args:
            shape: Of the batch.
            samples: Number of samples in it.
            larger: Whether to try twice what is known to fit.
        """
        limit = self._limit(shape)
        if limit is None:
            self._longest[shape] = max(samples, self._longest.get(shape, 0))
            return self._longest[shape]
        return min(2 * limit, max(limit, samples)) if larger else limit

    def has_room(self, shape: Shape, samples: int) -> bool:
        """Tell whether there is a larger size to try.

        Args:
            shape: Of the batch.
            samples: Number of samples in it.
        """
        limit = self._limit(shape)
        return limit is not None and limit < samples

    @property
    def is_time_to_grow(self) -> bool:
        """Whether enough batches have gone well to try a larger size."""
        return self._clean >= self._patience

    def fail(self, shape: Shape, size: int, *, larger: bool = False) -> None:
        """Note that a size is too large.

        Args:
            shape: Of the batch.
            size: What was tried, at most the number of samples; 2 or more to make a difference.
            larger: Whether it was a try of a larger size, whose next is put off for longer.
        """
        limit = max(1, -(-size // 2))
        known = self._limit(shape)
        self._limits[shape] = limit if known is None else min(known, limit)
        self._clean = 0
        if larger:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)

    def hold(self, shape: Shape, size: int, *, larger: bool = False) -> None:
        """Note that a batch went well.

        Args:
            shape: Of the batch.
            size: The size it was divided into, at most the number of samples.
            larger: Whether it was a try of a larger size.
        """
        limit = self._limit(shape)
        self._limits[shape] = limit if limit is None else max(limit, size)
        self._clean = 0 if larger else self._clean + 1

    def _limit(self, shape: Shape) -> int | None:
        """The largest size that is worth using; None is any."""
        if shape in self._limits:
            return self._limits[shape]
        limits = [limit for known, limit in self._limits.items() if limit is not None and _covers(shape, known)]
        return min(limits, default=self._start)


def _covers(large: Shape, small: Shape) -> bool:
    """Whether a shape has as many dimensions as another, and none is smaller."""
    return [len(part) for part in large] == [len(part) for part in small] and all(
        a >= b for one, other in zip(large, small, strict=True) for a, b in zip(one, other, strict=True)
    )
