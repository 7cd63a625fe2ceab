"""Which GPU belongs to this process."""

from __future__ import annotations

import torch

from composer.dist.ranks import get_local_rank

__all__ = ["local_gpu"]


def local_gpu() -> int:
    """Return the index of this process's GPU: its local rank, or 0 where each process sees one GPU of its own.

    The latter is what schedulers with ``--gpus-per-task=1`` and containers with one GPU do. Processes that share one
    GPU by mistake are told so by NCCL.

    >>> local_gpu()
    0
    """
    return 0 if torch.cuda.device_count() == 1 else get_local_rank()
