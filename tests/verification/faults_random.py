"""Planted faults of randomness, time and nondeterminism."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Sampler

from composer import Callback, Trainer
from tests.verification.fault import fault
from tests.verification.parts import FEATURES, ROWS, Classifier, build, dropout_model, loader, network, rows


class Shuffled(Sampler[int]):
    """Shuffles with a generator that nobody seeds."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(ROWS))
        random.Random().shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return ROWS


@fault("unseeded_randomness data_order", "repeat", "Shuffled")
def unseeded_python_shuffle() -> Trainer:
    """A sampler shuffles with random.Random(), which is seeded by the system."""
    return build(data=loader(sampler=Shuffled()))


class NumpyShuffled(Shuffled):
    """Shuffles with a NumPy generator that nobody seeds."""

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng().permutation(ROWS).tolist())


@fault("unseeded_randomness data_order", "repeat", "NumpyShuffled")
def unseeded_numpy_shuffle() -> Trainer:
    """A sampler shuffles with numpy.random.default_rng() without a seed."""
    return build(data=loader(sampler=NumpyShuffled()))


@fault("unseeded_randomness data_order", "repeat")
def split_seeded_by_time() -> Trainer:
    """The rows for training are chosen by a split whose seed is the time."""
    generator = torch.Generator().manual_seed(time.time_ns() % 2**40)
    train, _ = torch.utils.data.random_split(rows(), [40, ROWS - 40], generator=generator)
    return build(data=loader(train))


def unseeded_network() -> Classifier:
    """A classifier whose first layer starts from NumPy numbers without a seed."""
    model = Classifier()
    with torch.no_grad():
        model.net[0].weight.copy_(torch.from_numpy(np.random.default_rng().normal(size=(12, FEATURES))))
    return model


@fault("unseeded_randomness", "repeat", "net.0.weight")
def unseeded_initialization() -> Trainer:
    """A layer is initialized with numpy.random.default_rng() without a seed."""
    return build(unseeded_network)


class SystemNoise(nn.Module):
    """Drops units by numbers of the system, which no seed controls."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = torch.tensor(list(os.urandom(x.shape[1]))) > 60
        return x * kept / 0.76


@fault("unseeded_randomness nondeterministic_operation", "repeat", "net.2")
def dropout_from_system() -> Trainer:
    """A custom dropout draws from os.urandom, which no seed controls."""
    return build(lambda: Classifier(network(SystemNoise())))


class RacySum(torch.autograd.Function):
    """A sum over the batch in backward whose order differs from run to run, as with atomic additions on a GPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        order = sorted(range(len(x)), key=lambda _: os.urandom(4))
        total = torch.zeros_like(weight)
        for row in order:
            total += torch.outer(x[row], gradient[row])
        return gradient @ weight.T, total


class RacyLinear(nn.Module):
    """A linear layer with a backward pass that is not deterministic."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 12) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return RacySum.apply(x, self.weight)


@fault("nondeterministic_operation", "repeat", "net.2")
def racy_backward() -> Trainer:
    """A custom operation sums gradients in an order that differs from run to run, like a scatter on a GPU."""
    return build(lambda: Classifier(network(RacyLinear())))


class RacyForward(nn.Module):
    """A mean over the features in an order that differs from run to run."""

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x))
        for column in sorted(range(x.shape[1]), key=lambda _: os.urandom(4)):
            total = total + x[:, column]
        return x - total[:, None] / x.shape[1]


@fault("nondeterministic_operation", "repeat", "net.2")
def racy_forward() -> Trainer:
    """A custom module sums in an order that differs from run to run."""
    return build(lambda: Classifier(network(RacyForward())))


class Named(nn.Module):
    """Layers that are made in the order of a set of names."""

    def __init__(self) -> None:
        super().__init__()
        made = {name: nn.Linear(12, 12) for name in {f"branch_{letter}" for letter in "abcdefgh"}}
        self.branches = nn.ModuleDict({name: made[name] for name in sorted(made)})

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([branch(x) for branch in self.branches.values()]).mean(0)


@fault("order_by_hash", "repeat", "net.2.branches", in_process=False)
def order_of_a_set() -> Trainer:
    """Layers are initialized in the order of a set of strings, which differs from process to process."""
    return build(lambda: Classifier(network(Named())))


@fault("unseeded_randomness", "repeat", in_process=False)
def seeded_by_process_id() -> Trainer:
    """The model is initialized with the id of the process as seed."""

    def model() -> Classifier:
        torch.manual_seed(os.getpid())
        return Classifier()

    return build(model)


class DecayByClock(Callback):
    """Lowers the learning rate with the time that has passed."""

    def fit_start(self, state: Any, logger: Any) -> None:
        self.began = time.perf_counter()

    def before_train_batch(self, state: Any, logger: Any) -> None:
        passed = time.perf_counter() - self.began
        for group in state.optimizers[0].param_groups:
            group["lr"] = 0.1 / (1 + 10 * passed)


@fault("time_dependent", "repeat", "DecayByClock")
def lr_by_clock() -> Trainer:
    """A callback sets the learning rate by the time that has passed since the start."""
    return build(callbacks=[DecayByClock()])


class ScaleByDuration(Callback):
    """Scales the gradients by the duration of the forward pass."""

    def before_forward(self, state: Any, logger: Any) -> None:
        self.began = time.perf_counter()

    def after_train_batch(self, state: Any, logger: Any) -> None:
        factor = 1 / (1 + time.perf_counter() - self.began)
        for parameter in state.model.parameters():
            parameter.grad.mul_(factor)


@fault("time_dependent callback_changes_training", "repeat callbacks", "ScaleByDuration")
def gradients_by_duration() -> Trainer:
    """A callback scales the gradients by how long the step took."""
    return build(callbacks=[ScaleByDuration()])


class ClockNoise(nn.Module):
    """Noise seeded by the clock."""

    def forward(self, x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(time.time_ns() % 2**40)
        return x + 0.1 * torch.randn(x.shape, generator=generator)


@fault("time_dependent unseeded_randomness", "repeat", "net.2")
def noise_by_clock() -> Trainer:
    """A module draws noise from a generator that is seeded with the time."""
    return build(lambda: Classifier(network(ClockNoise())))


class Reseeding(Classifier):
    """Seeds in each forward, so that runs can be compared, its author thought."""

    def __init__(self) -> None:
        super().__init__(network(nn.Dropout(0.3)))

    def forward(self, batch: Any) -> Any:
        torch.manual_seed(0)
        return super().forward(batch)


@fault("same_random_numbers_on_ranks", "ranks microbatches", "Reseeding")
def reseeds_in_forward() -> Trainer:
    """forward calls torch.manual_seed: each step and each rank has the same dropout mask."""
    return build(Reseeding)


class ReseedEachStep(Callback):
    """Seeds with the number of the step."""

    def batch_start(self, state: Any, logger: Any) -> None:
        torch.manual_seed(state.timestamp.batch.value)


@fault("same_random_numbers_on_ranks callback_changes_training", "ranks callbacks", "ReseedEachStep")
def reseeds_each_step() -> Trainer:
    """A callback seeds with the number of the step, so that all ranks draw the same dropout masks."""
    return build(dropout_model, callbacks=[ReseedEachStep()])
