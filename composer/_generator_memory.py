"""Copy the states of the global random generators of Python, NumPy and PyTorch as bytes, all in one call.

``random.getstate()`` makes 625 Python integers, ``numpy.random.get_state()`` fills an array one item at a time, and
``torch.get_rng_state()`` allocates a tensor, which takes 12, 44 and, between training steps, 6 us; most copies are
never read. Here the state is copied from the memory of the generator, and converted to what ``setstate`` takes only to
restore it. Where that memory lies is compared with what the generators say of themselves once for each generator; if it
does not agree, as in another implementation of Python, the slow way is taken.
"""

from __future__ import annotations

import ctypes
import functools
import random
import struct
from collections.abc import Callable
from typing import Any

import torch

from composer._raw_memory import memory_at

__all__ = ["GeneratorStates"]

_WORDS = 624  # of the Mersenne Twister, which all use
_PYTHON = struct.Struct(f"=i{_WORDS}I")  # position, words
_NUMPY = struct.Struct(f"={_WORDS}Ii")  # words, position
# Whether NumPy keeps the second number of a pair of normal ones, and that number.
_PAIR = struct.Struct("=i4xd")
# Seed, number of words left, whether it is seeded, position, words, then the second number of a pair of normal ones and
# whether it is kept, in single and in double precision.
_TORCH = struct.Struct(f"=Qi?3xI{_WORDS}I4xf?3xd?7x")
# What torch.Generator.get_state() returns: the same without the single, two numbers that are not used, the single.
_TORCH_STATE = struct.Struct(f"=QiiQ{_WORDS}Q8xd8xi4xf?3x")
_LARGEST_OFFSET = 256  # in bytes, of the state in a generator of PyTorch
_join = b"".join


class GeneratorStates:
    """The states of the global random generators of the CPU at the time of creation.

    Args:
        numpy: The module, or None if it is not installed.

    >>> states = GeneratorStates(None)
    >>> first = random.random(), torch.rand(1)
    >>> random.setstate(states.python())
    >>> _ = torch.set_rng_state(states.torch())
    >>> (random.random(), torch.rand(1)) == first
    True
    """

    __slots__ = (
        "_bit_generator",
        "_copied",
        "_gauss",
        "_generator",
        "_get_bit_generator",
        "_getstate",
        "_memory",
        "_numpy",
        "_offsets",
        "_others",
        "_others_copied",
        "_torch",
    )

    def __init__(self, numpy: Any) -> None:
        self._numpy, self._torch = numpy, torch.default_generator
        self._get_bit_generator: Any = _nothing if numpy is None else numpy.random.get_bit_generator
        self._find()
        self.save()

    def save(self) -> None:
        """Copy the present states, in place of the earlier ones."""
        if random.getstate is not self._getstate or self._get_bit_generator() is not self._bit_generator:
            self._find()
        # One call for all: after a training step, calls cost more than what they copy.
        self._copied = _join(self._memory)
        if self._generator is not None:
            self._gauss = self._generator.gauss_next
        if self._others:
            self._others_copied = {name: get() for name, get in self._others.items()}

    def python(self) -> tuple[Any, ...]:
        """Return what ``random.setstate`` takes."""
        if "python" in self._others:
            return self._others_copied["python"]
        position, *words = _PYTHON.unpack_from(self._copied, self._offsets["python"])
        return random.Random.VERSION, (*words, position), self._gauss

    def numpy(self) -> tuple[Any, ...] | dict[str, Any]:
        """Return what ``numpy.random.set_state`` takes."""
        if "numpy" in self._others:
            return self._others_copied["numpy"]
        *words, position = _NUMPY.unpack_from(self._copied, self._offsets["numpy"])
        pair = _PAIR.unpack_from(self._copied, self._offsets["numpy"] + _NUMPY.size)
        return "MT19937", self._numpy.array(words, dtype=self._numpy.uint32), position, *pair

    def torch(self) -> torch.Tensor:
        """Return what ``torch.set_rng_state`` takes."""
        if "torch" in self._others:
            return self._others_copied["torch"]
        return _as_tensor(_TORCH.unpack_from(self._copied, self._offsets["torch"]))

    def _find(self) -> None:
        """Find the memory of the generators, which may have been replaced."""
        self._memory: list[memoryview] = []
        self._offsets: dict[str, int] = {}
        self._others: dict[str, Callable[[], Any]] = {}
        self._getstate: Any = random.getstate
        self._generator: Any = getattr(random.getstate, "__self__", None)
        address = _python_address(self._generator)
        self._add("python", None if address is None else {address: _PYTHON.size}, random.getstate)
        if address is None:
            self._generator = None
        address = _torch_address(self._torch)
        self._add("torch", None if address is None else {address: _TORCH.size}, self._torch.get_state)
        self._bit_generator: Any = self._get_bit_generator()
        if self._numpy is not None:
            addresses = _numpy_addresses(self._bit_generator)
            sizes = None if addresses is None else dict(zip(addresses, (_NUMPY.size, _PAIR.size), strict=True))
            self._add("numpy", sizes, functools.partial(self._numpy.random.get_state, legacy=False))

    def _add(self, name: str, sizes: dict[int, int] | None, get: Callable[[], Any]) -> None:
        """Add the memory of a generator, by address; where it is not known, its state is copied by a function."""
        if sizes is None:
            self._others[name] = get
        else:
            self._offsets[name] = sum(map(len, self._memory))
            self._memory += [memory_at(address, size) for address, size in sizes.items()]


