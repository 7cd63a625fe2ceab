"""DiLoCo: replicas train on their own for many steps, then an outer Nesterov step is taken on their average.

    d   = s - mean_r(w_r)            w_r: weights of replica r after H steps of the inner optimizer
    m  <- mu * m + d
    s  <- s - eta * (d + mu * m)     s: synchronized weights, from which all replicas start the next round

Gradients are not communicated between replicas, so parameters are sent once every H steps rather than in each.
Paper: Douillard et al. 2023, https://arxiv.org/abs/2311.08105. With communication that overlaps with computation:
Douillard et al. 2025, https://arxiv.org/abs/2501.18512
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from composer._numbers import in_unit_interval, positive
from composer._text import one_of
from composer.algorithms._local_steps import LocalSteps
from composer.algorithms._pseudo_gradients import (
    COMPRESSIONS,
    average_over_replicas,
    average_weights_of_replicas,
    replicas_of,
)
from composer.core.replicas import Replicas
from composer.core.time import Time

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["DiLoCo", "apply_outer_step"]


def apply_outer_step(
    weights: Sequence[Tensor],
    synchronized: Sequence[Tensor],
    momenta: Sequence[Tensor],
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    compression: str | None = None,
    group: ProcessGroup | None = None,
) -> None:
    """End a round of local steps: average the replicas, and take a Nesterov step from the last synchronized weights.

        d = s - mean_r(w_r)        m <- mu * m + d        s <- s - eta * (d + mu * m)

    It is the step of ``torch.optim.SGD(nesterov=True)`` with d as the gradient. With a learning rate of 1 and no
    momentum, the replicas are averaged.

    Args:
        weights: The weights w_r of this rank, such as ``list(model.parameters())``; set to the new s.
        synchronized: The weights s from which all ranks have started, in the same order; updated in place. Float32 is
            recommended for weights of half precision. Initialize with copies of the weights, equal on all ranks.
        momenta: The momenta m, like ``synchronized``; updated in place. Initialize with zeros.
        outer_lr: The learning rate eta.
        outer_momentum: The momentum mu, from 0 to 1.
        compression: The dtype in which d is sent: ``"bf16"``, ``"int8"``, ``"int4"`` or None for its own.
        group: The process group over which to average, one rank per replica; all ranks if None.

    Raises:
        ValueError: An argument is out of range.

    >>> weight, synchronized, momentum = torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([0.0])
    >>> apply_outer_step([weight], [synchronized], [momentum], outer_lr=0.5, outer_momentum=0.5)
    >>> weight, momentum  # d = 2 - 1, so m = 1 and s = 2 - 0.5 * 1.5
    (tensor([1.2500]), tensor([1.]))

    Paper: https://arxiv.org/abs/2311.08105 (Douillard et al. 2023)
    """
    _finite_rate(outer_lr)
    in_unit_interval("outer_momentum", outer_momentum)
    if compression is not None:
        one_of("compression", compression, COMPRESSIONS)
    _outer_step(weights, synchronized, momenta, replicas_of(group), outer_lr, outer_momentum, compression)


@torch.no_grad()
def _outer_step(
    weights: Sequence[Tensor],
    synchronized: Sequence[Tensor],
    momenta: Sequence[Tensor],
    replicas: Replicas,
    lr: float,
    momentum: float,
    compression: str | None,
) -> None:
    if lr == 1 and momentum == 0:
        average_weights_of_replicas(weights, synchronized, replicas, compression)
        return
    differences = [value - weight for value, weight in zip(synchronized, weights, strict=True)]
    average_over_replicas(differences, replicas, compression)
    _apply_average(synchronized, momenta, differences, lr, momentum)
    for weight, value in zip(weights, synchronized, strict=True):
        weight.copy_(value)


def _apply_average(
    synchronized: Sequence[Tensor],
    momenta: Sequence[Tensor],
    differences: Sequence[Tensor],
    lr: float,
    momentum: float,
) -> None:
    for value, buffer, difference in zip(synchronized, momenta, differences, strict=True):
        buffer.mul_(momentum).add_(difference)
        value.sub_(torch.add(difference, buffer, alpha=momentum), alpha=lr)


class DiLoCo(LocalSteps):
    """Trains replicas without gradient communication, and synchronizes them by an outer step once a round.

    Each replica takes ``sync_every`` steps with the optimizers of the run and its own data shard; see
    :func:`apply_outer_step` for what follows. A replica is a rank, or ``replica_size`` adjacent ranks that average
    their gradients in each step (DDP), such as those of a node. Only the first rank of each replica sends parameters to
    other replicas. All replicas start from the weights of rank 0.

    Between two synchronizations, the weights of the replicas differ. Evaluation, prediction, and the weights in a
    checkpoint (``"model"``) are those of the last synchronization, which are equal on all ranks. Logged losses are
    averages over the replicas, each with its own weights; metrics of the training data likewise. Buffers (the
    statistics of batch normalization) are averaged over the replicas with each synchronization; integer buffers are
    those of rank 0. A single replica of several ranks leaves buffers as they are on each rank, as DDP does.
    Gradient clipping and gradient norms are per replica. ``EMA`` and ``PostHocEMA`` may average synchronized weights
    only: their times must be multiples of ``sync_every``. ``SWA`` and ``ScheduleFree`` raise an error on several ranks.
    The last batch of training, or an early stop, ends the round. So does the end of a call of ``fit``, after which the
    model is the same on all ranks.

    Loss weights are those of data parallelism: a replica with half as many samples or tokens in a step has half the
    weight. The gradient of a replica that is the only one with a batch left is multiplied by the number of replicas;
    use ``drop_last=True`` in the data loader to avoid this. A replica whose data ends early takes no more steps, and
    takes part in the next synchronization with the weights it has. With a single replica, nothing is sent, and the
    outer steps are those of the momentum alone.

    With ``overlap=k``, replicas do not wait for each other at the end of a round. They send the differences d of that
    step in the background and train on. After k further steps the outer step is taken, which gives s, and each replica
    continues from the mean of s and its own weights w:

        w <- (w + s) / 2

    This is the overlapped communication of Streaming DiLoCo, with a mixing factor of 1/2 and all parameters at once
    rather than in fragments. The weights that are evaluated and saved as the model are those of the last outer step;
    those of the replicas differ from them until training ends, and ``EMA`` and ``PostHocEMA`` average them. If training
    ends with an average pending, that one is applied first, and then the round ends as without an overlap. A checkpoint
    has the pending average, so that a run also resumes bit for bit in these k steps; saving waits for it.

    A run resumes anywhere, also in the middle of a round, with the weights of the uninterrupted run, bit for bit: the
    checkpoint has the weights and optimizer states of each replica. With another number of replicas, without this
    method or with another one (``LocalSGD``, or a subclass: states are loaded by the name of the class), training
    continues from the average of the replicas, with a warning; replica i takes the optimizer state of replica i modulo
    the saved number.

    When to use it:
        If the connection between ranks or nodes is slow, so that averaging gradients takes most of a step.

    When not to:
        On a fast network, where data parallelism reaches the same loss in fewer tokens; with weights that do not fit on
        a rank (FSDP, tensor parallelism and DeepSpeed are not supported); with optimizers that decide by the loss how
        often they evaluate a batch, such as LBFGS (an error is raised); and with many replicas of small batches, as the
        loss at equal tokens rises with their number.

    How to choose:
        ``sync_every`` from 30 to 500; the traffic falls in proportion. ``outer_lr`` 0.7 and ``outer_momentum`` 0.9 as
        in the paper, with AdamW as the optimizer. In short runs of few rounds, a lower momentum. Start from trained
        weights if possible, as the paper does: the loss is then closer to that of data parallelism.
        ``compression="int8"`` divides the traffic by another 4. ``overlap`` hides the time to send parameters, if a
        step has to wait longer than usual at the end of each round: as many steps as that takes, and not more, as the
        loss rises with it.

    Cost:
        Two copies of the parameters in memory. While the replicas synchronize, two buffers of at most 64 MiB, and the
        difference of all parameters; with ``overlap``, the latter during these steps, on a GPU also a copy on the host,
        from which it is sent by gloo. A checkpoint contains each replica's optimizer states and weights, and rank 0
        gathers them in memory. Counts and losses are still reduced over all ranks in each step: a few hundred bytes.

    Args:
        sync_every: Number of steps of a round; or a time in batches or epochs. Counted from the start of training.
        outer_lr: Learning rate of the outer step.
        outer_momentum: Nesterov momentum of the outer step, from 0 to 1.
        compression: The dtype in which parameter differences are sent: ``"bf16"``, ``"int8"`` or ``"int4"`` (with a
            scale for each 256 values), or None for float32. Sums are computed in float32.
        replica_size: Number of adjacent ranks that form a replica. Must divide the world size.
        overlap: Number of steps, or a time in batches, during which the replicas exchange their differences while they
            train on; less than ``sync_every``. At 0, they wait. With rounds of epochs, an average is applied at the
            latest at the end of the next round.

    Raises:
        ValueError: An argument is out of range. When training starts: ``replica_size`` does not divide the world size,
            ``EMA`` or ``PostHocEMA`` would average the weights of single replicas, ``SWA`` or ``ScheduleFree`` is used
            on several ranks, or the weights differ between ranks.
        RuntimeError: With ``overlap``, the exchange has failed; raised where its result is used.

    >>> diloco = DiLoCo(sync_every="100ba", compression="int8")
    >>> diloco.sync_every, diloco.outer_lr, diloco.outer_momentum
    (Time(100, TimeUnit.BATCH), 0.7, 0.9)
    >>> diloco.compression, diloco.replica_size, diloco.overlap
    ('int8', 1, Time(0, TimeUnit.BATCH))

    Paper: https://arxiv.org/abs/2311.08105 (Douillard et al. 2023); overlap: https://arxiv.org/abs/2501.18512 (2025)
    """

    __traits__ = replace(
        LocalSteps.__traits__,
        conflicts_with={
            **LocalSteps.__traits__.conflicts_with,
            "LocalSGD": "both synchronize the replicas. Use one of them.",
        },
    )

    def __init__(
        self,
        sync_every: int | str | Time = 100,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        compression: str | None = None,
        replica_size: int = 1,
        overlap: int | str | Time = 0,
    ) -> None:
        super().__init__(sync_every, compression, replica_size, overlap)
        self.outer_lr = _finite_rate(outer_lr)
        self.outer_momentum = in_unit_interval("outer_momentum", outer_momentum)

    def _outer_step(
        self, weights: Sequence[Tensor], synchronized: Sequence[Tensor], momenta: Sequence[Tensor], replicas: Replicas
    ) -> None:
        _outer_step(weights, synchronized, momenta, replicas, self.outer_lr, self.outer_momentum, self.compression)

    def _apply_average(
        self, synchronized: Sequence[Tensor], momenta: Sequence[Tensor], differences: Sequence[Tensor]
    ) -> None:
        _apply_average(synchronized, momenta, differences, self.outer_lr, self.outer_momentum)


def _finite_rate(outer_lr: float) -> float:
    """Check the outer learning rate and return it."""
    if math.isinf(positive("outer_lr", outer_lr)):
        raise ValueError(f"outer_lr must be finite, but got {outer_lr!r}. Pass a number such as 0.7.")
    return outer_lr
