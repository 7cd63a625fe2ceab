"""The buckets in which ``DistributedDataParallel`` sends gradients: counting them, and sending those that are left."""

from __future__ import annotations

from typing import Any

import torch.distributed as torch_dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

__all__ = ["Buckets"]


class Buckets:
    """Counts what is sent in a backward pass.

    Attributes:
        sent: Number of buckets since it was last set to 0.

    >>> Buckets().sent
    0
    """

    def __init__(self) -> None:
        self.sent = 0

    def attach(self, module: Any) -> None:
        """Begin to count, which leaves the averages as they are.

        Args:
            module: A ``DistributedDataParallel``, without a hook of its own for communication.
        """
        # A lambda, since torch wants annotations to be classes or absent, and ours are text.
        module.register_comm_hook(torch_dist.group.WORLD, lambda group, bucket: self._send(group, bucket))  # noqa: PLW0108

    def send_rest(self, module: nn.Module, *, after: int) -> None:
        """Send zeros in place of the buckets that a whole backward pass would have sent.

        Args:
            module: The one that the buckets are of.
            after: Number of those that were sent.
        """
        reducer: Any = module.reducer
        # One after the other in their order; their memory is what the pass that broke off has left.
        works = [reducer._run_comm_hook(bucket) for bucket in reducer._get_zeros_like_grad_buckets()[after:]]
        for work in works:
            work.wait()

    def _send(self, group: torch_dist.ProcessGroup, bucket: Any) -> Any:
        self.sent += 1
        return allreduce_hook(group, bucket)
