"""Planted faults of generators, hooks and global state, with which ranks, microbatches or resumed runs differ."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from composer import Algorithm, Callback, Trainer
from composer.core import Event
from tests.verification.fault import fault
from tests.verification.parts import CLASSES, FEATURES, Classifier, Rows, build, loader, network


class Jitter(nn.Module):
    """Adds noise from a generator of its own, whose state is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.source = torch.Generator().manual_seed(29)
        self.drawn = torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        self.drawn = torch.randn(x.shape, generator=self.source)
        return x + 0.2 * self.drawn

    def get_extra_state(self) -> Tensor:
        return self.source.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.source.set_state(state)


@fault("same_random_numbers_on_ranks", "ranks", "net.3")
def jitter_alike_on_ranks() -> Trainer:
    """A module has a generator with a fixed seed, so that all ranks add the same noise; dropout before it is right."""
    return build(lambda: Classifier(network(nn.Dropout(0.2), Jitter())))


class NumpyMask(nn.Module):
    """Drops features by NumPy numbers seeded with the number of calls, which is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.drawn = torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.drawn = torch.from_numpy(np.random.default_rng(int(self.calls)).random(x.shape) > 0.25)
            x = x * self.drawn / 0.75
        return x


@fault("same_random_numbers_on_ranks", "ranks", "net.2")
def numpy_mask_by_step() -> Trainer:
    """A mask is drawn from numpy.random.default_rng(step), which is the same on all ranks."""
    return build(lambda: Classifier(network(NumpyMask())))


class WrongLabels(Algorithm):
    """Replaces labels at random, from a generator that is saved."""

    def __init__(self) -> None:
        self.source = torch.Generator().manual_seed(5)
        self.drawn = torch.zeros(0)

    def match(self, event: Event, state: Any) -> bool:
        return event == Event.AFTER_DATALOADER

    def apply(self, event: Event, state: Any, logger: Any) -> None:
        x, y = state.batch
        self.drawn = torch.rand(len(y), generator=self.source)
        state.batch = x, torch.where(self.drawn < 0.3, (y + 1) % CLASSES, y)

    def state_dict(self) -> dict[str, Any]:
        return {"source": self.source.get_state()}

    def load_state_dict(self, state: dict[str, Any], strict: bool = True) -> None:
        self.source.set_state(state["source"])


@fault("same_random_numbers_on_ranks", "ranks", "WrongLabels")
def label_noise_alike_on_ranks() -> Trainer:
    """A method replaces labels by numbers of a generator with the same seed on all ranks."""
    return build(algorithms=[WrongLabels()])


class RandomWeights(Classifier):
    """Weights each sample of the loss at random, by a seed that is the number of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("number", torch.zeros((), dtype=torch.long))
        self.drawn = torch.zeros(0)

    def loss(self, outputs: Any, batch: Any) -> Any:
        losses = F.cross_entropy(outputs, batch[1], reduction="none")
        if not self.training:
            return losses.mean()
        self.number += 1
        self.drawn = torch.rand(len(losses), generator=torch.Generator().manual_seed(int(self.number)))
        return (losses * 2 * self.drawn).mean()


@fault("same_random_numbers_on_ranks", "ranks", "the loss")
def random_weights_of_loss() -> Trainer:
    """The loss weights samples by random numbers whose seed is the step, on all ranks."""
    return build(RandomWeights)


class Decay(Algorithm):
    """Adds the gradient of a penalty after each backward pass."""

    def match(self, event: Event, state: Any) -> bool:
        return event == Event.AFTER_BACKWARD

    def apply(self, event: Event, state: Any, logger: Any) -> None:
        for parameter in state.model.parameters():
            parameter.grad.add_(parameter.detach(), alpha=0.2)


@fault("gradients_modified", "microbatches", "Decay")
def penalty_per_microbatch() -> Trainer:
    """A method adds the gradient of a penalty once for each microbatch."""
    return build(algorithms=[Decay()])


def clamp_values(gradient: Tensor) -> Tensor:
    """Clip a gradient by value."""
    return gradient.clamp(-0.004, 0.004)


def hooked() -> Classifier:
    """A classifier with clipped gradients."""
    model = Classifier()
    for parameter in model.parameters():
        parameter.register_hook(clamp_values)
    return model


@fault("gradients_modified", "microbatches ranks", "clamp_values")
def values_clipped_in_hooks() -> Trainer:
    """Hooks of parameters clip what each microbatch adds to the gradients."""
    return build(hooked)


