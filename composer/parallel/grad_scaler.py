"""Scaling of float16 gradients that are divided among processes."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from composer import dist
from composer.dist.dtensor import held

__all__ = ["ShardedGradScaler"]


class ShardedGradScaler(torch.amp.GradScaler):
    """A gradient scaler for which an overflow in any process's part is one for all, so that all leave the step out.

    It is made with the type of the device, as torch's is.

    >>> ShardedGradScaler("cpu").get_scale()
    65536.0
    """

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        # What each process holds, since torch takes no list of weights that are divided in different ways.
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
        for gradient in held(gradients):
            kinds[gradient.device, gradient.dtype].append(gradient)
        for (device, _), parts in kinds.items():
            flag = found_inf.to(device, copy=True)
            torch._amp_foreach_non_finite_check_and_unscale_(parts, flag, inv_scale.to(device))  # pyright: ignore[reportPrivateImportUsage]
            found_inf.copy_(torch.maximum(found_inf, flag.to(found_inf.device)))
        dist.all_reduce(found_inf, "MAX")
        return {found_inf.device: found_inf}
