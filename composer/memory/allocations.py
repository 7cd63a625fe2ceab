"""What a run allocates on the device, in order: the size of each allocation, where it was made, and when it ended."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from composer.trees import leaves

__all__ = ["Allocation", "AllocationLog", "local_tensors"]


@dataclass
class Allocation:
    """Memory that was allocated.

    Args:
        nbytes: Its size in bytes.
        stage: The stage of the training that allocated it, such as "forward", or the name of the algorithm or callback.
        module: Name of the module whose forward or backward pass allocated it; empty outside of modules.
        role: What it holds, such as "parameters"; empty as long as it is not known.

    >>> Allocation(4096, stage="forward", module="layers.0")
    Allocation(nbytes=4096, stage='forward', module='layers.0', role='')
    """

    nbytes: int
    stage: str = ""
    module: str = ""
    role: str = ""


@dataclass
class AllocationLog:
    """Allocations and releases in their order.

    Attributes:
        allocations: All allocations.
        events: Indices into ``allocations``, each with whether the memory is allocated or released.
        stage: The stage of the training, which is set by whoever knows it.
        modules: Names of the modules that are running, innermost last.
        backward: Name of the module whose backward pass is running.

    >>> log = AllocationLog()
    >>> tensor = torch.zeros(1024)
    >>> log.add(tensor)
    >>> del tensor
    >>> log.events, log.peak()
    ([(0, True), (0, False)], (4096, 0))
    """

    allocations: list[Allocation] = field(default_factory=list[Allocation])
    events: list[tuple[int, bool]] = field(default_factory=list[tuple[int, bool]])
    stage: str = ""
    modules: list[str] = field(default_factory=list[str])
    backward: str = ""
    _ended: set[int] = field(default_factory=set[int], repr=False)
    _live: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = field(
        default_factory=weakref.WeakKeyDictionary[torch.UntypedStorage, int], repr=False
    )

    def add(self, tensor: Tensor, role: str = "") -> None:
        """Note the memory of a tensor, unless it is known.

        Args:
            tensor: The tensor; views share the memory of their base.
            role: What it holds, if known; replaces what was known before.
        """
        for local in local_tensors(tensor):
            storage = local.untyped_storage()
            index = self._live.get(storage)
            if index is None:
                index = self._begin(storage.nbytes())
                self._live[storage] = index
                weakref.finalize(storage, self._end, index)
            if role:
                self.allocations[index].role = role

    def keep(self, tensor: Tensor, owner: str) -> None:
        """Note who keeps memory of which no role is known; memory that is not in the log is left out.

        Args:
            tensor: The tensor.
            owner: Name of an algorithm or optimizer, which becomes the stage that allocated it.
        """
        for local in local_tensors(tensor):
            index = self._live.get(local.untyped_storage())
            if index is not None and not self.allocations[index].role:
                self.allocations[index].stage = owner

    def add_roles(self, tensors: Iterable[object], role: str) -> None:
        """Note what memory holds, unless it is known.

        Args:
            tensors: Tensors whose memory is in the log; others are skipped.
            role: What it holds.
        """
        for tensor in tensors:
            for local in local_tensors(tensor):
                index = self._live.get(local.untyped_storage())
                if index is not None and not self.allocations[index].role:
                    self.allocations[index].role = role

    def add_temporary(self, nbytes: int) -> None:
        """Note memory that a kernel allocates and releases before it returns.

        Args:
            nbytes: Its size in bytes.
        """
        if nbytes:
            index = self._begin(nbytes)
            self.allocations[index].role = "temporary"
            self._end(index)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Note that memory has another size than before.

        Args:
            storage: The memory.
        """
        index = self._live.get(storage)
        if index is None or self.allocations[index].nbytes == storage.nbytes():
            return
        self._end(index)
        new = self._begin(storage.nbytes())
        self.allocations[new].role = self.allocations[index].role
        self._live[storage] = new
        weakref.finalize(storage, self._end, new)

    def knows(self, tensor: Tensor) -> bool:
        """Return whether the memory of a tensor is in the log.

        Args:
            tensor: The tensor.
        """
        return any(local.untyped_storage() in self._live for local in local_tensors(tensor))

    def peak(self, begin: int = 0, end: int | None = None) -> tuple[int, int]:
        """Return the largest number of bytes that were allocated at a time, and the event at which they were.

        Args:
            begin: The first event that counts.
            end: The event after the last one that counts; None for all.
        """
        used = best = at = 0
        for number, (index, begins) in enumerate(self.events[:end]):
            used += self.allocations[index].nbytes if begins else -self.allocations[index].nbytes
            if used > best and number >= begin:
                best, at = used, number
        return best, at

    def live(self, event: int) -> Iterator[Allocation]:
        """Yield the allocations that are not released right after an event.

        Args:
            event: Index of the event.
        """
        open_: dict[int, Allocation] = {}
        for index, begins in self.events[: event + 1]:
            if begins:
                open_[index] = self.allocations[index]
            else:
                del open_[index]
        yield from open_.values()

    def _begin(self, nbytes: int) -> int:
        index = len(self.allocations)
        self.allocations.append(Allocation(nbytes, self.stage, self.modules[-1] if self.modules else self.backward))
        self.events.append((index, True))
        return index

    def _end(self, index: int) -> None:
        if index not in self._ended:  # as it is if the storage was resized
            self._ended.add(index)
            self.events.append((index, False))


def local_tensors(value: object) -> Iterator[Tensor]:
    """Yield the plain tensors with memory in a value: those in containers, and the parts of a DTensor.

    Args:
        value: A tensor, or a nested structure of them.

    >>> [tensor.shape for tensor in local_tensors({"a": torch.zeros(2), "b": [1]})]
    [torch.Size([2])]
    """
    for tensor in leaves(value):
        if not isinstance(tensor, Tensor) or tensor.device.type == "meta" or tensor.layout is not torch.strided:
            continue
        if hasattr(tensor, "__tensor_flatten__"):  # a DTensor, or a quantized tensor
            for name in tensor.__tensor_flatten__()[0]:  # pyright: ignore[reportAttributeAccessIssue]
                yield from local_tensors(getattr(tensor, name))
        else:
            yield tensor
