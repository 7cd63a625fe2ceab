"""Planted faults of modules: state that a checkpoint lacks or changes, and one that differs when it is compiled."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from composer import Trainer
from tests.verification.fault import fault
from tests.verification.faults_effects import Approximate
from tests.verification.parts import CLASSES, FEATURES, TOKENS, Classifier, Tagger, Texts, build, loader, network


class PlainMean(nn.Module):
    """Subtracts a running mean that is a plain tensor attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(12)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = torch.lerp(self.mean, x.detach().mean(0), 0.2)
        return x - self.mean


@fault("unsaved_module_state", "resume microbatches", "net.2.mean")
def plain_tensor() -> Trainer:
    """A module keeps a running mean in a plain tensor attribute, which is in no state_dict."""
    return build(lambda: Classifier(network(PlainMean())))


class TransientMean(PlainMean):
    """The same in a buffer that is not persistent."""

    def __init__(self) -> None:
        super().__init__()
        del self.mean
        self.register_buffer("mean", torch.zeros(12), persistent=False)


@fault("unsaved_module_state", "resume microbatches checkpoint", "net.2.mean")
def transient_buffer() -> Trainer:
    """A running mean is a buffer with persistent=False."""
    return build(lambda: Classifier(network(TransientMean())))


class Annealed(nn.Module):
    """Scales by a number that a counter lowers."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += int(self.training)
        return x * (1 + 1 / (1 + self.calls))


@fault("unsaved_module_state", "resume microbatches", "net.2.calls")
def counter_in_forward() -> Trainer:
    """A module anneals by a Python counter of its calls, which no checkpoint holds."""
    return build(lambda: Classifier(network(Annealed())))


class AnnealedTogether(nn.Module):
    """Scales its input less with each call of any instance."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        AnnealedTogether.calls += int(self.training)
        return x * (1 + 1 / (1 + AnnealedTogether.calls))


@fault("unsaved_module_state", "resume microbatches", "net.2.calls", in_process=False)
def counter_of_a_class() -> Trainer:
    """A module anneals by a counter that all instances share, a variable of the class."""
    return build(lambda: Classifier(network(AnnealedTogether())))


class AnnealedByIterator(nn.Module):
    """Scales its input less with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 1 / next(self.numbers)) if self.training else x


@fault("unsaved_module_state", "resume microbatches", "net.2.numbers")
def counter_of_itertools() -> Trainer:
    """A module anneals by itertools.count, which no checkpoint holds."""
    return build(lambda: Classifier(network(AnnealedByIterator())))


class AnnealsInput(nn.Module):
    """A layer whose input is scaled less with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 12)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += int(self.training)
        return self.layer(x * (1 + 1 / (1 + self.calls)))


class Counting(Classifier):
    """Counts samples, which nothing depends on."""

    seen = 0

    def forward(self, batch: Any) -> Any:
        self.seen += len(batch[0])
        return super().forward(batch)


@fault("unsaved_module_state", "resume microbatches", "net.2.calls")
def counter_around_a_layer() -> Trainer:
    """A counter of a module changes what goes into a layer of it; another one, of the model, does nothing."""
    return build(lambda: Counting(network(AnnealsInput())))


class LastOutput(nn.Module):
    """Adds a share of the mean of the outputs of some steps before."""

    def __init__(self) -> None:
        super().__init__()
        self.bank: collections.deque[Tensor] = collections.deque(maxlen=3)

    def forward(self, x: Tensor) -> Tensor:
        added = torch.stack(list(self.bank)).mean(0) if self.bank else torch.zeros(x.shape[1])
        if self.training:
            self.bank.append(x.detach().mean(0))
        return x + added


@fault("unsaved_module_state", "resume microbatches", "net.2.bank")
def memory_bank() -> Trainer:
    """A module keeps the last outputs in a Python deque (a memory bank), which no checkpoint holds."""
    return build(lambda: Classifier(network(LastOutput())))


class Balancer:
    """Divides a loss by its running average; no module."""

    def __init__(self) -> None:
        self.average = 1.0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        loss = F.cross_entropy(logits, targets)
        self.average = 0.7 * self.average + 0.3 * loss.item()
        return loss / self.average


@fault("unsaved_module_state", "resume microbatches", "loss_function.average")
def running_average_in_loss() -> Trainer:
    """A loss object divides by a running average that is a Python float of an object which is no module."""
    return build(lambda: Classifier(loss=Balancer()))


