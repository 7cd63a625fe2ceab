"""Planted faults of what should only watch: evaluation, logging and callbacks; and of compilation and precision."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from composer import Algorithm, Callback, Trainer
from composer.core import LoggerDestination
from composer.core.traits import Traits
from tests.verification.fault import fault
from tests.verification.parts import Classifier, build, dropout_model, loader, network


def with_evaluation(model: Any, **arguments: Any) -> Trainer:
    """A trainer that evaluates twice an epoch."""
    return build(model, eval_dataloader=loader(shuffle=False), eval_interval="3ba", **arguments)


class Evaluated(Classifier):
    """A classifier with a metric."""

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        return {} if is_train else {"confidence": MeanMetric()}

    def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
        metric.update(outputs.softmax(1).amax(1))


class SwitchesOff(Evaluated):
    """Switches a branch off for evaluation, and not on again."""

    def __init__(self) -> None:
        super().__init__()
        self.is_noisy = True

    def forward(self, batch: Any) -> Any:
        return self.net(batch[0] * 1.5 if self.is_noisy else batch[0])

    def eval_forward(self, batch: Any, outputs: Any = None) -> Any:
        self.is_noisy = False
        return self(batch)


@fault("evaluation_changes_training", "evaluation resume", "SwitchesOff")
def flag_left_by_evaluation() -> Trainer:
    """eval_forward switches off an augmentation by a flag of the model and never switches it on again."""
    return with_evaluation(SwitchesOff)


class NormsInTraining(Evaluated):
    """Evaluates in training mode."""

    def __init__(self) -> None:
        super().__init__(network(nn.BatchNorm1d(12)))

    def eval_forward(self, batch: Any, outputs: Any = None) -> Any:
        self.train()
        return self(batch)


@fault("evaluation_changes_training", "evaluation microbatches", "net.2.running_mean")
def batchnorm_in_evaluation() -> Trainer:
    """eval_forward puts the model into training mode: BatchNorm updates its statistics from evaluation data."""
    return with_evaluation(NormsInTraining)


class Calibrated(Evaluated):
    """Sets a temperature in update_metric, which forward uses."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, batch: Any) -> Any:
        return super().forward(batch) / self.temperature

    def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
        super().update_metric(batch, outputs, metric)
        self.temperature.mul_(1.01)


@fault("evaluation_changes_training", "evaluation", "temperature")
def metric_writes_model() -> Trainer:
    """update_metric writes a temperature into the model, which training uses."""
    return with_evaluation(Calibrated)


class SharedNoise(Evaluated):
    """Draws from one generator in training and in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seed", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: Any) -> Any:
        self.seed += 1
        generator = torch.Generator().manual_seed(int(self.seed))
        return self.net(batch[0] + 0.2 * torch.randn(batch[0].shape, generator=generator))


@fault("evaluation_changes_training", "evaluation microbatches", "seed")
def evaluation_draws_noise() -> Trainer:
    """Noise is seeded by a buffer that evaluation advances too, so that training draws other noise after it."""
    return with_evaluation(SharedNoise)


class FreezeInEvaluation(Callback):
    """Freezes the model for evaluation, and unfreezes only its last layer afterwards."""

    def eval_start(self, state: Any, logger: Any) -> None:
        state.model.requires_grad_(False)

    def eval_end(self, state: Any, logger: Any) -> None:
        state.model.net[-1].requires_grad_(True)


@fault("evaluation_changes_training callback_changes_training", "evaluation resume callbacks", "net.0")
def frozen_by_evaluation() -> Trainer:
    """A callback freezes the model for evaluation and forgets to unfreeze the first layer."""
    return with_evaluation(Evaluated, callbacks=[FreezeInEvaluation()])


class OutputMonitor(Callback):
    """Clips outputs, to log their range."""

    def after_forward(self, state: Any, logger: Any) -> None:
        state.outputs = state.outputs.clamp(-0.3, 0.3)
        logger.log_metrics({"outputs/max": state.outputs.detach().max()})


@fault("callback_changes_training", "callbacks", "OutputMonitor")
def monitor_clips_outputs() -> Trainer:
    """A monitoring callback clips the outputs before it logs them."""
    return build(callbacks=[OutputMonitor()])


class GradientMonitor(Callback):
    """Normalizes gradients in place, to log their directions."""

    def after_train_batch(self, state: Any, logger: Any) -> None:
        for name, parameter in state.model.named_parameters():
            logger.log_metrics({f"direction/{name}": parameter.grad.div_(parameter.grad.norm() + 1e-8).mean()})


@fault("callback_changes_training", "callbacks", "GradientMonitor")
def monitor_normalizes_gradients() -> Trainer:
    """A monitoring callback divides the gradients by their norm in place."""
    return build(callbacks=[GradientMonitor()])


class SampleViewer(Callback):
    """Logs a random sample of each batch, chosen with the generator of the process."""

    def batch_end(self, state: Any, logger: Any) -> None:
        row = int(torch.randint(len(state.batch[0]), ()))
        logger.log_metrics({"sample": state.batch[0][row, 0]})


@fault("callback_changes_training", "callbacks", "SampleViewer")
def viewer_draws_numbers() -> Trainer:
    """A callback draws from torch's default generator, so that dropout draws other numbers with it than without."""
    return build(dropout_model, callbacks=[SampleViewer()])


