"""A model of CUDA streams and memory, to find data races without a GPU.

Inside ``FakeCuda()`` tensors can be moved to ``cuda``; what comes of it lies on the CPU and remembers, as the caching
allocator does, on which stream it was made. Every operation on such a tensor is checked:

- it may read only what is complete as far as its stream knows (same stream, ``wait_event``, ``wait_stream``, or a
  synchronization of the host in between);
- memory that goes back to the allocator may be used again by its own stream at once, so whatever another stream did
  with it must have been told by ``record_stream``, or be known to the stream of the memory;
- the host may read pinned memory only once a copy into it is known to be complete, and write it only once those out of
  it are. (Freeing it is safe: the allocator of pinned memory waits for the streams that it was used on.)

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
    refuses = 0
    """The status of all calls, where it is none of success."""
    last_error = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        already = any(address < start + length and start < address + size for start, length in self.pinned.items())
        status = self.refuses or (712 if already else 0)  # cudaErrorHostMemoryAlreadyRegistered
        if status:
            Runtime.last_error = status
        else:
            self.pinned[address] = size
        return status

    def cudaGetLastError(self) -> int:
        error, Runtime.last_error = Runtime.last_error, 0
        return error

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
        status = self.refuses or (0 if self.pinned.pop(address, None) else 713)  # cudaErrorHostMemoryNotRegistered
        if status:
            Runtime.last_error = status
        return status


class Host:
    """The host, as one that uses memory beside the streams."""

    name = "host"

    def tick(self) -> Clock:
        """It does something, and knows what it has waited for."""
        host = FakeCuda.now().host
        host[self.name] = host.get(self.name, 0) + 1
        return dict(host)


class Memory:
    """What the allocator knows of the memory of a tensor, and what the model knows besides."""

    def __init__(self, stream: Stream | Host) -> None:
        self.stream = stream
        self.written: Clock = {}
        self.uses: dict[str, Clock] = {}
        self.recorded: set[str] = set()
        self.holders = 0

    def touch(self, stream: Stream | Host, write: bool) -> None:
        time = stream.tick()
        earlier = [self.written, *self.uses.values()] if write else [self.written]
        if not all(includes(time, clock) for clock in earlier):
            late = next(name for name in (*self.uses, self.stream.name) if name != stream.name)
            raise RaceError(f"stream {stream.name!r} uses what stream {late!r} may not have finished")
        if write:
            self.written = time
        self.uses[stream.name] = time

    def check_free(self) -> None:
        """Called when the tensor is freed: the stream that made it may use the memory again."""
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


class Pinned(torch.Tensor):
    """A tensor in pinned memory of the host."""

    memory: Memory

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
        if name == "is_pinned":
            return isinstance(first, Pinned)
        stream = self.current[-1]
        if function is torch.Tensor.to and _device_of(args, kwargs) == "cuda":
            return first if isinstance(first, OnCuda) else self._to_device(first, kwargs)
        if any(isinstance(leaf, Pinned) for leaf in tree_leaves((args, kwargs))):
            return self._with_pinned(function, args, kwargs)
        # In place: what the name says, and the first argument.
        writes = [id(leaf) for leaf in tree_leaves(first)] if name.endswith("_") and not name.endswith("__") else []
        touched = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, OnCuda)]
        for leaf in touched:
            leaf.memory.touch(stream, id(leaf) in writes)
        plain = tree_map(_plain, (args, kwargs))
        with torch._C.DisableTorchFunction():
            kwargs_left = {key: value for key, value in plain[1].items() if key not in ("non_blocking", "pin_memory")}
            result = function(*plain[0], **kwargs_left)
        to_host = name == "cpu" or (name == "to" and _device_of(args, kwargs) == "cpu")
        if touched and to_host and kwargs.get("non_blocking"):
            return self._pin(result, stream)
        if touched and (to_host or name in ("item", "tolist", "__bool__", "__float__", "__int__")):
            stream.synchronize()
        if kwargs.get("pin_memory"):
            return self._pin(result, Host())
        if not touched or to_host or not isinstance(result, torch.Tensor) or kwargs.get("device") == "cpu":
            return result
        if writes:
            return first
        address = result.untyped_storage().data_ptr()
        views = [leaf.memory for leaf in touched if _plain(leaf).untyped_storage().data_ptr() == address]
        return self.made(result, views[0] if views else None)

    def _pin(self, value: torch.Tensor, writer: Stream | Host) -> Pinned:
        """A tensor in pinned memory, which the host has just made or a stream is writing."""
        tensor = value.clone().as_subclass(Pinned)
        tensor.memory = Memory(writer)
        tensor.memory.touch(writer, write=True)
        return tensor

    def _to_device(self, value: torch.Tensor, kwargs: dict[str, Any]) -> OnCuda:
        """Copy from the host, beside it; ordinary memory is taken for memory that a loader has pinned."""
        if isinstance(value, Pinned):
            value.memory.touch(self.current[-1], write=False)
        made = self.made(_plain(value).detach().clone())
        if isinstance(value, Pinned) and not kwargs.get("non_blocking"):
            self.current[-1].synchronize()
        return made

    def _with_pinned(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run what reads or writes pinned memory: a copy from the device, or else an operation of the host."""
        first, stream = args[0], self.current[-1]
        from_device = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, OnCuda)]
        name = getattr(function, "__name__", "")
        if name == "__get__":
            return self._property(function, first)
        is_write = name.endswith("_") and not name.endswith("__")
        actor = stream if from_device else Host()
        for leaf in from_device:
            leaf.memory.touch(stream, write=is_write and leaf is first)
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Pinned):
                leaf.memory.touch(actor, write=is_write and leaf is first)
        blocking = not kwargs.get("non_blocking")
        plain = tree_map(_plain, (args, {key: kwargs[key] for key in kwargs if key != "non_blocking"}))
        with torch._C.DisableTorchFunction():
            result = function(*plain[0], **plain[1])
        if from_device and blocking:
            stream.synchronize()
        return first if is_write else result

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
            except RaceError as race:  # an exception in a finalizer is not raised
                self.races.append(race)

    @staticmethod
    def _property(function: Any, tensor: OnCuda | Pinned) -> Any:
        with torch._C.DisableTorchFunction():
            value = function(tensor)
        named = getattr(function, "__self__", None)
        known: dict[str, Any] = {"is_cuda": True, "is_cpu": False, "device": torch.device("cuda", 0)}
        if isinstance(tensor, Pinned):
            known = {}
        return known.get(getattr(named, "__name__", ""), value)


def _plain(value: Any) -> Any:
    return value.as_subclass(torch.Tensor) if isinstance(value, (OnCuda, Pinned)) else value


def _device_of(args: Any, kwargs: dict[str, Any]) -> str | None:
    given = kwargs.get("device", args[1] if len(args) > 1 else None)
    return torch.device(given).type if isinstance(given, (str, torch.device)) else None


@contextlib.contextmanager
def side_stream() -> Iterator[Stream]:
    """A block that runs on a stream of its own."""
    with Stream() as stream:
        yield stream
