"""A model of a network, a store that counts requests, and a record of the collectives of one simulated rank."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch.distributed as torch_dist

from composer import dist
from composer.dist.grid_collectives import num_messages


@dataclass(frozen=True)
class Network:
    """A model of gloo over TCP and of torch's store; its numbers are assumptions, not measurements.

    Attributes:
        latency: Seconds from the send of a short message on one node to its receipt on another.
        bandwidth: Bytes per second of one rank: 100 Gbit/s of a node, shared by its eight ranks.
        request: Seconds that the store takes for a request, one after another.
    """

    latency: float = 25e-6
    bandwidth: float = 1.5e9
    request: float = 20e-6

    def seconds(self, call: Call) -> float:
        """Return the time until the last rank has the result, of a collective by gloo's algorithm for it.

        Args:
            call: The collective.
        """
        ranks, nbytes = call.ranks, call.nbytes
        if call.name == "all_reduce":  # a ring: reduce-scatter, then all-gather
            messages, sent = 2 * (ranks - 1), 2 * nbytes
        elif call.name in ("all_gather_object", "gather_object"):  # the sizes, then the objects; along each axis
            messages, sent = num_messages(ranks), ranks * nbytes
        else:  # broadcast and barrier: trees
            messages = math.ceil(math.log2(ranks)) if ranks > 1 else 0
            sent = messages * nbytes
        return messages * self.latency + sent / self.bandwidth


@dataclass(frozen=True)
class Call:
    """A collective that this rank has called.

    Attributes:
        name: Of the function.
        ranks: Size of the group.
        nbytes: Size of the tensor, or of the pickled object of this rank.
    """

    name: str
    ranks: int
    nbytes: int


@contextmanager
def recorded() -> Generator[list[Call]]:
    """Record the collectives that this package calls; those of DDP and FSDP are torch's own, and are left out."""
    calls: list[Call] = []
    with ExitStack() as stack:

        def watch(module: Any, name: str, size: Callable[..., int]) -> None:
            original = getattr(module, name)

            def call(value: Any, *args: Any, **kwargs: Any) -> Any:
                given = (*args, *kwargs.values())
                group = next((one for one in given if isinstance(one, torch_dist.ProcessGroup)), None)
                calls.append(Call(name, torch_dist.get_world_size(group), size(value)))
                return original(value, *args, **kwargs)

            stack.enter_context(mock.patch.object(module, name, call))

        for name in ("all_reduce", "broadcast"):
            watch(torch_dist, name, lambda tensor: tensor.numel() * tensor.element_size())
        watch(torch_dist, "barrier", lambda _: 0)
        for name in ("all_gather_object", "gather_object", "broadcast_object_list"):
            watch(dist, name, lambda value: len(pickle.dumps(value)))
        yield calls


class Store:
    """A store that counts the requests of one rank, as if all others had joined."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.keys = 0

    def _note(self, name: str, keys: Iterable[str] = ("",)) -> None:
        self.requests[name] += 1
        self.keys += len(list(keys))

    def set(self, key: str, value: str) -> None:
        self._note("set")

    def check(self, keys: list[str]) -> bool:
        self._note("check", keys)
        return False

    def add(self, key: str, number: int) -> int:
        self._note("add")
        return 1

    def wait(self, keys: list[str], timeout: Any) -> None:
        self._note("wait", keys)

    def get(self, key: str) -> bytes:
        self._note("get")
        return b"node-1"
