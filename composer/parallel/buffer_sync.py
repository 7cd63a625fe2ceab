"""Statistics that layers keep of batches, where each process has batches of its own."""

from __future__ import annotations

from typing import Any

import torch.distributed as torch_dist
from torch import nn

from composer import dist
from composer.dist.dtensor import is_sharded

__all__ = ["sync_buffers"]

_NAMES = ("running_mean", "running_var", "num_batches_tracked")


def sync_buffers(model: nn.Module) -> None:
    """Give all processes the running statistics of the first, which are what a checkpoint has.

    Without it each process would evaluate another model, and a run that was resumed other ones than before.

    Args:
        model: The same layers on each process; all of them have to call this.

    >>> sync_buffers(nn.BatchNorm1d(2))
    """
    if dist.get_world_size() == 1:
        return
    works: list[Any] = []
    for name, buffer in model.named_buffers():
        if name.rpartition(".")[2] in _NAMES and not is_sharded(buffer):
            works.append(torch_dist.broadcast(buffer, 0, async_op=True))
    for work in works:
        work.wait()
