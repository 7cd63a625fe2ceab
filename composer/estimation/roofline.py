"""FLOPs and memory traffic of a step, and the time that a device needs at least (roofline model).

    t >= sum over operators of max(FLOPs / peak FLOP/s, bytes / bandwidth)

        Williams, Waterman and Patterson 2009, https://doi.org/10.1145/1498765.1498785

FLOPs are counted by the formulas of :mod:`torch.utils.flop_counter`, of products of matrices, convolutions and
attention; other operators count with their bytes alone. Real steps take longer: kernels do not reach the peak, and
launches, data and communication take time. Two things can make them shorter than this: tensors that stay in a cache of
the device between operators, and compilers that fuse operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from composer.estimation.devices import Device
from composer.memory.allocations import local_tensors

__all__ = ["Bound", "OperatorCosts", "lower_bound"]

aten = torch.ops.aten

_FORMATS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "amp_fp16"}
# Of float32 tensors, torch computes them in TensorFloat-32 by default.
_CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default})
# Allocate, and write nothing.
_FREE = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_strided.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
        aten._unsafe_view.default,
        aten._local_scalar_dense.default,
    }
)
# Read as much as they return, not all of their first input.
_GATHERS = frozenset(
    {
        aten.embedding.default,
        aten.index.Tensor,
        aten.index_select.default,
        aten.gather.default,
        aten._embedding_bag.default,
    }
)


class OperatorCosts:
    """Counts FLOPs and bytes of the operators of a step.

    Attributes:
        counts: How often operators with the same cost ran, by the number format, FLOPs and bytes.

    >>> costs = OperatorCosts()
    >>> x = torch.ones(4, 8)
    >>> costs.add(aten.mm.default, (x, x.t()), {}, x @ x.t())
    >>> costs.flops, costs.nbytes  # 2 * 4 * 8 * 4 FLOPs; two inputs and an output
    (256, 320)
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int, int], float] = {}

    @property
    def flops(self) -> int:
        """FLOPs of all operators."""
        return round(sum(flops * count for (_, flops, _), count in self.counts.items()))

    @property
    def nbytes(self) -> int:
        """Bytes that all operators read and write."""
        return round(sum(nbytes * count for (_, _, nbytes), count in self.counts.items()))

    def clear(self) -> None:
        """Forget what was counted, at the begin of a step."""
        self.counts.clear()

    def add(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Any) -> None:
        """Count an operator.

        Args:
            func: The operator.
            args: Its positional arguments.
            kwargs: Its other arguments.
            outputs: What it returns.
        """
        if func in _FREE or _is_view(func):
            return
        inputs = list(local_tensors([args, dict(kwargs)]))
        results = list(local_tensors(outputs))
        flops = _flops(func, args, kwargs, outputs)
        read = _size(results) + _size(inputs[1:]) if func in _GATHERS else _size(inputs)
        written = _written(func, args, kwargs) or results
        kind = next((_FORMATS[each.dtype] for each in inputs if each.dtype in _FORMATS), "fp32")
        if kind == "fp32" and func in _CONVOLUTIONS:
            kind = "tf32"
        key = kind, flops, read + _size(written)
        self.counts[key] = self.counts.get(key, 0) + 1

    def multiply(self, factor: float, before: Mapping[tuple[str, int, int], float]) -> None:
        """Count operators several times, as those of microbatches that stand for others.

        Args:
            factor: How many times.
            before: The counts before these operators.
        """
        for key, count in self.counts.items():
            self.counts[key] = before.get(key, 0) + factor * (count - before.get(key, 0))

    @classmethod
    def from_json(cls, counts: Iterable[Sequence[Any]]) -> OperatorCosts:
        """Return the costs of ``to_json``.

        Args:
            counts: What ``to_json`` returned.
        """
        costs = cls()
        costs.counts = {(kind, flops, nbytes): count for kind, flops, nbytes, count in counts}
        return costs

    def to_json(self) -> list[list[Any]]:
        """Return the counts in types of JSON; ``lower_bound`` takes them.

        >>> OperatorCosts().to_json()
        []
        """
        return [[*key, count] for key, count in self.counts.items()]


@dataclass(frozen=True)
class Bound:
    """The time that a step needs at least on a device.

    Attributes:
        seconds: The lower bound of the time, if each operator reads and writes its tensors in the device's memory.
        at_peak: The time of all FLOPs at the peak FLOP/s, which no fusion of operators and no cache makes shorter.
        compute: Seconds in operators that the peak FLOP/s bound; the memory bandwidth bounds the others.
        flops: FLOPs of the step.
        nbytes: Bytes that the step reads and writes.

    >>> Bound(seconds=2.0, at_peak=1.2, compute=1.0, flops=1, nbytes=1).peak_utilization
    0.5
    """

    seconds: float
    at_peak: float
    compute: float
    flops: int
    nbytes: int

    @property
    def peak_utilization(self) -> float:
        """Largest share of the time in which the peak FLOP/s can be reached, from 0 to 1."""
        return self.compute / self.seconds if self.seconds else 0.0


def lower_bound(counts: Iterable[Sequence[Any]], device: Device, *, allow_tf32: bool = False) -> Bound | None:
    """Return the time that a step needs at least; None if the speed of the device is not known.

    Args:
        counts: The format, FLOPs and bytes of operators, and how many there are; from :meth:`OperatorCosts.to_json`.
        device: The device.
        allow_tf32: Whether float32 matrices are multiplied in TensorFloat-32.

    >>> from composer.estimation.devices import find_device
    >>> bound = lower_bound([["bf16", 2 * 8192**3, 3 * 2 * 8192**2, 1]], find_device("H100-80GB"))
    >>> f"{bound.seconds * 1e3:.2f} ms"
    '1.11 ms'
    """
    if not device.bandwidth:
        return None
    seconds = at_peak = compute = flops = nbytes = 0.0
    for kind, of_one, bytes_of_one, count in counts:
        precision: str = {"bf16": "amp_bf16", "tf32": "fp32"}.get(kind) or kind
        speed = device.peak_flops(precision, allow_tf32=allow_tf32 or kind == "tf32")
        speed = speed or device.peak_flops("fp32")
        calculating = of_one / speed if speed else 0.0
        moving = bytes_of_one / device.bandwidth
        at_peak += count * calculating
        seconds += count * max(calculating, moving)
        compute += count * calculating if calculating > moving else 0.0
        flops += count * of_one
        nbytes += count * bytes_of_one
    return Bound(seconds, at_peak, compute, round(flops), round(nbytes))


def _flops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Any) -> int:
    formula = _FORMULAS.get(func)
    if formula is not None:
        return formula(*args)
    known = flop_registry.get(func._overloadpacket)
    return 0 if known is None else int(known(*args, **kwargs, out_val=outputs))


def _attention(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> int:
    del others
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any) -> int:
    del others
    return sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape)


# The CPU's kernels of attention have no formula in torch.
_FORMULAS: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
}


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the inputs that an operator writes to."""
    values = [
        args[i] if i < len(args) else kwargs.get(argument.name)
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return list(local_tensors(values))


def _is_view(func: Any) -> bool:
    returned = func._schema.returns
    return bool(returned) and all(each.alias_info is not None and not each.alias_info.is_write for each in returned)


def _size(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors; an expanded one counts once."""
    return sum(min(each.numel() * each.itemsize, each.untyped_storage().nbytes()) for each in tensors)
