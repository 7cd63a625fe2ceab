"""A gradient scaler for fp16 loss scaling with sharded gradients."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from composer import dist
from composer.dist.dtensor import local_tensors

__all__ = ["ShardedGradScaler"]


class ShardedGradScaler(torch.amp.GradScaler):
    """A gradient scaler that skips the step on all ranks if the gradients of any rank overflow.

    Construct it with the device type, as ``torch.amp.GradScaler``.

    >>> ShardedGradScaler("cpu").get_scale()
    65536.0
    """

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        # Local shards, since torch accepts no list of tensors with different shardings.
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
        for gradient in local_tensors(gradients):
            groups[gradient.device, gradient.dtype].append(gradient)
        for (device, _), tensors in groups.items():
            flag = found_inf.to(device, copy=True)
            torch._amp_foreach_non_finite_check_and_unscale_(tensors, flag, inv_scale.to(device))  # pyright: ignore[reportPrivateImportUsage]
            found_inf.copy_(torch.maximum(found_inf, flag.to(found_inf.device)))
        dist.all_reduce(found_inf, "MAX")
        return {found_inf.device: found_inf}
