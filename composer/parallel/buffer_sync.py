"""Buffer synchronization: broadcast BatchNorm running statistics from rank 0, since each rank computes its own."""

from __future__ import annotations

from typing import Any

import torch.distributed as torch_dist
from torch import nn

from composer import dist
from composer.dist.dtensor import is_dtensor

__all__ = ["STATISTICS", "sync_buffers"]

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Names of the buffers in which BatchNorm keeps running statistics."""


def sync_buffers(model: nn.Module) -> None:
    """Broadcast the running statistics of rank 0, which are the ones saved in checkpoints.

    Without it each rank would evaluate a different model, and a resumed run would evaluate different ones than before.

    Args:
        model: A model with the same layers on each rank; all ranks must call this.

    >>> sync_buffers(nn.BatchNorm1d(2))
    """
    if dist.get_world_size() == 1:
        return
    works: list[Any] = []
    for name, buffer in model.named_buffers():
        if name.rpartition(".")[2] in STATISTICS and not is_dtensor(buffer):
            works.append(torch_dist.broadcast(buffer, 0, async_op=True))
    for work in works:
        work.wait()
