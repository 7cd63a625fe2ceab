"""Average tensors over the replicas of low-communication training: all-reduce, optionally in fewer bits.

A compressed average takes two collectives whose payload is compressed: an all-to-all, after which each replica has one
chunk of every replica and averages it in float32, and an all-gather of the averaged chunks. A rank sends
2 (R - 1) / R bytes per byte of the payload, as a ring all-reduce does, and all ranks decode the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer import dist
from composer.core.replicas import Replicas
from composer.dist.collectives import communicates
from composer.dist.hang_report import InCollective

__all__ = [
    "COMPRESSIONS",
    "average_over_replicas",
    "average_weights_of_replicas",
    "decode",
    "difference",
    "encode",
    "replicas_of",
]

COMPRESSIONS: Final = ("bf16", "int8", "int4")
# Number of values with a common scale in int8 and int4: 4 bytes for each 256.
_BLOCK: Final = 256
# The largest integer that is sent. -128 and -8 are not used, so that x and -x have the same rounding error.
_LARGEST: Final = {"int8": 127, "int4": 7}
# Number of elements that are averaged at once, which bounds the memory of the copies: 64 MiB in float32.
_BUCKET: Final = 2**24


def replicas_of(group: Any = None) -> Replicas:
    """Return the replicas of a process group, each of one rank.

    Args:
        group: The process group; all ranks if None.

    >>> replicas_of().count
    1
    """
    count = torch_dist.get_world_size(group) if communicates() else 1
    return Replicas(count, first_ranks=None if count == 1 else group or torch_dist.group.WORLD)


@torch.no_grad()
def average_weights_of_replicas(
    weights: Sequence[Tensor], synchronized: Sequence[Tensor], replicas: Replicas, compression: str | None = None
) -> None:
    """Set the synchronized weights, and those of this replica, to the average of all replicas.

    Differences are averaged, rather than weights: their rounding errors are smaller, and a value that is equal on all
    replicas does not change. A single replica keeps its weights, bit for bit.

    Args:
        weights: The weights of this replica.
        synchronized: Their last synchronized values.
        replicas: The replicas.
        compression: The dtype in which differences are sent, or None.
    """
    if replicas.count == 1:
        for value, weight in zip(synchronized, weights, strict=True):
            value.copy_(weight)
        return
    differences = [difference(value, weight) for value, weight in zip(synchronized, weights, strict=True)]
    average_over_replicas(differences, replicas, compression)
    for value, average, weight in zip(synchronized, differences, weights, strict=True):
        weight.copy_(value.sub_(average))


def difference(value: Tensor, weight: Tensor) -> Tensor:
    """Return value - weight, where equal infinities, such as those of a mask, differ by zero.

    Args:
        value: A synchronized tensor.
        weight: The same tensor of this replica.

    >>> difference(torch.tensor([2.0, -torch.inf]), torch.tensor([1.5, -torch.inf]))
    tensor([0.5000, 0.0000])
    """
    return torch.where(value == weight, 0, value - weight)


def average_over_replicas(tensors: Sequence[Tensor], replicas: Replicas, compression: str | None) -> None:
    """Replace real or complex tensors by their averages over all replicas, in place; equal on all ranks.

    Args:
        tensors: Tensors of any shapes, the same on each rank, equal on the ranks of a replica.
        replicas: The replicas.
        compression: The dtype in which values are sent: ``"bf16"``, ``"int8"``, ``"int4"``, or None for their own.
    """
    if replicas.count == 1:
        return
    for bucket in _buckets([torch.view_as_real(one) if one.is_complex() else one for one in tensors]):
        flat = torch.cat([one.flatten() for one in bucket])
        if replicas.is_first:
            assert replicas.first_ranks is not None
            if compression is None:
                dist.all_reduce(flat, group=replicas.first_ranks)
                flat /= replicas.count
            else:
                flat = _compressed_average(flat, replicas.first_ranks, compression)
        if replicas.group is not None:
            dist.broadcast(flat, replicas.ranks[0], replicas.group)
        for one, mean in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
            one.copy_(mean.view(one.shape))


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield lists of tensors of one dtype and device, of limited size."""
    bucket: list[Tensor] = []
    for one in tensors:
        size = sum(each.numel() for each in bucket) + one.numel()
        if bucket and ((one.dtype, one.device) != (bucket[0].dtype, bucket[0].device) or size > _BUCKET):
            yield bucket
            bucket = []
        bucket.append(one)
    if bucket:
        yield bucket


