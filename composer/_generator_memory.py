"""Copy the states of the global random generators of Python, NumPy and PyTorch as bytes, in under a microsecond each.

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
from typing import Any

import torch

from composer._raw_memory import memory_at

__all__ = ["NumPyState", "PythonState", "TorchState"]

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


class PythonState:
    """The state of the generator of the module ``random`` at the time of creation.

    >>> state = PythonState()
    >>> first = random.random()
    >>> random.setstate(state.get())
    >>> random.random() == first
    True
    """

    __slots__ = ("_copied", "_gauss", "_generator", "_getstate", "_memory", "_state")

    def __init__(self) -> None:
        self._copied = memoryview(bytearray(_PYTHON.size))
        self._getstate: Any = None
        self.save()

    def save(self) -> None:
        """Copy the state again."""
        if random.getstate is not self._getstate:
            self._getstate = random.getstate
            self._generator: Any = getattr(random.getstate, "__self__", None)
            address = _python_address(self._generator)
            self._memory = None if address is None else memory_at(address, _PYTHON.size)
        if self._memory is None:
            self._state: Any = random.getstate()
        else:
            self._copied[:], self._gauss, self._state = self._memory, self._generator.gauss_next, None

    def get(self) -> tuple[Any, ...]:
        """Return what ``random.setstate`` takes."""
        if self._state is not None:
            return self._state
        position, *words = _PYTHON.unpack(self._copied)
        return random.Random.VERSION, (*words, position), self._gauss


class NumPyState:
    """The state of NumPy's global generator at the time of creation.

    Args:
        numpy: The module.

    >>> import numpy
    >>> state = NumPyState(numpy)
    >>> first = numpy.random.rand()
    >>> numpy.random.set_state(state.get())
    >>> numpy.random.rand() == first
    True
    """

    __slots__ = ("_bit_generator", "_copied", "_get", "_memory", "_numpy", "_pair_copied", "_state")

    def __init__(self, numpy: Any) -> None:
        self._numpy, self._get = numpy, numpy.random.get_bit_generator
        self._copied, self._pair_copied = memoryview(bytearray(_NUMPY.size)), memoryview(bytearray(_PAIR.size))
        self._bit_generator: Any = None
        self.save()

    def save(self) -> None:
        """Copy the state again."""
        generator = self._get()
        if generator is not self._bit_generator:
            self._bit_generator, addresses = generator, _numpy_addresses(generator)
            sizes = _NUMPY.size, _PAIR.size
            self._memory = None if addresses is None else [*map(memory_at, addresses, sizes)]
        if self._memory is None:
            self._state: Any = self._numpy.random.get_state(legacy=False)
        else:
            (self._copied[:], self._pair_copied[:]), self._state = self._memory, None

    def get(self) -> tuple[Any, ...] | dict[str, Any]:
        """Return what ``numpy.random.set_state`` takes."""
        if self._state is not None:
            return self._state
        words = self._numpy.frombuffer(self._copied, dtype=self._numpy.uint32, count=_WORDS).copy()
        position = _NUMPY.unpack(self._copied)[-1]
        return "MT19937", words, position, *_PAIR.unpack(self._pair_copied)


class TorchState:
    """The state of PyTorch's generator of the CPU at the time of creation.

    >>> state = TorchState()
    >>> first = torch.rand(1)
    >>> torch.set_rng_state(state.get())
    >>> bool(torch.rand(1) == first)
    True
    """

    __slots__ = ("_copied", "_generator", "_memory", "_state")

    def __init__(self) -> None:
        self._generator = torch.default_generator
        address = _torch_address(self._generator)
        self._memory = None if address is None else memory_at(address, _TORCH.size)
        self._copied = memoryview(bytearray(_TORCH.size))
        self.save()

    def save(self) -> None:
        """Copy the state again."""
        if self._memory is None:
            self._state: Any = self._generator.get_state()
        else:
            self._copied[:], self._state = self._memory, None

    def get(self) -> torch.Tensor:
        """Return what ``torch.set_rng_state`` takes."""
        if self._state is not None:
            return self._state
        return _as_tensor(_TORCH.unpack(self._copied))


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