class WeightPeek(Callback):
    """Rounds the weights that it logs, through a view."""

    def batch_end(self, state: Any, logger: Any) -> None:
        weight = state.model.net[0].weight.detach()
        logger.log_metrics({"weight": weight.mul_(1000).round_().div_(1000).mean()})


@fault("callback_changes_training", "callbacks", "WeightPeek")
def monitor_rounds_weights() -> Trainer:
    """A monitoring callback rounds the weights in place: detach() shares memory."""
    return build(callbacks=[WeightPeek()])


class SomeMetrics(LoggerDestination):
    """Keeps a random tenth of the metrics."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.kept = {name: value for name, value in metrics.items() if torch.rand(()) < 0.1}


@fault("logging_changes_training", "loggers", "SomeMetrics")
def logger_draws_numbers() -> Trainer:
    """A custom logger draws from torch's default generator to keep some of the metrics."""
    return build(dropout_model, loggers=[SomeMetrics()])


class Quiet(LoggerDestination):
    """A logger that does nothing."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.last = step


class EditsForLogger(Callback):
    """Clips weights when there is a logger that reports them."""

    def batch_end(self, state: Any, logger: Any) -> None:
        if logger.destinations:
            with torch.no_grad():
                for parameter in state.model.parameters():
                    parameter.clamp_(-0.2, 0.2)


@fault("logging_changes_training callback_changes_training", "loggers callbacks", "EditsForLogger")
def edits_if_logged() -> Trainer:
    """A callback clips the weights, but only if the run has a logger."""
    return build(callbacks=[EditsForLogger()], loggers=[Quiet()])


class LossTap(LoggerDestination):
    """Lowers the learning rate in each step."""

    def batch_end(self, state: Any, logger: Any) -> None:
        for group in state.optimizers[0].param_groups:
            group["lr"] *= 0.9


@fault("logging_changes_training", "loggers", "LossTap")
def logger_edits_optimizer() -> Trainer:
    """A custom logger lowers the learning rate, which is not its business."""
    return build(loggers=[LossTap()])


class Approximate(nn.Module):
    """Another activation when compiled, for speed."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(-0.5, 0.5) if torch.compiler.is_compiling() else torch.tanh(x)


@fault("compile_differs", "compile", "net.2")
def branch_for_compiler() -> Trainer:
    """A module computes something else when it is compiled."""
    return build(lambda: Classifier(network(Approximate())), compile_config={"backend": "eager"})


_calls = [0]


@torch.compiler.assume_constant_result
def next_scale() -> int:
    """The number of calls, which the compiler is told not to repeat."""
    _calls[0] += 1
    return _calls[0]


class Frozen(nn.Module):
    """Scales by a number that changes with each call."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 0.5 * (next_scale() % 2))


@fault("compile_differs", "compile microbatches", "net.2")
def constant_for_compiler() -> Trainer:
    """A function with a side effect is declared constant to the compiler, which calls it once instead of each time."""
    return build(lambda: Classifier(network(Frozen())), compile_config={"backend": "eager"})


def wrong_backend(graph: Any, inputs: Any) -> Any:
    """A backend of the compiler that replaces an operation by a faster one."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target is torch.tanh:
            node.target = torch.nn.functional.hardtanh
    graph.recompile()
    return graph