def _compressed_average(flat: Tensor, group: Any, compression: str) -> Tensor:
    """Return the average of a vector over the ranks of a group, each value of which was compressed twice."""
    ranks = torch_dist.get_world_size(group)
    chunk = math.ceil(flat.numel() / ranks / _BLOCK) * _BLOCK
    padded = flat.new_zeros(ranks, chunk, dtype=torch.float32)
    padded.view(-1)[: flat.numel()] = flat
    sent = encode(padded, compression)
    received = torch.empty_like(sent)
    with InCollective(group):
        torch_dist.all_to_all_single(received, sent, group=group)
    own = encode(decode(received, compression).mean(0, keepdim=True), compression)
    gathered = torch.cat(dist.all_gather(own, group))
    return decode(gathered, compression).view(-1)[: flat.numel()].to(flat.dtype)


def encode(values: Tensor, compression: str) -> Tensor:
    """Return rows of values as rows of bytes.

    In int8 and int4, each block of 256 values has a scale s in float32, its largest magnitude / L with L = 127 or 7. A
    value x is sent as round(x / s), in int4 two of them in a byte; the error is at most s / 2. So in int4, values of
    less than 1/14 of the largest in their block are sent as 0. A block with a value that is not finite is NaN.

    Args:
        values: float32, (N, M), with M a multiple of 256.
        compression: ``"bf16"``, ``"int8"`` or ``"int4"``.

    Returns:
        uint8, (N, bytes).

    >>> [encode(torch.ones(1, 256), compression).shape[1] for compression in ("bf16", "int8", "int4")]
    [512, 260, 132]
    """
    if compression == "bf16":
        return values.to(torch.bfloat16).view(torch.uint8)
    largest = _LARGEST[compression]
    blocks = values.unflatten(1, (-1, _BLOCK))
    scales = blocks.abs().amax(2) / largest
    scales = torch.where(scales.isfinite(), scales, torch.nan)
    # A subnormal scale is not exact, so that quotients may be larger.
    quotients = (blocks / scales.unsqueeze(2)).nan_to_num_(0).round_().clamp_(-largest, largest)
    integers = quotients.to(torch.int8).flatten(1).view(torch.uint8)
    if compression == "int4":
        pairs = integers.unflatten(1, (-1, 2)) & 15
        integers = pairs[..., 0] | pairs[..., 1] << 4
    return torch.cat([integers, scales.view(torch.uint8)], 1)


def decode(coded: Tensor, compression: str) -> Tensor:
    """Return the values of :func:`encode`, in float32.

    Args:
        coded: uint8, (N, bytes).
        compression: ``"bf16"``, ``"int8"`` or ``"int4"``.

    >>> decode(encode(torch.full((1, 256), 3.0), "int8"), "int8").unique()
    tensor([3.])
    """
    if compression == "bf16":
        return coded.contiguous().view(torch.bfloat16).float()
    bytes_of_block = _BLOCK // 2 if compression == "int4" else _BLOCK
    size = coded.shape[1] // (bytes_of_block + 4) * bytes_of_block
    integers, scales = coded[:, :size].contiguous(), coded[:, size:].contiguous().view(torch.float32)
    if compression == "int4":
        integers = torch.stack([integers << 4, integers], 2).flatten(1)
    signed = integers.view(torch.int8)
    if compression == "int4":
        signed = signed >> 4  # keeps the sign
    return (signed.unflatten(1, (-1, _BLOCK)) * scales.unsqueeze(2)).flatten(1)