def _nothing() -> None:
    """Stand in for a generator of NumPy where it is not installed."""


@functools.lru_cache(maxsize=1)
def _python_address(generator: Any) -> int | None:
    """Return the address of the state of a generator, which follows the header of the object; None if it does not."""
    header = object.__basicsize__
    if type(generator) is not random.Random or type(generator).__basicsize__ < header + _PYTHON.size:
        return None
    address = id(generator) + header
    position, *words = _PYTHON.unpack(ctypes.string_at(address, _PYTHON.size))
    return address if (*words, position) == generator.getstate()[1] else None


@functools.lru_cache(maxsize=1)
def _numpy_addresses(bit_generator: Any) -> tuple[int, int] | None:
    """Return the addresses of the words and of the kept normal number; None if the memory is not as expected."""
    import numpy as np

    offset = _pair_offset()
    owner: Any = getattr(np.random.get_state, "__self__", None)
    if offset is None or type(bit_generator) is not np.random.MT19937 or type(owner) is not np.random.RandomState:
        return None
    words, pair = int(bit_generator.ctypes.state_address), id(owner) + offset
    *key, position = _NUMPY.unpack(ctypes.string_at(words, _NUMPY.size))
    legacy: Any = np.random.get_state()
    _, said, *rest = legacy
    if key != said.tolist() or [position, *_PAIR.unpack(ctypes.string_at(pair, _PAIR.size))] != rest:
        return None
    return words, pair


@functools.cache
def _pair_offset() -> int | None:
    """Return where a ``RandomState`` keeps the second normal number of a pair; None if it is not found.

    Normal numbers are drawn in pairs. One generator whose pair is half used shows where the number is.
    """
    import numpy as np

    generator = np.random.RandomState(0)
    generator.standard_normal()
    address, size = id(generator), type(generator).__basicsize__
    legacy: Any = generator.get_state()
    number = legacy[-1]

    def found(kept: int) -> set[int]:
        memory = ctypes.string_at(address, size)
        offsets = range(object.__basicsize__, size - _PAIR.size + 1, 8)
        return {each for each in offsets if _PAIR.unpack_from(memory, each) == (kept, number)}

    candidates = found(1)
    generator.standard_normal()  # the other one
    legacy = generator.get_state()
    number = legacy[-1]
    candidates &= found(0)
    return candidates.pop() if len(candidates) == 1 else None


@functools.lru_cache(maxsize=1)
def _torch_address(generator: Any) -> int | None:
    """Return the address of the state of a generator of the CPU; None if the memory is not as expected."""
    offset = _torch_offset()
    if offset is None:
        return None
    address = generator._cdata + offset
    said = generator.get_state()
    return address if torch.equal(_as_tensor(_TORCH.unpack(ctypes.string_at(address, _TORCH.size))), said) else None


@functools.cache
def _torch_offset() -> int | None:
    """Return where a generator of the CPU keeps its state; None if it is not found.

    A generator that is given states, with and without kept numbers, shows where and in which order they are.
    """
    generator = torch.Generator()
    address: int | None = getattr(generator, "_cdata", None)
    if address is None:
        return None
    words = range(3, 3 + 7919 * _WORDS, 7919)
    states = [
        (2**63 + 5, 624 - kept, True, 1 + kept, *words, 0.5, bool(kept & 1), 0.25, bool(kept & 2)) for kept in range(4)
    ]
    generator.set_state(_as_tensor(states[0]))
    offset = ctypes.string_at(address, _LARGEST_OFFSET).find(_TORCH.pack(*states[0])[:16])
    for state in states if offset >= 0 else ():
        generator.set_state(_as_tensor(state))
        memory = ctypes.string_at(address + offset, _TORCH.size)
        *found, single, keeps_single, double, keeps_double = _TORCH.unpack(memory)
        kept = (single if keeps_single else 0.5, keeps_single, double if keeps_double else 0.25, keeps_double)
        if (*found, *kept) != state:
            return None
    return offset if offset >= 0 else None


def _as_tensor(fields: tuple[Any, ...]) -> torch.Tensor:
    """Return the state that ``torch.set_rng_state`` takes, from the fields of ``_TORCH``."""
    *engine, single, keeps_single, double, keeps_double = fields
    state = _TORCH_STATE.pack(
        *engine, double if keeps_double else 0.0, keeps_double, single if keeps_single else 0.0, keeps_single
    )
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
