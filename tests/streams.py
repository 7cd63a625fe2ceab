"""A model of CUDA's streams and memory, to find races without a device.

Inside ``FakeCuda()`` tensors can be moved to ``cuda``; what comes of it lies on the CPU and remembers, as the caching
allocator does, on which stream it was made. Every operation on such a tensor is checked:

- it may read only what is complete as far as its stream knows (same stream, ``wait_event``, ``wait_stream``, or a
  synchronization of the host in between);
- memory that goes back to the allocator may be used again by its own stream at once, so whatever another stream did
  with it must have been told by ``record_stream``, or be known to the stream of the memory.

Time is a vector clock (Fidge 1988; Mattern 1989): a count of operations for each stream and for the host.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

Clock = dict[str, int]


def merge(into: Clock, other: Clock) -> None:
    for name, count in other.items():
        into[name] = max(into.get(name, 0), count)


def includes(clock: Clock, other: Clock) -> bool:
    return all(clock.get(name, 0) >= count for name, count in other.items())


class RaceError(AssertionError):
    """Two streams touch the same memory in no certain order."""


class Stream:
    """As torch.cuda.Stream."""

    def __init__(self, device: Any = None, name: str | None = None) -> None:
        world = FakeCuda.now()
        self.name = name or f"side {len(world.streams)}"
        self.clock: Clock = {}
        world.streams.append(self)

    def tick(self) -> Clock:
        """Something is queued, which sees all that the stream and the host know."""
        merge(self.clock, FakeCuda.now().host)
        self.clock[self.name] = self.clock.get(self.name, 0) + 1
        return dict(self.clock)

    def wait_event(self, event: Event) -> None:
        merge(self.clock, event.clock)

    def wait_stream(self, other: Stream) -> None:
        merge(self.clock, other.tick())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        merge(FakeCuda.now().host, self.tick())

    def __enter__(self) -> Stream:
        FakeCuda.now().current.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        FakeCuda.now().current.pop()


class Event:
    """As torch.cuda.Event and torch.Event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.clock: Clock = {}

    def record(self, stream: Stream | None = None) -> None:
        self.clock = (stream or FakeCuda.now().current[-1]).tick()

    def query(self) -> bool:
        return includes(FakeCuda.now().host, self.clock)

    def synchronize(self) -> None:
        merge(FakeCuda.now().host, self.clock)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or FakeCuda.now().current[-1]).wait_event(self)


class Runtime:
    """As torch.cuda.cudart(): notes which addresses are pinned in place, with their sizes."""

    pinned: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        already = any(address < start + length and start < address + size for start, length in self.pinned.items())
        self.pinned[address] = size
        return 712 if already else 0  # cudaErrorHostMemoryAlreadyRegistered

    @classmethod
    @contextlib.contextmanager
    def counted(cls) -> Iterator[dict[int, int]]:
        """The sizes of what is pinned in a block, by address."""
        before, cls.pinned = cls.pinned, {}
        try:
            yield cls.pinned
        finally:
            cls.pinned = before

    def cudaHostUnregister(self, address: int) -> int:
        self.pinned.pop(address, None)
        return 0