class ForgetsBuffer(nn.Module):
    """A buffer that its own way of saving leaves out, to keep old checkpoints readable."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(12))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale.mul_(0.97)
        return x * self.scale

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[f"{prefix}scale"]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        super()._load_from_state_dict({**state_dict, f"{prefix}scale": self.scale}, prefix, *others)


@fault("unsaved_module_state checkpoint_not_stable", "resume microbatches checkpoint", "net.2.scale")
def buffer_left_out() -> Trainer:
    """A module overrides how it is saved and leaves out a buffer that training changes."""
    return build(lambda: Classifier(network(ForgetsBuffer())))


def in_half(module: nn.Module, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    """Save weights in half precision."""
    for name, value in state.items():
        state[name] = value.half()


def saved_in_half() -> Classifier:
    """A classifier with a hook that saves half the bytes."""
    model = Classifier()
    model.register_state_dict_post_hook(in_half)
    return model


@fault("checkpoint_not_stable", "resume checkpoint", "net.0.weight")
def weights_saved_in_half() -> Trainer:
    """A state_dict hook saves the weights in half precision, so that a resumed run starts from rounded weights."""
    return build(saved_in_half)


class Normalizes(nn.Linear):
    """Normalizes its weight when it is loaded, since files of others are not normalized."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        weight = F.normalize(state_dict[f"{prefix}weight"], dim=1)
        super()._load_from_state_dict({**state_dict, f"{prefix}weight": weight}, prefix, *others)


@fault("checkpoint_not_stable", "checkpoint resume", "net.2.weight")
def normalized_on_load() -> Trainer:
    """A module normalizes its weight when it is loaded: what was loaded is not what was saved."""
    return build(lambda: Classifier(network(Normalizes(12, 12))))


class Tied(Tagger):
    """Input and output embedding are one parameter, until a checkpoint is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, TOKENS, bias=False)
        self.head.weight = self.embed.weight

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        if self.head.weight is self.embed.weight:
            self.head.weight = nn.Parameter(self.embed.weight.detach().clone())
        return super().load_state_dict(state_dict, strict, assign)


@fault("checkpoint_not_stable unsaved_module_state", "resume checkpoint", "head.weight")
def untied_on_load() -> Trainer:
    """load_state_dict unties the output embedding from the input embedding: the head is not trained after a resume."""
    return build(Tied, loader(Texts()))


class NoisyLayer(nn.Module):
    """Adds noise of a generator that the module holds."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.3 * torch.randn(x.shape, generator=self.generator) if self.training else x


@fault("unsaved_generator", "resume microbatches", "net.2.generator")
def generator_of_module() -> Trainer:
    """A module draws noise from a torch.Generator that it holds; no checkpoint holds its state."""
    return build(lambda: Classifier(network(NoisyLayer())))


class WarmLayer(nn.Module):
    """A residual branch that is switched on after three forward passes, by a Python flag."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(12, 12)
        self.seen, self.is_on = 0, False

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
            self.is_on = self.seen > 2
        return x + self.branch(x) * float(self.is_on)


@fault("unsaved_module_state", "resume microbatches", "net.2")
def flag_in_forward() -> Trainer:
    """A module switches on a branch by a Python flag after some calls; a resumed run switches it on later."""
    return build(lambda: Classifier(network(WarmLayer())))


class Prototypes(Classifier):
    """Pulls outputs to class means that a plain dict holds."""

    def __init__(self) -> None:
        super().__init__()
        self.prototypes: dict[int, Tensor] = {}

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        total = super().loss(outputs, batch)
        for label in range(CLASSES):
            mean = self.prototypes.get(label, torch.zeros(CLASSES))
            total = total + 0.1 * (outputs.mean(0) - mean).square().mean()
            self.prototypes[label] = torch.lerp(mean, outputs.detach().mean(0), 0.2)
        return total


@fault("unsaved_module_state samples_interact", "resume microbatches", "prototypes")
def prototypes_in_a_dict() -> Trainer:
    """The model keeps class means in a dict of tensors, which no checkpoint holds."""
    return build(Prototypes)


class Whitened(nn.Module):
    """Standardizes by statistics of the first batch that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.statistics is None:
            self.statistics = x.detach().mean(0), x.detach().std(0) + 0.1
        mean, deviation = self.statistics
        return (x - mean) / deviation


@fault("unsaved_module_state samples_interact", "resume microbatches", "statistics")
def statistics_of_first_batch() -> Trainer:
    """A module takes statistics from the first batch it sees and does not save them: a resumed run takes others."""
    return build(lambda: Classifier(nn.Sequential(Whitened(), nn.Linear(FEATURES, CLASSES))))


class Inner(nn.Module):
    """A block with a module that differs, and one after it that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch, self.last = nn.Linear(12, 12), Approximate(), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(self.branch(2 * self.first(x)))


@fault("compile_differs", "compile", "net.2.1.branch")
def nested_branch_for_compiler() -> Trainer:
    """A module inside a block of a block computes something else when it is compiled."""
    blocks = lambda: nn.Sequential(nn.Linear(12, 12), Inner())  # noqa: E731
    return build(lambda: Classifier(network(blocks())), compile_config={"backend": "eager"})
