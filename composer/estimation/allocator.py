"""Replay allocations through a model of torch's caching allocator: reserved memory, fragmentation, out of memory.

The rules are those of ``CUDACachingAllocator`` with its default settings (docs.pytorch.org, "CUDA semantics: memory
management"; constants in ``c10/core/AllocatorConfig.h``):

- Sizes are rounded up to 512 bytes. Up to 1 MiB they come from segments of 2 MiB, up to 10 MiB from segments of 20 MiB,
  above from segments of their own size, rounded up to 2 MiB.
- The smallest free block that is large enough is taken (best fit, lowest address first), and split if at least 512
  bytes remain of a small one, or more than 1 MiB of a large one. Free neighbors in a segment are merged.
- If the device has no room for a new segment, all segments that are free as a whole are given back first.
- With expandable segments, a pool is one range of addresses, to whose end pages of 2 or 20 MiB are mapped; any page
  that is free is given back. Addresses in the middle are not mapped again, which the real allocator can do.
- Each stream has its own segments. The trainer copies batches on a side stream (:mod:`composer.core.device_transfer`),
  and releases a batch when the next one is there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from composer.memory.allocations import AllocationLog

__all__ = ["CachingAllocator", "DeviceMemoryError", "Replay", "replay", "smallest_limit"]

_MIB = 2**20
_MIN_BLOCK = 512
_SMALL = _MIB
_SMALL_SEGMENT = 2 * _MIB
_LARGE_SEGMENT = 20 * _MIB
_MIN_OWN_SEGMENT = 10 * _MIB
_ROUND_LARGE = 2 * _MIB
# Share of the memory to which the smallest limit is exact.
_TOLERANCE = 0.005
# Addresses that the expandable segments of a pool have; never used up.
_RANGE = 2**40 * _LARGE_SEGMENT
# The stream of copies; the current stream is 0.
_SIDE_STREAM = 1
# A stream, and whether the blocks are small.
_Pool = tuple[int, bool]


class DeviceMemoryError(Exception):
    """The device has no memory left for an allocation.

    >>> CachingAllocator(limit=2**20).allocate(4096)
    Traceback (most recent call last):
    composer.estimation.allocator.DeviceMemoryError: no room for a segment of 2097152 bytes: 0 of 1048576 are reserved
    """


class _Block:
    """A range of addresses in a segment, with its neighbors."""

    __slots__ = ("address", "free", "next", "pool", "previous", "requested", "size")

    def __init__(self, address: int, size: int, pool: _Pool) -> None:
        self.address, self.size, self.pool = address, size, pool
        self.free, self.requested = True, 0
        self.previous: _Block | None = None
        self.next: _Block | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.size, self.address


class CachingAllocator:
    """A model of torch's caching allocator for one device.

    Args:
        limit: Bytes that it can reserve; None for as many as it needs.
        expandable: Whether segments grow, as with ``PYTORCH_ALLOC_CONF=expandable_segments:True``.

    Attributes:
        allocated: Bytes of the blocks in use.
        reserved: Bytes of all segments.
        retries: How often segments were given back because there was no room.

    >>> allocator = CachingAllocator()
    >>> block = allocator.allocate(1000)
    >>> allocator.allocated, allocator.reserved
    (1024, 2097152)
    >>> allocator.release(block)
    >>> allocator.allocated, allocator.reserved
    (0, 2097152)
    """

    def __init__(self, limit: int | None = None, *, expandable: bool = False) -> None:
        self.limit, self.expandable = limit, expandable
        self.allocated = self.reserved = self.retries = 0
        self._end = 0  # the lowest address that was never used
        # Free blocks of each pool, by size and address.
        self._free: defaultdict[_Pool, list[tuple[int, int]]] = defaultdict(list)
        self._blocks: dict[int, _Block] = {}
        # The last block of each pool with expandable segments, and where the pool begins.
        self._last: dict[_Pool, _Block | None] = {}
        self._begin: dict[_Pool, int] = {}

    def allocate(self, nbytes: int, stream: int = 0) -> int:
        """Return the address of a new block.

        Args:
            nbytes: Bytes that are asked for, at least 1.
            stream: The stream that is current, whose blocks no other stream gets.

        Raises:
            DeviceMemoryError: It does not fit, also without the free segments.
        """
        size = -(-nbytes // _MIN_BLOCK) * _MIN_BLOCK
        pool = stream, size <= _SMALL
        block = self._best_fit(size, pool) or (self._grow if self.expandable else self._new_segment)(size, pool)
        self._split(block, size)
        block.free, block.requested = False, nbytes
        self.allocated += block.size
        return block.address

    def release(self, address: int) -> None:
        """Free a block; its memory stays reserved.

        Args:
            address: What ``allocate`` returned.
        """
        block = self._blocks[address]
        self.allocated -= block.size
        block.free = True
        for other in (block.previous, block.next):
            if other is not None and other.free:
                self._take(other)
                block = self._merge(other, block) if other is block.previous else self._merge(block, other)
        insort(self._free[block.pool], block.key)

    def empty_cache(self) -> int:
        """Give back all segments that are free, and return their bytes."""
        before = self.reserved
        for free in self._free.values():
            for _, address in list(free):
                block = self._blocks[address]
                if self.expandable:
                    self._unmap(block)
                elif block.previous is None and block.next is None:
                    self._take(block)
                    del self._blocks[address]
                    self.reserved -= block.size
        return before - self.reserved

    def _best_fit(self, size: int, pool: _Pool) -> _Block | None:
        free = self._free[pool]
        position = bisect_left(free, (size, 0))
        if position == len(free):
            return None
        return self._blocks[free.pop(position)[1]]

    def _take(self, block: _Block) -> None:
        free = self._free[block.pool]
        del free[bisect_left(free, block.key)]

    def _reserve(self, nbytes: int) -> None:
        """Count new memory of the device, after giving back free segments if there is no room."""
        if self.limit is not None and self.reserved + nbytes > self.limit:
            if self.empty_cache():
                self.retries += 1
            if self.reserved + nbytes > self.limit:
                raise DeviceMemoryError(
                    f"no room for a segment of {nbytes} bytes: {self.reserved} of {self.limit} are reserved"
                )
        self.reserved += nbytes

    def _new_segment(self, size: int, pool: _Pool) -> _Block:
        if pool[1]:
            length = _SMALL_SEGMENT
        elif size < _MIN_OWN_SEGMENT:
            length = _LARGE_SEGMENT
        else:
            length = -(-size // _ROUND_LARGE) * _ROUND_LARGE
        self._reserve(length)
        block = _Block(self._end, length, pool)
        self._end += length + _MIN_BLOCK  # segments are no neighbors
        self._blocks[block.address] = block
        return block

    def _grow(self, size: int, pool: _Pool) -> _Block:
        """Map more memory after the last block of a pool, which is used, too, if it is free."""
        page = _SMALL_SEGMENT if pool[1] else _LARGE_SEGMENT
        last = self._last.get(pool)
        tail = last.size if last is not None and last.free else 0
        length = -(-(size - tail) // page) * page
        reserved = self.reserved
        self._reserve(length)
        if self.reserved != reserved + length:  # the last block may have been given back
            last = self._last.get(pool)
            if last is None or not last.free or last.size != tail:
                self.reserved -= length
                return self._grow(size, pool)
        begin = self._begin.setdefault(pool, len(self._begin) * _RANGE)
        block = _Block(begin if last is None else last.address + last.size, length, pool)
        self._blocks[block.address] = block
        if last is not None:
            block.previous, last.next = last, block
            if last.free:
                self._take(last)
                block = self._merge(last, block)
        self._last[pool] = block
        return block

    def _unmap(self, block: _Block) -> None:
        """Give back the full pages of a free block; what lies before and after them stays."""
        page = _SMALL_SEGMENT if block.pool[1] else _LARGE_SEGMENT
        start, end = -(-block.address // page) * page, (block.address + block.size) // page * page
        if end <= start:
            return
        self._take(block)
        del self._blocks[block.address]
        self.reserved -= end - start
        before = self._remainder(block, block.address, start)
        after = self._remainder(block, end, block.address + block.size)
        if block.previous is not None:
            block.previous.next = before
        if block.next is not None:
            block.next.previous = after
        if before is not None:
            before.previous = block.previous
        if after is not None:
            after.next = block.next
        if self._last[block.pool] is block:  # the range ends earlier
            self._last[block.pool] = before or block.previous

    def _remainder(self, block: _Block, start: int, end: int) -> _Block | None:
        if start == end:
            return None
        kept = _Block(start, end - start, block.pool)
        self._blocks[start] = kept
        insort(self._free[kept.pool], kept.key)
        return kept

    def _split(self, block: _Block, size: int) -> None:
        """Make a free block of what is left of a block, if that is enough."""
        left = block.size - size
        if left < _MIN_BLOCK or (not block.pool[1] and not self.expandable and left <= _SMALL):
            return
        rest = _Block(block.address + size, left, block.pool)
        rest.previous, rest.next = block, block.next
        if rest.next is not None:
            rest.next.previous = rest
        block.next, block.size = rest, size
        if self._last.get(block.pool) is block:
            self._last[block.pool] = rest
        self._blocks[rest.address] = rest
        insort(self._free[rest.pool], rest.key)

    def _merge(self, first: _Block, second: _Block) -> _Block:
        del self._blocks[second.address]
        first.size += second.size
        first.free, first.next = True, second.next
        if second.next is not None:
            second.next.previous = first
        if self._last.get(second.pool) is second:
            self._last[second.pool] = first
        return first


@dataclass(frozen=True)
class Replay:
    """What the allocator needs for a run.

    Attributes:
        allocated: Peak of the allocated bytes, as ``torch.cuda.max_memory_allocated`` counts them.
        reserved: Peak of the reserved bytes, as ``torch.cuda.max_memory_reserved`` counts them.
        fits: Whether every allocation succeeds.
        event: Index of the event that fails; None if the run fits.
        retries: How often cached segments were given back, which stalls the device; a run that fits with many is slow.

    >>> Replay(allocated=3, reserved=5, fits=True, event=None, retries=0).fragmentation
    2
    """

    allocated: int
    reserved: int
    fits: bool
    event: int | None
    retries: int

    @property
    def fragmentation(self) -> int:
        """Peak of the reserved bytes less that of the allocated ones."""
        return self.reserved - self.allocated


def replay(
    log: AllocationLog, limit: int | None = None, *, expandable: bool = False, persistent: Iterable[int] = ()
) -> Replay:
    """Replay a log through the allocator.

    Args:
        log: The allocations and releases in their order.
        limit: Bytes that the allocator can reserve; None for as many as it needs.
        expandable: Whether segments grow.
        persistent: Sizes in bytes of what is allocated before, such as the workspaces of cuBLAS.

    >>> log = AllocationLog()
    >>> log.add_temporary(3 * 2**20)
    >>> replay(log).reserved // 2**20, replay(log, limit=16 * 2**20).fits
    (20, False)
    """
    allocator = CachingAllocator(limit, expandable=expandable)
    blocks: dict[int, int] = {}
    waiting: list[int] = []  # blocks of the batch before, which is released when the next one is there
    copied = False
    allocated = reserved = 0
    failed: int | None = None
    position = -1
    try:
        for nbytes in persistent:
            allocator.allocate(nbytes)
        for index, begins in log.events:
            position += 1
            nbytes, is_batch = log.allocations[index].nbytes, log.allocations[index].role == "batch"
            if not nbytes:
                continue
            if copied and not is_batch:
                for address in waiting:
                    allocator.release(address)
                waiting, copied = [], False
            if not begins:
                block = blocks.pop(index)
                if is_batch:
                    waiting.append(block)
                else:
                    allocator.release(block)
                continue
            copied = copied or is_batch
            blocks[index] = allocator.allocate(nbytes, _SIDE_STREAM if is_batch else 0)
            allocated = max(allocated, allocator.allocated)
            reserved = max(reserved, allocator.reserved)
    except DeviceMemoryError:
        failed = max(position, 0)
    allocated, reserved = max(allocated, allocator.allocated), max(reserved, allocator.reserved)
    return Replay(allocated, reserved, failed is None, failed, allocator.retries)


def smallest_limit(log: AllocationLog) -> int:
    """Return the smallest limit in bytes with which every allocation succeeds, to 0.5 %, rounded up.

    With less memory than it would reserve, the allocator gives free segments back. What remains is fragmentation: free
    blocks in segments that are in use.

    Args:
        log: The allocations and releases in their order.

    >>> log = AllocationLog()
    >>> log.add_temporary(30 * 2**20)
    >>> log.add_temporary(40 * 2**20)
    >>> replay(log).reserved // 2**20, smallest_limit(log) // 2**20
    (70, 40)
    """
    free = replay(log)
    below, limit = free.allocated - 1, free.reserved
    tried = free.allocated
    while limit - below > max(1, _TOLERANCE * limit):
        if replay(log, tried).fits:
            limit = tried
        else:
            below = tried
        tried = (below + limit) // 2
    return limit