class Memory:
    """What the allocator knows of the memory of a tensor, and what the model knows besides."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.written: Clock = {}
        self.uses: dict[str, Clock] = {}
        self.recorded: set[str] = set()
        self.holders = 0

    def touch(self, stream: Stream, write: bool) -> None:
        time = stream.tick()
        earlier = [self.written, *self.uses.values()] if write else [self.written]
        if not all(includes(time, clock) for clock in earlier):
            raise RaceError(f"stream {stream.name!r} uses what stream {self.stream.name!r} may not have finished")
        if write:
            self.written = time
        self.uses[stream.name] = time

    def check_free(self) -> None:
        """Called when nobody holds the tensor any more: the stream that made it may use the memory again."""
        known = dict(self.stream.clock)
        merge(known, FakeCuda.now().host)
        for name, clock in self.uses.items():
            if name != self.stream.name and name not in self.recorded and not includes(known, clock):
                raise RaceError(f"memory of stream {self.stream.name!r} is freed while stream {name!r} may be using it")


class OnCuda(torch.Tensor):
    """A tensor that says that it lies on cuda:0."""

    memory: Memory

    def record_stream(self, stream: Stream) -> None:
        self.memory.recorded.add(stream.name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return FakeCuda.now().run(function, args, kwargs or {})


class FakeCuda(TorchFunctionMode):
    """The device for the time of a block; raises `RaceError` for the first one, at the latest at the end."""

    _worlds: list[FakeCuda] = []

    def __init__(self) -> None:
        super().__init__()
        self.host: Clock = {}
        self.streams: list[Stream] = []
        self.current: list[Stream] = []
        self.races: list[RaceError] = []

    @classmethod
    def now(cls) -> FakeCuda:
        return cls._worlds[-1]

    def __enter__(self) -> FakeCuda:
        self._worlds.append(self)
        self.current.append(Stream(name="default"))
        self._patch = pytest.MonkeyPatch()
        cuda = torch.cuda
        for name, value in {
            "Stream": Stream,
            "Event": Event,
            "stream": lambda stream: stream or contextlib.nullcontext(),
            "current_stream": lambda device=None: self.current[-1],
            "default_stream": lambda device=None: self.streams[0],
            "synchronize": self.synchronize,
        }.items():
            self._patch.setattr(cuda, name, value)
        self._patch.setattr(cuda, "cudart", Runtime)
        self._patch.setattr(torch, "Event", Event)
        self._patch.setattr(torch.accelerator, "synchronize", self.synchronize)
        self._patch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda")
        )
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        gc.collect()
        self._patch.undo()
        self._worlds.pop()
        if error[0] is None and self.races:
            raise self.races[0]

    def synchronize(self, device: Any = None) -> None:
        for stream in self.streams:
            stream.synchronize()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(function, args, kwargs or {})

    def run(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Do it on the CPU, and note who touched what."""
        name = getattr(function, "__name__", "")
        first = args[0] if args else None
        if isinstance(first, OnCuda) and name == "__get__":
            return self._property(function, first)
        if function is torch.Tensor.to and _device_of(args, kwargs) == "cuda":
            return first if isinstance(first, OnCuda) else self.made(first.detach().clone())
        stream = self.current[-1]
        # In place: what the name says, and the first argument.
        writes = [id(leaf) for leaf in tree_leaves(first)] if name.endswith("_") and not name.endswith("__") else []
        touched = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, OnCuda)]
        for leaf in touched:
            leaf.memory.touch(stream, id(leaf) in writes)
        plain = tree_map(_plain, (args, kwargs))
        with torch._C.DisableTorchFunction():
            kwargs_left = {key: value for key, value in plain[1].items() if key not in ("non_blocking", "pin_memory")}
            result = function(*plain[0], **kwargs_left)
        if name in ("item", "tolist", "__bool__", "__float__", "__int__", "cpu") and touched:
            stream.synchronize()
        if not touched or name == "cpu" or not isinstance(result, torch.Tensor) or kwargs.get("device") == "cpu":
            return result
        if writes:
            return first
        address = result.untyped_storage().data_ptr()
        views = [leaf.memory for leaf in touched if _plain(leaf).untyped_storage().data_ptr() == address]
        return self.made(result, views[0] if views else None)

    def made(self, value: torch.Tensor, memory: Memory | None = None) -> OnCuda:
        """A tensor of the device: a view of memory, or one that the current stream has just written."""
        tensor = value.as_subclass(OnCuda)
        if memory is None:
            memory = Memory(self.current[-1])
            memory.touch(self.current[-1], write=True)
        tensor.memory = memory
        memory.holders += 1
        weakref.finalize(tensor, self._let_go, memory)
        return tensor

    def _let_go(self, memory: Memory) -> None:
        memory.holders -= 1
        if memory.holders == 0 and self in self._worlds:
            try:
                memory.check_free()
            except RaceError as race:  # an exception in a finalizer reaches nobody
                self.races.append(race)

    @staticmethod
    def _property(function: Any, tensor: OnCuda) -> Any:
        with torch._C.DisableTorchFunction():
            value = function(tensor)
        named = getattr(function, "__self__", None)
        known = {"is_cuda": True, "is_cpu": False, "device": torch.device("cuda", 0)}
        return known.get(getattr(named, "__name__", ""), value)


def _plain(value: Any) -> Any:
    return value.as_subclass(torch.Tensor) if isinstance(value, OnCuda) else value


def _device_of(args: Any, kwargs: dict[str, Any]) -> str | None:
    given = kwargs.get("device", args[1] if len(args) > 1 else None)
    return torch.device(given).type if isinstance(given, (str, torch.device)) else None


@contextlib.contextmanager
def side_stream() -> Iterator[Stream]:
    """A block that runs on a stream of its own."""
    with Stream() as stream:
        yield stream
