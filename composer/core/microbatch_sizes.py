"""Microbatch size cache: the sizes that fit into memory by batch shape; halved after OOM, doubled from time to time."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from torch import Tensor

from composer import trees
from composer.core.types import Batch

__all__ = ["TRAIN_SIZES", "MicrobatchSizes", "Plan", "Shape", "eval_sizes", "halved", "shape_of"]

Shape = tuple[tuple[int, ...], ...]

TRAIN_SIZES: Final = "train"
"""The name of the sizes of training in ``state.microbatch_sizes``."""

# Batches without OOM until a larger size is tried; doubled after each failed try.
_PATIENCE = 64
_MOST_PATIENCE = 64 * 64

_shape_of = attrgetter("shape")


def shape_of(batch: Batch) -> Shape:
    """Return the shapes of a batch that determine the memory of a sample: all dimensions but the first.

    Args:
        batch: Any nesting of tensors.

    >>> import torch
    >>> shape_of({"x": torch.zeros(8, 3, 32, 32), "y": torch.zeros(8)})
    ((3, 32, 32), ())
    """
    shapes = _shapes(batch)
    if shapes is not None:
        return tuple([tuple(each[1:]) for each in shapes])
    return tuple(tuple(leaf.shape[1:]) for leaf in trees.leaves(batch) if isinstance(leaf, Tensor))


def halved(size: int) -> int:
    """Return the size that is tried after a failed one, at least 1.

    Args:
        size: The number of samples that failed.

    >>> halved(11)
    6
    """
    return max(1, -(-size // 2))


def eval_sizes(label: str) -> str:
    """Return the name of the sizes of an evaluator in ``state.microbatch_sizes``.

    Args:
        label: Label of the evaluator.

    >>> eval_sizes("test")
    'eval/test'
    """
    return f"eval/{label}"


class Plan(NamedTuple):
    """How to split a batch.

    Args:
        shape: Shape of the batch, from :func:`shape_of`.
        size: The microbatch size; it may exceed the number of samples.
        has_room: Whether a larger size remains to be tried.

    >>> Plan(((3, 32, 32),), size=16, has_room=True).size
    16
    """

    shape: Shape
    size: int
    has_room: bool


class MicrobatchSizes:
    """Microbatch sizes by batch shape: the full batch at first, half the size after OOM, twice the size occasionally.

    A new shape starts with the size of a known shape that is not larger in any dimension, since a size that was too
    large for that shape is too large for the new one.

    Checkpoints contain them, so that a resumed run splits its batches as the uninterrupted one.

    Args:
        start: The initial size, found in an earlier run; None is the full batch.

    Attributes:
        room_left: Whether any rank had a larger size left to try in the last batch.

    >>> sizes, shape = MicrobatchSizes(), ((3, 32, 32),)
    >>> sizes.choose(shape, samples=12)
    12
    >>> sizes.fail(shape, 12)
    >>> sizes.choose(shape, samples=12)
    6
    """

    def __init__(self, start: int | None = None) -> None:
        self.room_left = False
        self._start = start
        self._limits: dict[Shape, int | None] = {}
        self._largest_batch: dict[Shape, int] = {}
        # By the shapes of all tensors and the number of samples; cleared whenever anything above changes.
        self._plans: dict[tuple[tuple[Sequence[int], ...], int], Plan] = {}
        self._clean = 0
        self._patience = _PATIENCE

    def plan(self, batch: Batch, samples: int) -> Plan:
        """Return the size for a batch; for one like an earlier batch that succeeded, it is only looked up.

        Args:
            batch: The batch.
            samples: Number of samples in the batch.

        >>> import torch
        >>> MicrobatchSizes(start=4).plan(torch.zeros(12, 2), 12)
        Plan(shape=((2,),), size=4, has_room=True)
        """
        shapes = _shapes(batch)
        plan = None if shapes is None else self._plans.get((shapes, samples))
        if plan is None:
            shape = shape_of(batch)
            plan = Plan(shape, self.choose(shape, samples), self.has_room(shape, samples))
            if shapes is not None and shape in self._limits:
                self._plans[shapes, samples] = plan
        return plan

    def choose(self, shape: Shape, samples: int, *, larger: bool = False) -> int:
        """Return the size for a batch; it may exceed the number of samples if other batches are larger.

        Args:
            shape: Shape of the batch.
            samples: Number of samples in the batch.
            larger: Whether to try twice the size that is known to fit.
        """
        limit = self._limit(shape)
        if limit is None:
            largest = self._largest_batch.get(shape, 0)
            if samples > largest:
                self._largest_batch[shape] = largest = samples
                self._plans.clear()
            return largest
        return min(2 * limit, max(limit, samples)) if larger else limit

    def has_room(self, shape: Shape, samples: int) -> bool:
        """Return whether a larger size remains to be tried.

        Args:
            shape: Shape of the batch.
            samples: Number of samples in the batch.
        """
        limit = self._limit(shape)
        return limit is not None and limit < samples

    def begin(self, shape: Shape, size: int) -> None:
        """Begin with a size other than the full batch.

        Args:
            shape: Shape of the batch.
            size: The size.
        """
        self._set_limit(shape, size)

    @property
    def is_time_to_grow(self) -> bool:
        """Whether enough batches have succeeded to try a larger size."""
        return self._clean >= self._patience

    def fail(self, shape: Shape, size: int, *, larger: bool = False) -> None:
        """Record that a size is too large.

        Args:
            shape: Shape of the batch.
            size: The size that failed, at most the number of samples; 1 cannot be halved.
            larger: Whether it was a try of a larger size; the next try is then delayed for longer.
        """
        limit = halved(size)
        known = self._limit(shape)
        self._set_limit(shape, limit if known is None else min(known, limit))
        self._clean = 0
        if larger:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)

    def succeed(self, shape: Shape, size: int, *, larger: bool = False) -> None:
        """Record that a batch succeeded.

        Args:
            shape: Shape of the batch.
            size: The microbatch size, at most the number of samples.
            larger: Whether it was a try of a larger size.
        """
        is_known = shape in self._limits
        limit = self._limits[shape] if is_known else self._limit(shape)
        if not is_known or (limit is not None and limit < size):
            self._set_limit(shape, limit if limit is None else max(limit, size))
        self._clean = 0 if larger else self._clean + 1

    def state_dict(self) -> dict[str, Any]:
        """Return what is known, as numbers and lists.

        >>> MicrobatchSizes(start=4).state_dict()["start"]
        4
        """
        return {
            "start": self._start,
            "limits": [[_as_lists(shape), limit] for shape, limit in self._limits.items()],
            "largest_batches": [[_as_lists(shape), samples] for shape, samples in self._largest_batch.items()],
            "room_left": self.room_left,
            "clean": self._clean,
            "patience": self._patience,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with what another cache knew.

        Args:
            state: What :meth:`state_dict` returned.

        >>> sizes, other = MicrobatchSizes(), MicrobatchSizes(start=4)
        >>> sizes.load_state_dict(other.state_dict())
        >>> sizes.choose(((3, 32, 32),), samples=12)
        4
        """
        self._start, self.room_left = state["start"], state["room_left"]
        self._limits = {_as_shape(shape): limit for shape, limit in state["limits"]}
        self._largest_batch = {_as_shape(shape): samples for shape, samples in state["largest_batches"]}
        self._clean, self._patience = state["clean"], state["patience"]
        self._plans.clear()

    def _set_limit(self, shape: Shape, limit: int | None) -> None:
        """Record the largest size to use; it may be that of other shapes too."""
        self._limits[shape] = limit
        self._plans.clear()

    def _limit(self, shape: Shape) -> int | None:
        """Return the largest size to use; None is unlimited."""
        if shape in self._limits:
            return self._limits[shape]
        limits = [limit for known, limit in self._limits.items() if limit is not None and _covers(shape, known)]
        return min(limits, default=self._start)


def _as_lists(shape: Shape) -> list[list[int]]:
    """Return a shape as a checkpoint contains it."""
    return [list(part) for part in shape]


def _as_shape(saved: Sequence[Sequence[int]]) -> Shape:
    """Return a shape from a checkpoint."""
    return tuple(tuple(part) for part in saved)


def _shapes(batch: Batch) -> tuple[Sequence[int], ...] | None:
    """Return the shapes of a flat batch of tensors, None for any other, whose shapes take longer to find."""
    cls, tensors = type(batch), batch
    if cls is dict:
        tensors = batch.values()
    elif cls is not tuple and cls is not list:
        return None
    for each in tensors:
        if type(each) is not Tensor:
            return None
    return tuple(map(_shape_of, tensors))


def _covers(large: Shape, small: Shape) -> bool:
    """Return whether a shape has the same dimensions as another, and none is smaller."""
    return [len(part) for part in large] == [len(part) for part in small] and all(
        a >= b for one, other in zip(large, small, strict=True) for a, b in zip(one, other, strict=True)
    )