class Tanh(nn.Module):
    """The function, not the module."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(3 * x)


@fault("compile_differs", "compile", "net.2")
def wrong_compiler_backend() -> Trainer:
    """A custom compiler backend replaces tanh by an approximation."""
    return build(lambda: Classifier(network(Tanh())), compile_config={"backend": wrong_backend})


class UnsafeVariance(nn.Module):
    """The variance as the difference of two large numbers of the type of its input."""

    def forward(self, x: Tensor) -> Tensor:
        large = x + 40
        variance = (large * large).mean(1, keepdim=True) - large.mean(1, keepdim=True).square()
        return x * (variance.abs() + 0.1).rsqrt()


@fault("precision_differs", "precision microbatches", "net.1")
def unsafe_variance() -> Trainer:
    """A module computes a variance as a difference of large numbers, which bfloat16 cannot hold."""
    model = lambda: Classifier(nn.Sequential(nn.Linear(6, 12), UnsafeVariance(), nn.Linear(12, 3)))  # noqa: E731
    return build(model, precision="amp_bf16")


class Positions(nn.Module):
    """Phases of positions that are counted in the type of the input."""

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(1000, 1000 + x.shape[1]).to(x.dtype)
        return x * torch.sin(positions)


@fault("precision_differs", "precision microbatches", "net.1")
def positions_in_bfloat16() -> Trainer:
    """Positions above 256 are held in bfloat16, which rounds them to multiples of four and eight."""
    model = lambda: Classifier(nn.Sequential(nn.Linear(6, 12), Positions(), nn.Linear(12, 3)))  # noqa: E731
    return build(model, precision="amp_bf16")


class Interpolates(Algorithm):
    """Mixes rows; at strength 0 it should do nothing."""

    def __init__(self, strength: float = 0.0) -> None:
        self.strength = strength

    def after_dataloader(self, state: Any, logger: Any) -> None:
        x, y = state.batch
        order = torch.randperm(len(x))
        state.batch = x + self.strength * (x[order] - x), y


@fault("method_not_neutral", "methods", "Interpolates")
def neutral_method_draws() -> Trainer:
    """A custom method at strength 0 still draws random numbers, which changes the dropout of the model."""
    return build(dropout_model, algorithms=[Interpolates(0.0)])


class Shrinks(Algorithm):
    """Label smoothing by hand, with a mistake for smoothing 0."""

    def __init__(self, smoothing: float = 0.0) -> None:
        self.smoothing = smoothing

    def after_loss(self, state: Any, logger: Any) -> None:
        state.loss = state.loss * (0.9 - self.smoothing)


@fault("method_not_neutral", "methods", "Shrinks")
def neutral_method_scales() -> Trainer:
    """A custom method at strength 0 still scales the loss."""
    return build(algorithms=[Shrinks(0.0)])


class Reweights(Algorithm):
    """Scales the loss by a weight of which it declares 1 to be neutral, and adds a constant."""

    __traits__ = Traits(neutral={"weight": 1.0})

    def __init__(self, weight: float = 2.0) -> None:
        self.weight = weight

    def after_loss(self, state: Any, logger: Any) -> None:
        state.loss = state.loss * self.weight + 0.1 * state.loss.square()


@fault("method_not_neutral", "methods", "Reweights")
def declared_setting_not_neutral() -> Trainer:
    """A custom method changes the loss with the setting that its traits declare to be neutral."""
    return build(algorithms=[Reweights()])


class PythonViewer(Callback):
    """Draws from Python's generator, which the augmentation of the data uses too."""

    def batch_start(self, state: Any, logger: Any) -> None:
        random.random()


class PythonDropout(nn.Module):
    """Drops units by Python's generator."""

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.tensor([random.random() > 0.3 for _ in range(x.shape[1])])
        return x * kept if self.training else x


@fault("callback_changes_training", "callbacks microbatches", "PythonViewer")
def viewer_draws_python_numbers() -> Trainer:
    """A callback draws from Python's generator, which a module uses too."""
    return build(lambda: Classifier(network(PythonDropout())), callbacks=[PythonViewer()])
