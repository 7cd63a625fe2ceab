"""The memory of a configuration as a trial measured it, the sizes as text, and activations summed over modules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Memory", "by_module", "size_text"]

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


@dataclass(frozen=True)
class Memory:
    """The peak of allocated memory, and what it is made of, in bytes.

    Args:
        peak: The largest amount of memory that is allocated at a time.
        limit: The smallest memory with which the allocator of the device succeeds; 0 if it keeps no released memory.
        reserved: What the allocator reserves if there is more; 0 if it keeps no released memory.
        reserved_expandable: What it reserves with expandable segments.
        costs: Number format, FLOPs and bytes of the operators of a step, and how often they run.
        stage: The stage of the training that reaches it, such as "backward", or the name of an algorithm.
        module: The module whose forward or backward pass reaches it; empty outside of modules.
        roles: What the peak is made of.
        activations: Activations at the peak by the name of the module that allocated them.
        algorithms: Memory of algorithms and callbacks at the peak by name.
        facts: What is known of the run, such as the batch size.

    >>> Memory(96, "forward", "layers.0", {"parameters": 64, "activations": 32}).needed
    96
    """

    peak: int
    stage: str = ""
    module: str = ""
    roles: Mapping[str, int] = field(default_factory=dict[str, int])
    activations: Mapping[str, int] = field(default_factory=dict[str, int])
    algorithms: Mapping[str, int] = field(default_factory=dict[str, int])
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    limit: int = 0
    reserved: int = 0
    reserved_expandable: int = 0
    costs: Sequence[Sequence[Any]] = field(default=(), repr=False)

    @classmethod
    def from_result(cls, result: Mapping[str, Any]) -> Memory:
        """Return the memory that a trial measured.

        Args:
            result: What :class:`.MemoryRecorder` returned.
        """
        return cls(**{name: result[name] for name in cls.__dataclass_fields__ if name in result})

    @property
    def needed(self) -> int:
        """Bytes that must be available."""
        return max(self.peak, self.limit)

    @property
    def per_microbatch(self) -> int:
        """Bytes of the peak that grow with the microbatch."""
        return sum(self.roles.get(role, 0) for role in ("activations", "temporary"))

    def composition(self, overhead: int) -> dict[str, int]:
        """Return what the peak on a device is made of.

        Args:
            overhead: Bytes that the context and libraries of the device take.

        >>> Memory(96, roles={"parameters": 96}, limit=100).composition(10)
        {'parameters': 96, 'allocator': 4, 'context': 10}
        """
        return {**self.roles, "allocator": self.needed - self.peak, "context": overhead}

    def to_json(self, overhead: int = 0) -> dict[str, Any]:
        """Return the memory in JSON types; the peak is that of the device, and ``allocated`` is that of tensors.

        Args:
            overhead: Bytes that the context and libraries of the device take.
        """
        return {
            "peak": self.needed + overhead,
            "allocated": self.peak,
            "reserved": self.reserved + overhead,
            "reserved_expandable": self.reserved_expandable + overhead,
            "stage": self.stage,
            "module": self.module,
            "composition": self.composition(overhead),
            "activations": dict(self.activations),
            "algorithms": dict(self.algorithms),
        }


def size_text(nbytes: float) -> str:
    """Return a size as in the messages of PyTorch.

    Args:
        nbytes: The size in bytes.

    >>> size_text(2**31), size_text(3 * 2**19), size_text(100)
    ('2.00 GiB', '1.50 MiB', '100 bytes')
    """
    for unit, scale in _UNITS:
        if abs(nbytes) >= scale:
            return f"{nbytes / scale:,.2f} {unit}"
    return f"{nbytes:.0f} bytes"


def by_module(sizes: Mapping[str, int], limit: int) -> list[tuple[str, int]]:
    """Sum sizes over modules to a depth at which a list is short, the largest first.

    Equal blocks, such as ``layers.0`` to ``layers.11``, are one entry ``layers.0-11``. The largest entry is replaced by
    its children, and what the module allocates itself, as long as the list stays within the limit.

    Args:
        sizes: Bytes by module name.
        limit: The largest number of entries.

    >>> by_module(
    ...     {"embed": 8, "layers.0.up": 40, "layers.0.down": 10, "layers.1.up": 40, "layers.1.down": 10}, 3
    ... )
    [('layers.0-1.up', 80), ('layers.0-1.down', 20), ('embed', 8)]
    >>> by_module(
    ...     {"embed": 8, "layers.0.up": 40, "layers.0.down": 10, "layers.1.up": 40, "layers.1.down": 10}, 2
    ... )
    [('layers.0-1', 100), ('embed', 8)]
    """
    totals: dict[tuple[str, ...], int] = defaultdict(int)
    for name, size in _with_equal_blocks_joined(sizes).items():
        totals[tuple(name.split(".")) if name else ()] += size
    found: dict[tuple[str, ...], int] = {(): sum(totals.values())}
    own: dict[tuple[str, ...], int] = {}  # what modules with children allocate themselves
    while True:
        for path in sorted(found, key=lambda path: -found[path]):
            inner = _children(path, totals)
            itself = {path: totals[path]} if totals.get(path) else {}
            if inner and len(found) - 1 + len(own) + len(inner) + len(itself) <= max(limit, 1):
                del found[path]
                found |= inner
                own |= itself
                break
        else:
            break
    named = [(".".join(path), size) for path, size in found.items()]
    named += [(f"{'.'.join(path)} itself" if path else "", size) for path, size in own.items()]
    return sorted(((name, size) for name, size in named if size), key=lambda entry: -entry[1])


def _children(path: tuple[str, ...], totals: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
    """Return the sums of the children of a module."""
    found: dict[tuple[str, ...], int] = defaultdict(int)
    for each, size in totals.items():
        if len(each) > len(path) and each[: len(path)] == path:
            found[each[: len(path) + 1]] += size
    return dict(found)


def _with_equal_blocks_joined(sizes: Mapping[str, int]) -> dict[str, int]:
    """Replace the numbers of blocks by a range where two or more blocks have nearly the same children."""
    joined = dict(sizes)
    while True:
        # Name of a container -> number of the block -> names of its children.
        blocks: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for name in joined:
            parts = name.split(".")
            for i, part in enumerate(parts):
                if part.isdecimal():
                    blocks[".".join(parts[:i])][part].add(".".join(parts[i + 1 :]))
        alike = {container: _alike(blocks[container]) for container in sorted(blocks, key=len)}
        container = next((container for container, numbers in alike.items() if len(numbers) > 1), None)
        if container is None:
            return joined
        prefix, numbers = f"{container}." if container else "", alike[container]
        result: dict[str, int] = defaultdict(int)
        for name, size in joined.items():
            head, dot, rest = name.removeprefix(prefix).partition(".")
            is_block = name.startswith(prefix) and head in numbers
            result[f"{prefix}{numbers[0]}-{numbers[-1]}{dot}{rest}" if is_block else name] += size
        joined = dict(result)


def _alike(blocks: Mapping[str, set[str]]) -> list[str]:
    """Return the numbers of consecutive blocks that have children, more than half of them those of the usual block."""
    usual = Counter(frozenset(names) for names in blocks.values() if names != {""}).most_common(1)
    if not usual:
        return []
    names = usual[0][0]
    runs: list[list[str]] = [[]]
    for number in sorted(blocks, key=int):
        own = blocks[number]
        if 2 * len(own & names) <= len(own | names):
            continue
        if runs[-1] and int(runs[-1][-1]) != int(number) - 1:
            runs.append([])
        runs[-1].append(number)
    return max(runs, key=len)
