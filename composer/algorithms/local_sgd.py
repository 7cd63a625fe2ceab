"""Local SGD: replicas train on their own for many steps, then their weights are averaged.

    w <- mean_r(w_r)        w_r: weights of replica r after H steps

Paper: Stich 2018, https://arxiv.org/abs/1805.09767
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from composer.algorithms._local_steps import LocalSteps
from composer.algorithms._pseudo_gradients import average_over_replicas, average_weights_of_replicas, replicas_of
from composer.core.replicas import Replicas
from composer.core.time import Time

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["LocalSGD", "average_weights"]


@torch.no_grad()
def average_weights(weights: Sequence[Tensor], group: ProcessGroup | None = None) -> None:
    """Replace weights by their averages over all ranks of a process group, in place.

        w <- mean_r(w_r)

    Args:
        weights: Floating-point tensors of any shapes, the same on each rank, such as ``list(model.parameters())``.
        group: The process group; all ranks if None.

    >>> model = torch.nn.Linear(1, 1)
    >>> average_weights(list(model.parameters()))  # after every 100th step of a custom loop

    Paper: https://arxiv.org/abs/1805.09767 (Stich 2018)
    """
    average_over_replicas(weights, replicas_of(group), None)


class LocalSGD(LocalSteps):
    """Trains replicas without gradient communication, and averages their weights once a round.

    It is :class:`.DiLoCo` with an outer learning rate of 1 and without an outer momentum; see there for what is
    evaluated, logged and saved, for the averages that can be combined with it, for uneven data, for resuming, and for
    ``overlap``. The state of the optimizers is not averaged.

    When to use it:
        If the connection between ranks or nodes is slow, and rounds are short; and as the simplest baseline for DiLoCo.

    When not to:
        With long rounds, where the outer momentum of DiLoCo reaches a lower loss; with optimizers that decide by the
        loss how often they evaluate a batch, such as LBFGS (an error is raised); and on a fast network.

    How to choose:
        ``sync_every`` from 4 to 32. The longer the rounds, the lower the traffic, and the higher the loss.

    Cost:
        A copy of the weights in memory. While the replicas synchronize, two buffers of at most 64 MiB, and the
        difference of all parameters. A checkpoint contains each replica's optimizer states and weights.

    Args:
        sync_every: Number of steps of a round; or a time in batches or epochs. Counted from the start of training.
        compression: The dtype in which parameter differences are sent: ``"bf16"``, ``"int8"`` or ``"int4"`` (with a
            scale for each 256 values), or None for float32. Sums are computed in float32.
        replica_size: Number of adjacent ranks that form a replica, which average their gradients in each step (DDP).
            Must divide the world size.
        overlap: Number of steps, or a time in batches, during which the replicas exchange their differences while they
            train on; less than ``sync_every``. At 0, they wait.

    Raises:
        ValueError: An argument is out of range. When training starts: ``replica_size`` does not divide the world size,
            ``EMA`` or ``PostHocEMA`` would average the weights of single replicas, ``SWA`` or ``ScheduleFree`` is used
            on several ranks, or the weights differ between ranks.
        RuntimeError: With ``overlap``, the exchange has failed; raised where its result is used.

    >>> LocalSGD(8)
    LocalSGD(sync_every=Time(8, TimeUnit.BATCH), compression=None, replica_size=1, overlap=Time(0, TimeUnit.BATCH))

    Paper: https://arxiv.org/abs/1805.09767 (Stich 2018)
    """

    has_outer_momentum = False

    def __init__(
        self,
        sync_every: int | str | Time = 8,
        compression: str | None = None,
        replica_size: int = 1,
        overlap: int | str | Time = 0,
    ) -> None:
        super().__init__(sync_every, compression, replica_size, overlap)

    def _outer_step(
        self, weights: Sequence[Tensor], synchronized: Sequence[Tensor], momenta: Sequence[Tensor], replicas: Replicas
    ) -> None:
        average_weights_of_replicas(weights, synchronized, replicas, self.compression)

    def _apply_average(
        self, synchronized: Sequence[Tensor], momenta: Sequence[Tensor], differences: Sequence[Tensor]
    ) -> None:
        for value, difference in zip(synchronized, differences, strict=True):
            value.sub_(difference)
