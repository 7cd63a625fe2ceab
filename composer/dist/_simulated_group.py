"""The process group of simulated ranks: collectives in which every rank has the values of this one.

Its collectives are ordinary operators on the tensors, so that modes which watch or skip operators apply to them.
torch's own "fake" process group computes in C++, below such modes, and does not reduce.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as torch_dist
from torch import Tensor

__all__ = ["BACKEND", "Completed", "Observer", "observers", "register_backend"]

BACKEND: Final = "simulated"
_Op: Any = torch_dist.ReduceOp
# torch calls its methods by position; their parameters have other names in each version.
_Group: Any = torch_dist.ProcessGroup

# Called with the name, the inputs and the outputs of each collective.
Observer = Callable[[str, Sequence[Tensor], Sequence[Tensor]], None]
observers: list[Observer] = []


def register_backend() -> None:
    """Make the process group known to torch, for every device.

    >>> register_backend()
    >>> torch_dist.Backend.SIMULATED
    'simulated'
    """
    if not hasattr(torch_dist.Backend, BACKEND.upper()):
        torch_dist.Backend.register_backend(
            BACKEND,
            lambda options, _: _SimulatedGroup(options.group_rank, options.group_size),
            extended_api=True,
            devices=[*dict.fromkeys(["cpu", "cuda", *torch_dist.Backend.default_device_backend_map])],
        )


class Completed(torch_dist.Work):
    """A collective that has ended.

    Args:
        result: Its outputs.

    >>> Completed(None).wait()
    True
    """

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: Any = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        """Return at once."""
        del timeout
        return True

    def is_completed(self) -> bool:
        """Return that it has ended."""
        return True

    def get_future(self) -> Any:
        """Return the completed future of the outputs."""
        return self._future


class _SimulatedGroup(_Group):
    """A process group in which every rank has the values of this one."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._names = {"name": "", "description": ""}

    # torch calls these from C++ too.

    def getBackendName(self) -> str:  # noqa: N802
        return BACKEND

    def getGroupName(self) -> str:  # noqa: N802
        return self._names["name"]

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._names["name"] = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._names["description"]

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._names["description"] = description

    def barrier(self, opts: Any = None) -> Completed:
        del opts
        return Completed(None)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Completed:
        del opts
        return _done("broadcast", tensors, tensors, tensors)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Completed:
        for tensor in tensors:
            self._reduce(tensor, tensor, opts)
        return _done("all_reduce", tensors, tensors, tensors)

    allreduce_coalesced = reduce = allreduce

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Completed:
        del opts
        for gathered, tensor in zip(outputs, inputs, strict=True):
            for each in gathered:
                each.copy_(tensor)
        return _done("all_gather", inputs, [*itertools.chain(*outputs)], outputs)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Completed:
        del opts
        for gathered in outputs:
            for each, tensor in zip(gathered, inputs, strict=True):
                each.copy_(tensor)
        return _done("all_gather", inputs, [*itertools.chain(*outputs)], outputs)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Completed:
        return self.allgather(outputs, inputs, opts) if outputs else Completed(None)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Completed:
        del opts
        for output, tensor in zip(outputs, inputs, strict=True):
            rows, row = output.view(self._size, -1), tensor.reshape(1, -1)
            if rows[self._rank].data_ptr() == tensor.data_ptr():  # its own row, which a copy would read and write
                for others in (rows[: self._rank], rows[self._rank + 1 :]):
                    others.copy_(row.expand_as(others))
            else:
                rows.copy_(row.expand_as(rows))
        return _done("all_gather", inputs, outputs, outputs)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Completed:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Completed:
        for output, parts in zip(outputs, inputs, strict=True):
            self._reduce(output, parts[self._rank], opts)
        return _done("reduce_scatter", [*itertools.chain(*inputs)], outputs, outputs)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Completed:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._reduce(output, tensor.view(self._size, -1)[self._rank].view(output.shape), opts)
        return _done("reduce_scatter", inputs, outputs, outputs)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Completed:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Completed:
        del opts
        # What another rank scatters is not known, and stays as it is.
        for output, parts in zip(outputs, inputs, strict=True):
            output.copy_(parts[self._rank])
        return _done("scatter", [*itertools.chain(*inputs)], outputs, outputs)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Completed:
        del opts
        for output in outputs:
            output.copy_(inputs[self._rank].expand_as(output))
        return _done("all_to_all", inputs, outputs, outputs)

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> Completed:
        parts = list(tensor.split(input_sizes) if input_sizes else tensor.chunk(self._size))
        slots = list(output.split(output_sizes) if output_sizes else output.chunk(self._size))
        return self.alltoall(slots, parts, opts)

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Completed:
        del rank, tag
        return _done("send", tensors, [], tensors)

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> Completed:
        del tensors, tag
        raise RuntimeError(f"Nothing can be received from rank {rank}, which is simulated: only this rank exists.")

    # The names of torch before 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _reduce(self, output: Tensor, tensor: Tensor, opts: Any) -> None:
        """Write the reduction of N equal tensors."""
        if output is not tensor:
            output.copy_(tensor)
        op = _Op.SUM if opts is None else opts.reduceOp
        if op == _Op.SUM:
            output.mul_(self._size)
        elif op == _Op.PRODUCT:
            output.pow_(self._size)
        elif op == _Op.BXOR:
            output.mul_(self._size % 2)
        elif not any(op == same for same in (_Op.AVG, _Op.MIN, _Op.MAX, _Op.BAND, _Op.BOR)):
            raise RuntimeError(f"Simulated ranks cannot reduce by {op}.")


def _done(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], result: Any) -> Completed:
    for observer in observers:
        observer(name, inputs, outputs)
    return Completed(result)
