"""Planted faults of callbacks, methods, optimizers and schedules whose state a checkpoint lacks."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import LRScheduler

from composer import Algorithm, Callback, Trainer
from tests.verification.fault import fault
from tests.verification.parts import Classifier, build, dropout_model, network


class WarmRestart(Callback):
    """Sets the learning rate by a counter of batches."""

    def __init__(self) -> None:
        self.seen = 0

    def before_train_batch(self, state: Any, logger: Any) -> None:
        self.seen += 1
        for group in state.optimizers[0].param_groups:
            group["lr"] = 0.1 / self.seen


@fault("unsaved_callback_state", "resume callbacks", "WarmRestart")
def lr_by_counter() -> Trainer:
    """A callback sets the learning rate by a counter and has no state_dict."""
    return build(callbacks=[WarmRestart()])


class Accumulates(Callback):
    """Adds the gradients of earlier steps, and never zeroes them."""

    def __init__(self) -> None:
        self.sums: list[torch.Tensor] | None = None

    def after_train_batch(self, state: Any, logger: Any) -> None:
        gradients = [parameter.grad for parameter in state.model.parameters()]
        self.sums = self.sums or [torch.zeros_like(gradient) for gradient in gradients]
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.mul_(0.5).add_(gradient)
            gradient.copy_(total)


@fault("unsaved_callback_state", "resume callbacks", "Accumulates")
def gradients_accumulate() -> Trainer:
    """A callback adds up gradients over steps in tensors of its own, without a state_dict."""
    return build(callbacks=[Accumulates()])


class Plateau(Callback):
    """Lowers the learning rate when the loss was not lower; saves one of its two fields."""

    def __init__(self) -> None:
        self.best, self.waited = float("inf"), 0

    def batch_end(self, state: Any, logger: Any) -> None:
        self.waited += 1
        self.best = min(self.best, float(state.loss.detach()))
        for group in state.optimizers[0].param_groups:
            group["lr"] = 0.1 * 0.9**self.waited

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]


@fault("unsaved_callback_state", "resume callbacks", "Plateau")
def state_forgets_field() -> Trainer:
    """The state_dict of a callback forgets one of two fields."""
    return build(callbacks=[Plateau()])


class LoadsElsewhere(WarmRestart):
    """Saves its counter, and loads it under another name."""

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["seen"]


@fault("unsaved_callback_state", "resume checkpoint callbacks", "LoadsElsewhere")
def state_loaded_elsewhere() -> Trainer:
    """load_state_dict of a callback sets another attribute than the one that is read."""
    return build(callbacks=[LoadsElsewhere()])


class NeverLoads(WarmRestart):
    """Saves its counter, and inherits a load_state_dict that does nothing."""

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}


@fault("unsaved_callback_state", "resume checkpoint callbacks", "NeverLoads")
def state_never_loaded() -> Trainer:
    """A callback has a state_dict but no load_state_dict."""
    return build(callbacks=[NeverLoads()])


class NoisyWeights(Callback):
    """Adds noise of a generator that the callback holds."""

    def __init__(self) -> None:
        self.random = random.Random(3)

    def batch_end(self, state: Any, logger: Any) -> None:
        with torch.no_grad():
            for parameter in state.model.parameters():
                parameter.add_(self.random.gauss(0, 0.01))


@fault("unsaved_generator unsaved_callback_state", "resume callbacks", "NoisyWeights.random")
def generator_of_callback() -> Trainer:
    """A callback draws from a random.Random that it holds; no checkpoint holds its state."""
    return build(callbacks=[NoisyWeights()])


class FreezeHead(Callback):
    """Freezes the first layer in one step."""

    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == 1:
            state.model.net[0].requires_grad_(False)


@fault("unsaved_callback_state unsaved_module_state", "resume callbacks", "net.0")
def frozen_at_a_step() -> Trainer:
    """A callback freezes a layer at one step; a run resumed after it trains the layer again."""
    return build(callbacks=[FreezeHead()])


class GradientAverage(Algorithm):
    """Replaces gradients by their exponential averages, which it holds."""

    def __init__(self, decay: float = 0.6) -> None:
        self.decay = decay
        self.averages: dict[str, torch.Tensor] = {}

    def after_train_batch(self, state: Any, logger: Any) -> None:
        for name, parameter in state.model.named_parameters():
            average = self.averages.setdefault(name, torch.zeros_like(parameter.grad))
            average.mul_(self.decay).add_(parameter.grad)
            parameter.grad.copy_(average)


@fault("unsaved_algorithm_state", "resume", "GradientAverage")
def method_without_state() -> Trainer:
    """A custom method keeps averages of the gradients and has no state_dict."""
    return build(algorithms=[GradientAverage()])


class TwoSpeeds(Algorithm):
    """Scales gradients by two counters, which it loads the wrong way round."""

    def __init__(self) -> None:
        self.slow, self.fast = 1, 1

    def after_train_batch(self, state: Any, logger: Any) -> None:
        self.slow, self.fast = self.slow + 1, self.fast + 3
        for parameter in state.model.parameters():
            parameter.grad.mul_(self.slow / self.fast)

    def state_dict(self) -> dict[str, Any]:
        return {"slow": self.slow, "fast": self.fast}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.slow, self.fast = state["fast"], state["slow"]


@fault("unsaved_algorithm_state checkpoint_not_stable", "resume checkpoint", "TwoSpeeds")
def method_loads_swapped() -> Trainer:
    """load_state_dict of a custom method swaps two fields."""
    return build(algorithms=[TwoSpeeds()])


class LossTarget(Algorithm):
    """Scales the loss by the first loss that it saw."""

    def __init__(self) -> None:
        self.first: float | None = None

    def after_loss(self, state: Any, logger: Any) -> None:
        if self.first is None:
            self.first = float(state.loss.detach())
        state.loss = state.loss / self.first


@fault("unsaved_algorithm_state", "resume microbatches", "LossTarget")
def scaled_by_first_loss() -> Trainer:
    """A custom method divides by the first loss that it sees and does not save it."""
    return build(algorithms=[LossTarget()])


class CountingSGD(SGD):
    """Warms up by a counter that is an attribute."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.count = 0

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        lrs = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] *= min(1, self.count / 20)
        loss = super().step(closure)
        for group, lr in zip(self.param_groups, lrs, strict=True):
            group["lr"] = lr
        return loss


