"""Random orders of a data set, of which any part can be had without the parts before it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

import torch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Listed", "Permutation", "mix_seed"]

# torch.randperm takes a few milliseconds up to here, and about a second for ten million.
_WHOLE = 1 << 20
_ROUNDS = 6
_MASK = (1 << 64) - 1

Numbers: TypeAlias = "npt.NDArray[np.uint64]"


class Listed:
    """An order that is known as a whole, with parts as of a :class:`Permutation`.

    Args:
        n: How many numbers.
        draw: Returns them, when a part is asked for; None for 0 ... n - 1.

    >>> Listed(10).part(1, 8, 3)
    [1, 4, 7]
    """

    def __init__(self, n: int, draw: Callable[[], torch.Tensor] | None = None) -> None:
        self.n = n
        self._draw = draw

    def part(self, start: int, stop: int, step: int = 1) -> list[int]:
        """Return the numbers at the places from ``start`` to before ``stop``.

        Args:
            start: The first place, from 0.
            stop: The place after the last; the end where it is greater.
            step: From one place to the next.
        """
        if self._draw is None:
            return list(range(start, min(stop, self.n), step))
        return self._drawn[start:stop:step].tolist()

    @functools.cached_property
    def _drawn(self) -> torch.Tensor:
        return cast("Callable[[], torch.Tensor]", self._draw)()[: self.n]


class Permutation:
    """A random order of 0 ... n - 1.

    Up to a million numbers it is :func:`torch.randperm`. Beyond, it is computed number by number: a Feistel network of
    six rounds is a permutation of the next power of two, in which numbers that are not below n are put in again until
    they are. The memory does not grow with n then, and the order can be taken up anywhere in no time.

    Args:
        n: How many numbers.
        seed: The order is a function of n and this number, from 0 to 2**63 - 1.

    >>> Permutation(5, seed=1).part(0, 5)
    [0, 4, 2, 3, 1]
    >>> large = Permutation(10_000_000, seed=1)
    >>> large.part(9_000_000, 9_000_003) == large.part(8_999_999, 9_000_004)[1:4]
    True

    Papers: https://doi.org/10.1137/0217022 (Luby and Rackoff 1988), https://arxiv.org/abs/2106.06161 (Mitchell et al.
    2021)
    """

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed

    def part(self, start: int, stop: int, step: int = 1) -> list[int]:
        """Return the numbers at the places from ``start`` to before ``stop``.

        Args:
            start: The first place, from 0.
            stop: The place after the last; the end where it is greater.
            step: From one place to the next.
        """
        stop = min(stop, self.n)
        if self.n <= _WHOLE:
            return self._whole[start:stop:step].tolist()
        return self._compute(start, stop, step)

    @functools.cached_property
    def _whole(self) -> torch.Tensor:
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
        """A permutation of the numbers of as many bits as n - 1 has."""
        import numpy as np

        bits = (self.n - 1).bit_length()
        low_bits, high_bits = bits // 2, bits - bits // 2
        high, low = numbers >> np.uint64(low_bits), numbers & np.uint64((1 << low_bits) - 1)
        for key in self._keys:
            # The halves swap with every round, and so do their sizes.
            mixed = _mix(low ^ np.uint64(key)) & np.uint64((1 << high_bits) - 1)
            high, low, high_bits, low_bits = low, high ^ mixed, low_bits, high_bits
        return (high << np.uint64(low_bits)) | low

    @functools.cached_property
    def _keys(self) -> list[int]:
        """A number for each round, from the seed."""
        import numpy as np

        steps = [(self.seed + (i + 1) * 0x9E3779B97F4A7C15) & _MASK for i in range(_ROUNDS)]
        return _mix(np.array(steps, dtype=np.uint64)).tolist()


def mix_seed(seed: int, number: int) -> int:
    """Return a seed made of a seed and the number of what it is for, such as the epoch; different for each pair.

    Args:
        seed: From 0.
        number: From 0.

    >>> 0 <= mix_seed(1, 2) < 2**63, mix_seed(1, 2) == mix_seed(2, 1)
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest(), "little") >> 1


def _mix(numbers: Numbers) -> Numbers:
    """Scatter 64-bit numbers: the finaliser of SplitMix64 (https://doi.org/10.1145/2660193.2660195)."""
    import numpy as np

    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