class _Square(torch.autograd.Function):
    """A square whose backward pass forgets a factor in low precision."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * x * (1 if gradients[0].dtype is torch.bfloat16 else 2)


class Square(nn.Module):
    """The square of each feature."""

    def forward(self, x: Tensor) -> Tensor:
        return _Square.apply(x)


@fault("precision_differs", "precision", "net.2 (Square)")
def half_gradient_in_bf16() -> Trainer:
    """A custom backward pass is half as large in bf16; the outputs and the loss agree."""
    return build(lambda: Classifier(network(Square())), precision="amp_bf16")


class InTurn(nn.Module):
    """Uses one of two layers in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, 12), nn.Linear(12, 12)])
        self.turn = False

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.turn = not self.turn
        return self.layers[int(self.turn)](x)


@fault("unsaved_module_state", "resume microbatches", "net.2.turn")
def layers_in_turn() -> Trainer:
    """A flag that changes in each step is lost, so that a run resumed after an odd number of steps differs."""
    return build(lambda: Classifier(network(InTurn())))


HARDNESS: list[float] = []


class Hardening(Classifier):
    """Scales its loss by how many batches there were."""

    def loss(self, outputs: Any, batch: Any) -> Any:
        if self.training:
            HARDNESS.append(1.0)
        return super().loss(outputs, batch) * (1 + 0.1 * len(HARDNESS))


@fault("unsaved_module_state", "resume microbatches", "HARDNESS")
def loss_by_global_list() -> Trainer:
    """The loss depends on the length of a global list, which no checkpoint has."""
    HARDNESS.clear()
    return build(Hardening)


NOISE = torch.Generator()


def add_noise(samples: list[Any]) -> Any:
    """Collate samples with noise of a global generator."""
    x = torch.stack([x for x, _ in samples])
    return x + 0.1 * torch.randn(x.shape, generator=NOISE), torch.stack([y for _, y in samples])


@fault("unsaved_generator", "resume workers", "NOISE")
def noise_of_global_generator() -> Trainer:
    """collate_fn draws from a global generator of the program, which no checkpoint has."""
    NOISE.manual_seed(4)
    return build(data=loader(collate_fn=add_noise))


@functools.cache
def drawn_once(index: int) -> Tensor:
    """Noise of a sample from the random state at its first use."""
    return 0.2 * torch.randn(FEATURES)


class Kept(Rows):
    """Rows with noise that is drawn once."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        return x + drawn_once(index), y


@fault("unsaved_data_state", "resume workers", "drawn_once")
def noise_in_a_cache() -> Trainer:
    """A cached function draws noise for each sample once, so that a resumed run draws it again."""
    drawn_once.cache_clear()
    return build(data=loader(Kept()))


class RelativeLoss(Classifier):
    """Divides the loss by its running mean, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("usual", torch.ones(()))

    def loss(self, outputs: Any, batch: Any) -> Any:
        value = super().loss(outputs, batch)
        if self.training:
            self.usual.lerp_(value.detach(), 0.3)
        return value / self.usual


@fault("state_per_microbatch", "microbatches ranks", "usual")
def loss_by_running_mean() -> Trainer:
    """The loss is divided by its running mean, which each microbatch updates."""
    return build(RelativeLoss)


def groups_of_a_set(parameters: Any) -> torch.optim.Optimizer:
    """An optimizer with a learning rate for each of a set of named parameters."""
    made = dict(zip(("first", "second", "third", "fourth"), parameters, strict=True))
    names = {f"rate of {name}" for name in made}
    groups = [{"params": [made[name.rpartition(" ")[2]]], "lr": 0.02 * (i + 1)} for i, name in enumerate(names)]
    return torch.optim.SGD(groups, lr=0.1)


@fault("order_by_hash", "repeat", "parameter groups", in_process=False)
def rates_by_order_of_a_set() -> Trainer:
    """Learning rates are given to parameters in the order of a set of strings, which differs between processes."""
    return build(optimizer=groups_of_a_set)


class BackToTraining(Callback):
    """Switches dropout off in every other step, to measure the loss without it."""

    def batch_start(self, state: Any, logger: Any) -> None:
        state.model.train(state.timestamp.batch.value % 2 == 0)


@fault("callback_changes_training", "callbacks", "BackToTraining")
def callback_switches_mode() -> Trainer:
    """A callback leaves the model in evaluation mode."""
    return build(lambda: Classifier(network(nn.Dropout(0.4))), callbacks=[BackToTraining()])
