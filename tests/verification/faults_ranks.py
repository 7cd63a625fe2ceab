"""Planted faults that need two ranks to be seen: ranks that differ, or gradients that are reduced twice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from composer import Callback, Trainer, dist
from tests.verification.fault import fault
from tests.verification.parts import Classifier, build, network


class ReduceAgain(Callback):
    """Sums gradients over ranks, as a script had to before it used this trainer."""

    def after_train_batch(self, state: Any, logger: Any) -> None:
        if dist.get_world_size() > 1:
            for parameter in state.model.parameters():
                torch.distributed.all_reduce(parameter.grad)


@fault("gradients_modified callback_changes_training", "ranks", "ReduceAgain")
def gradients_reduced_twice() -> Trainer:
    """A callback sums the gradients over ranks, which DDP has averaged already."""
    return build(callbacks=[ReduceAgain()])


class ClampOnFirst(Callback):
    """Clips weights on rank 0, which also logs."""

    def batch_end(self, state: Any, logger: Any) -> None:
        if dist.get_global_rank() == 0:
            with torch.no_grad():
                for parameter in state.model.parameters():
                    parameter.clamp_(-0.25, 0.25)


@fault("ranks_diverge callback_changes_training", "ranks callbacks", "ClampOnFirst")
def weights_edited_on_rank_0() -> Trainer:
    """A callback clips the weights on rank 0 only."""
    return build(callbacks=[ClampOnFirst()])


class InitializeLate(Callback):
    """Initializes the head when training starts, on each rank by its own random numbers."""

    def fit_start(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == 0:
            nn.init.normal_(state.model.net[-1].weight, std=0.3)


@fault("ranks_diverge callback_changes_training", "ranks callbacks", "net.3.weight")
def initialized_after_wrapping() -> Trainer:
    """A callback initializes a layer at the start of training, with random numbers that differ among ranks."""
    return build(lambda: Classifier(network(nn.Identity())), callbacks=[InitializeLate()])


class RankedRate(Callback):
    """Scales the learning rate by the rank, where the world size was meant."""

    def fit_start(self, state: Any, logger: Any) -> None:
        for group in state.optimizers[0].param_groups:
            group["lr"] = 0.1 * (dist.get_global_rank() + 1)


@fault("ranks_diverge", "ranks", "RankedRate")
def lr_by_rank() -> Trainer:
    """The learning rate is scaled by the rank instead of the world size."""
    return build(callbacks=[RankedRate()])


class LazyOffset(nn.Module):
    """A tensor that is made at the first forward, on each rank by its own random numbers; no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.offset: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.offset is None:
            self.offset = torch.randn(x.shape[1])
        return x + self.offset


@fault("ranks_diverge unsaved_module_state", "ranks resume", "net.2.offset")
def lazy_tensor_per_rank() -> Trainer:
    """A tensor is made at the first forward from random numbers: it differs among ranks, and is not saved."""
    return build(lambda: Classifier(network(LazyOffset())))


class RateByLoss(Callback):
    """Lowers the learning rate with the loss of this rank."""

    def batch_end(self, state: Any, logger: Any) -> None:
        for group in state.optimizers[0].param_groups:
            group["lr"] = 0.05 * float(state.loss.detach())


@fault("ranks_diverge", "ranks microbatches callbacks", "RateByLoss")
def lr_by_local_loss() -> Trainer:
    """A callback sets the learning rate by the loss of its rank, not by the loss over all ranks."""
    return build(callbacks=[RateByLoss()])


class Hidden(Classifier):
    """Adds a weight that is in a list, so that DDP does not know it."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = [torch.zeros(3)]

    def forward(self, batch: Any) -> Any:
        outputs = super().forward(batch) + self.extra[0]
        if self.training:
            self.extra[0] = torch.lerp(self.extra[0], -outputs.detach().mean(0), 0.2)
        return outputs


@fault("ranks_diverge unsaved_module_state", "ranks resume microbatches", "extra")
def bias_of_local_batch() -> Trainer:
    """A bias in a Python list is adapted to the batch of each rank: no synchronization, no checkpoint."""
    return build(Hidden)