@fault("unsaved_optimizer_state", "resume", "CountingSGD")
def counter_of_optimizer() -> Trainer:
    """A custom optimizer warms up by a counter that is an attribute, outside of state and param_groups."""
    return build(optimizer=CountingSGD)


class ListMomentum(SGD):
    """Keeps its momentum in a list."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.buffers = [torch.zeros_like(p) for group in self.param_groups for p in group["params"]]

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        parameters = [p for group in self.param_groups for p in group["params"]]
        for parameter, buffer in zip(parameters, self.buffers, strict=True):
            buffer.mul_(0.9).add_(parameter.grad)
            parameter.grad.copy_(buffer)
        super().step()
        return loss


@fault("unsaved_optimizer_state", "resume", "ListMomentum")
def momentum_in_a_list() -> Trainer:
    """A custom optimizer keeps its momentum in a list, outside of state."""
    return build(optimizer=ListMomentum)


class CallCounter:
    """A schedule by the number of its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, state: Any, ssr: float = 1.0) -> float:
        self.calls += 1
        return 1 / self.calls


@fault("unsaved_schedule_state", "resume", "CallCounter")
def schedule_counts_calls() -> Trainer:
    """A custom schedule counts its calls instead of reading the time of the state."""
    return build(schedulers=CallCounter())


@fault("unsaved_schedule_state", "resume", "geometric")
def schedule_in_a_closure() -> Trainer:
    """A schedule is a closure that multiplies a variable in each call."""
    multiplier = 1.0

    def geometric(state: Any, ssr: float = 1.0) -> float:
        nonlocal multiplier
        multiplier *= 0.9
        return multiplier

    return build(schedulers=geometric)


class Forgetful(LRScheduler):
    """A schedule of torch whose state_dict is empty."""

    def __init__(self, optimizer: Any) -> None:
        self.factor = 1.0
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        self.factor *= 0.9
        return [lr * self.factor for lr in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


def with_forgetful(**arguments: Any) -> Trainer:
    """A trainer with a schedule of torch, which needs the optimizer."""
    made: list[Forgetful] = []

    def optimizer(parameters: Any) -> SGD:
        sgd = SGD(parameters, lr=0.1)
        made.append(Forgetful(sgd))
        return sgd

    return build(optimizer=optimizer, schedulers=made, step_schedulers_every_batch=True, **arguments)


@fault("unsaved_schedule_state", "resume", "Forgetful")
def schedule_saves_nothing() -> Trainer:
    """A custom torch schedule overrides state_dict to save nothing."""
    return with_forgetful()


class SampledState(WarmRestart):
    """Samples a random number when it is saved."""

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "mark": float(torch.rand(()))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


@fault("saving_changes_training", "saving checkpoint", "SampledState")
def random_in_state_dict() -> Trainer:
    """The state_dict of a callback samples from the generator of the run, which dropout uses too."""
    return build(dropout_model, callbacks=[SampledState()])


class Rounds(torch.nn.Module):
    """Scales by the number of its calls, of which it restores half."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return x / (1 + 0.1 * self.calls)

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor(self.calls)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.calls = int(state) // 2


@fault("checkpoint_not_stable", "resume checkpoint", "net.2")
def extra_state_halved() -> Trainer:
    """set_extra_state of a nested module restores another number than get_extra_state returned."""
    return build(lambda: Classifier(network(Rounds())))


class FirstMoments(SGD):
    """Keeps momentum in its state, and zeroes it when it is loaded."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for entry in self.state.values():
            entry["momentum_buffer"].zero_()


@fault("checkpoint_not_stable unsaved_optimizer_state", "checkpoint resume", "FirstMoments")
def momentum_zeroed_on_load() -> Trainer:
    """load_state_dict of a custom optimizer zeroes the momentum."""
    return build(optimizer=lambda parameters: FirstMoments(parameters, lr=0.1, momentum=0.9))
