"""Random permutations of a dataset with random access, to shuffle and to resume at any position."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

import torch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["ExplicitOrder", "Permutation", "mix_seed"]

# torch.randperm takes a few milliseconds up to here, and about a second for ten million.
_MATERIALIZED_UP_TO = 1 << 20
_ROUNDS = 6
_MASK = (1 << 64) - 1

Numbers: TypeAlias = "npt.NDArray[np.uint64]"


class ExplicitOrder:
    """An order given as a range or a tensor, with the interface of :class:`Permutation`.

    Args:
        n: Number of entries.
        compute: Returns the order; called on first access. None for 0 ... n - 1.

    >>> ExplicitOrder(10).slice(1, 8, 3)
    [1, 4, 7]
    """

    def __init__(self, n: int, compute: Callable[[], torch.Tensor] | None = None) -> None:
        self.n = n
        self._compute_order = compute

    def slice(self, start: int, stop: int, step: int = 1) -> list[int]:
        """Return the numbers at the positions ``start``, ``start + step``, ... before ``stop``.

        Args:
            start: The first position, from 0.
            stop: The position after the last; truncated to the end.
            step: The distance between positions.
        """
        if self._compute_order is None:
            return list(range(start, min(stop, self.n), step))
        return self._order[start:stop:step].tolist()

    @functools.cached_property
    def _order(self) -> torch.Tensor:
        return cast("Callable[[], torch.Tensor]", self._compute_order)()[: self.n]


class Permutation:
    """A random order of 0 ... n - 1.

    Up to a million numbers it is :func:`torch.randperm`. Beyond, each number is computed separately: a Feistel network
    of six rounds permutes the next power of two, and numbers that are not below n are encrypted again until they are
    (cycle walking). Memory then does not grow with n, and the order can be resumed at any position immediately.

    Args:
        n: Number of entries.
        seed: The order is a function of n and this seed, from 0 to 2**63 - 1.

    >>> Permutation(5, seed=1).slice(0, 5)
    [0, 4, 2, 3, 1]
    >>> large = Permutation(10_000_000, seed=1)
    >>> large.slice(9_000_000, 9_000_003) == large.slice(8_999_999, 9_000_004)[1:4]
    True

    Papers: https://doi.org/10.1137/0217022 (Luby and Rackoff 1988), https://arxiv.org/abs/2106.06161 (Mitchell et al.
    2021)
    """

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed

    def slice(self, start: int, stop: int, step: int = 1) -> list[int]:
        """Return the numbers at the positions ``start``, ``start + step``, ... before ``stop``.

        Args:
            start: The first position, from 0.
            stop: The position after the last; truncated to the end.
            step: The distance between positions.
        """
        stop = min(stop, self.n)
        if self.n <= _MATERIALIZED_UP_TO:
            return self._materialized[start:stop:step].tolist()
        return self._compute(start, stop, step)

    @functools.cached_property
    def _materialized(self) -> torch.Tensor:
        return torch.randperm(self.n, generator=torch.Generator().manual_seed(self.seed))

    def _compute(self, start: int, stop: int, step: int) -> list[int]:
        import numpy as np

        numbers = np.arange(start, stop, step, dtype=np.uint64)
        outside = np.ones(len(numbers), dtype=bool)
        while outside.any():
            numbers[outside] = self._encrypt(numbers[outside])
            outside = numbers >= self.n
        return numbers.tolist()

    def _encrypt(self, numbers: Numbers) -> Numbers:
        """Permute the numbers with as many bits as n - 1."""
        import numpy as np

        bits = (self.n - 1).bit_length()
        low_bits, high_bits = bits // 2, bits - bits // 2
        high, low = numbers >> np.uint64(low_bits), numbers & np.uint64((1 << low_bits) - 1)
        for key in self._keys:
            # The halves swap in every round, and so do their sizes.
            mixed = _mix(low ^ np.uint64(key)) & np.uint64((1 << high_bits) - 1)
            high, low, high_bits, low_bits = low, high ^ mixed, low_bits, high_bits
        return (high << np.uint64(low_bits)) | low

    @functools.cached_property
    def _keys(self) -> list[int]:
        """The round keys, derived from the seed."""
        import numpy as np

        steps = [(self.seed + (i + 1) * 0x9E3779B97F4A7C15) & _MASK for i in range(_ROUNDS)]
        return _mix(np.array(steps, dtype=np.uint64)).tolist()


def mix_seed(seed: int, number: int) -> int:
    """Derive a seed from a seed and a number such as the epoch; different for each pair.

    Args:
        seed: From 0.
        number: From 0.

    >>> 0 <= mix_seed(1, 2) < 2**63, mix_seed(1, 2) == mix_seed(2, 1)
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest(), "little") >> 1


def _mix(numbers: Numbers) -> Numbers:
    """Hash 64-bit numbers with the finalizer of SplitMix64 (https://doi.org/10.1145/2660193.2660195)."""
    import numpy as np

    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
