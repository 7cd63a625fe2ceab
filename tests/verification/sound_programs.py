"""Sound programs that look like faults: they divide batches by themselves, or change training on purpose."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from composer import Algorithm, Callback, ComposerModel, Trainer, dist
from composer.core import Event
from tests.verification.parts import BATCH, CLASSES, FEATURES, Classifier, build, loader, network, rows

__all__ = [
    "attends_in_float32",
    "divides_batch_size",
    "generator_of_noise",
    "no_kernel_for_float64",
    "same_size_on_ranks",
    "teacher_in_callback",
    "unused_generator",
]


class Attention(nn.Module):
    """Attends to the features, with a softmax in float32; the true gradient of the bias of its keys is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(1, 4) for _ in range(3))
        self.head = nn.Linear(4 * FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        key, query, value = (layer(x[..., None]) for layer in (self.key, self.query, self.value))
        weights = (query @ key.transpose(1, 2)).float().softmax(-1).to(value.dtype)
        return self.head((weights @ value).flatten(1)).float()


class SignedSGD(torch.optim.SGD):
    """Makes steps of full size in the direction of each gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad.sign(), alpha=-group["lr"])
        return loss


def attends_in_float32() -> Trainer:
    """The attention computes in float32, and the optimizer makes something of the sign of rounding."""
    return build(lambda: Classifier(Attention()), optimizer=lambda parameters: SignedSGD(parameters, 1e-3))


def divides_batch_size() -> Trainer:
    """The program divides its batch size by the number of ranks, and shards the data itself."""
    data = rows()
    sampler = dist.get_sampler(data, shuffle=True)
    return build(data=DataLoader(data, BATCH // dist.get_world_size(), sampler=sampler))


class Taught(Classifier):
    """Learns from an average of its own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        return super().loss(outputs, batch) + F.mse_loss(outputs, self.teacher(batch[0]))


class Teach(Callback):
    """Updates the teacher."""

    def batch_end(self, state: Any, logger: Any) -> None:
        with torch.no_grad():
            for one, other in zip(state.model.teacher.parameters(), state.model.net.parameters(), strict=True):
                one.lerp_(other, 0.2)


def teacher_in_callback() -> Trainer:
    """A callback updates the weights of a teacher."""
    return build(Taught, callbacks=[Teach()])


class Adversarial(ComposerModel):
    """A generator of points from noise, and a network that tells them from the data."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, FEATURES))
        self.critic = nn.Sequential(nn.Linear(FEATURES, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, batch: Any) -> Tensor:
        return self.maker(torch.randn(len(batch[0]), 4))

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        real, made = self.critic(batch[0]), self.critic(outputs)
        return F.softplus(-real).mean() + F.softplus(made).mean()


def generator_of_noise() -> Trainer:
    """The model makes its own input from random numbers, also in evaluation."""
    return build(Adversarial)


class Unused(nn.Module):
    """Has a generator that it uses only if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.amount = nn.BatchNorm1d(12), 0.0
        self.source = torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(x.shape, generator=self.source) if self.amount and self.training else torch.zeros_like(x)
        return self.norm(x + self.amount * noise)


def unused_generator() -> Trainer:
    """Code that samples is not used, and dropout has the probability 0."""
    return build(lambda: Classifier(network(Unused(), nn.Dropout(0.0))))


class RandomSize(Algorithm):
    """Cuts all inputs to the same number of features, which is random and has to be the same on all ranks."""

    def match(self, event: Event, state: Any) -> bool:
        return event == Event.AFTER_DATALOADER

    def apply(self, event: Event, state: Any, logger: Any) -> None:
        x, y = state.batch
        generator = torch.Generator().manual_seed(state.timestamp.batch.value)
        state.batch = x[:, : int(torch.randint(2, FEATURES, (), generator=generator))], y


class AnySize(Classifier):
    """Uses as many features as there are."""

    def forward(self, batch: Any) -> Any:
        return self.net(F.pad(batch[0], (0, FEATURES - batch[0].shape[1])))


def same_size_on_ranks() -> Trainer:
    """A method draws the size of the inputs, the same on all ranks."""
    return build(AnySize, loader(), algorithms=[RandomSize()])


class NoDouble(nn.Module):
    """Computes in float32 only, like a kernel that was written for training."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise RuntimeError("no kernel for float64")
        return x


def no_kernel_for_float64() -> Trainer:
    """A module fails in float64, in which runs that split a batch are compared."""
    return build(lambda: Classifier(network(NoDouble())))
