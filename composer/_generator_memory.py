"""Copy the states of Python's and NumPy's global random generators as bytes, in under a microsecond each.

``random.getstate()`` makes 625 Python integers, and ``numpy.random.get_state()`` fills an array one item at a time,
which takes 12 and 44 us; most copies are never read. Here the state is copied from the memory of the generator, and
converted to what ``setstate`` takes only to restore it. Where that memory lies is compared with what the generators say
of themselves once for each generator; if it does not agree, as in another implementation of Python, the slow way is
taken.
"""

from __future__ import annotations

import ctypes
import functools
import random
import struct
from typing import Any

__all__ = ["NumPyState", "PythonState"]

_WORDS = 624  # of the Mersenne Twister, which both use
_PYTHON = struct.Struct(f"=i{_WORDS}I")  # position, words
_NUMPY = struct.Struct(f"={_WORDS}Ii")  # words, position
# Whether NumPy keeps the second number of a pair of normal ones, and that number.
_PAIR = struct.Struct("=i4xd")


class PythonState:
    """The state of the generator of the module ``random`` at the time of creation.

    >>> state = PythonState()
    >>> first = random.random()
    >>> random.setstate(state.get())
    >>> random.random() == first
    True
    """

    __slots__ = ("_address", "_copied", "_gauss", "_state")

    def __init__(self) -> None:
        self._copied = ctypes.create_string_buffer(_PYTHON.size)
        self._address = ctypes.addressof(self._copied)
        self.save()

    def save(self) -> None:
        """Copy the state again."""
        generator: Any = getattr(random.getstate, "__self__", None)
        address = _python_address(generator)
        if address is None:
            self._state: Any = random.getstate()
        else:
            self._state, self._gauss = None, generator.gauss_next
            ctypes.memmove(self._address, address, _PYTHON.size)

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

    __slots__ = ("_copied", "_numpy", "_pair_to", "_state", "_words_to")

    def __init__(self, numpy: Any) -> None:
        self._numpy = numpy
        self._copied = ctypes.create_string_buffer(_NUMPY.size + _PAIR.size)
        self._words_to = ctypes.addressof(self._copied)
        self._pair_to = self._words_to + _NUMPY.size
        self.save()

    def save(self) -> None:
        """Copy the state again."""
        addresses = _numpy_addresses(self._numpy.random.get_bit_generator())
        if addresses is None:
            self._state: Any = self._numpy.random.get_state(legacy=False)
        else:
            self._state = None
            ctypes.memmove(self._words_to, addresses[0], _NUMPY.size)
            ctypes.memmove(self._pair_to, addresses[1], _PAIR.size)

    def get(self) -> tuple[Any, ...] | dict[str, Any]:
        """Return what ``numpy.random.set_state`` takes."""
        if self._state is not None:
            return self._state
        words = self._numpy.frombuffer(self._copied, dtype=self._numpy.uint32, count=_WORDS).copy()
        position = _NUMPY.unpack_from(self._copied)[-1]
        return "MT19937", words, position, *_PAIR.unpack_from(self._copied, _NUMPY.size)


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
