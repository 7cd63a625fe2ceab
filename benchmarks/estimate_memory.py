"""Compare the estimate of a training's peak memory with what torch's profiler measures, for 67 configurations."""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Sampler

from benchmarks import environment
from benchmarks.allocations import Allocations
from benchmarks.estimate_models import MODELS, NUM_CLASSES
from benchmarks.report import Goal, Report
from composer import Trainer, algorithms
from composer.estimation.recorder import MemoryRecorder
from composer.memory.allocations import AllocationLog
from composer.models import ComposerClassifier
from composer.optim import DecoupledAdamW, DecoupledSGDW, muon_and_adamw

MIB = 1 << 20
# The estimate's last step is that of the last batch.
BATCHES, STEPS = 4, 3


class SignMomentum(Optimizer):
    """An optimizer that is not torch's, as users write them: the update of Lion, a parameter at a time.

    Args:
        parameters: What it trains.
        lr: The learning rate.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                update = (average * first + parameter.grad * (1 - first)).sign_()
                parameter.add_(update, alpha=-group["lr"])
                average.lerp_(parameter.grad, 1 - second)
        return loss


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer | list[Optimizer]]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 0.01),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), 0.01, momentum=0.9),
    "sgd-foreach": lambda model: torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, foreach=True),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), 1e-3),
    "adamw-single": lambda model: torch.optim.AdamW(model.parameters(), 1e-3, foreach=False),
    "adamw-foreach": lambda model: torch.optim.AdamW(model.parameters(), 1e-3, foreach=True),
    "adamw-fused": lambda model: torch.optim.AdamW(model.parameters(), 1e-3, fused=True),
    "amsgrad": lambda model: torch.optim.Adam(model.parameters(), 1e-3, amsgrad=True, foreach=True),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), 1e-2),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), 1e-3, momentum=0.9),
    "adafactor": lambda model: torch.optim.Adafactor(model.parameters(), 1e-2),
    "decoupled-adamw": lambda model: DecoupledAdamW(model.parameters(), 1e-3, weight_decay=1e-5),
    "decoupled-sgd": lambda model: DecoupledSGDW(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-5),
    "muon": muon_and_adamw,
    "lbfgs": lambda model: torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=5),
    "lion": lambda model: SignMomentum(model.parameters(), 1e-4),
    "nadam": lambda model: torch.optim.NAdam(model.parameters(), 1e-3, foreach=True),
}


@dataclass(frozen=True)
class Configuration:
    """A training whose memory is compared.

    Attributes:
        model: Name of the model.
        optimizer: Name of the optimizer.
        methods: Methods, each as its name and arguments in Python.
        batch: Number of samples in a batch.
        evaluation: Number of samples in a batch of the evaluation; 0 for none.
        settings: Further arguments of the trainer.
    """

    model: str
    optimizer: str = "adamw"
    methods: tuple[str, ...] = ()
    batch: int = 32
    evaluation: int = 0
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def label(self) -> str:
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        evaluation = [f"evaluation={self.evaluation}"] if self.evaluation else []
        return ", ".join([self.model, self.optimizer, f"batch={self.batch}", *self.methods, *settings, *evaluation])


BF16 = {"precision": "amp_bf16"}
MICRO = {"device_train_microbatch_size": 8}
_C = Configuration
CONFIGURATIONS = (
    # Perceptrons: parameters, gradients and optimizer states are most of the memory.
    _C("mlp"),
    _C("mlp", "sgd", batch=256),
    _C("mlp", "adamw-foreach"),
    _C("mlp", "adamw-fused"),
    _C("mlp", "amsgrad"),
    _C("mlp", "muon"),
    _C("mlp", "adafactor"),
    _C("mlp", "rmsprop", ("EMA(half_life='2ba')",)),
    _C("mlp", "adagrad", ("GradientClipping('norm', 1.0)",)),
    _C("mlp", "nadam", settings=BF16),
    _C("mlp", "decoupled-adamw", ("ZClip()",), settings=MICRO),
    _C("mlp", "momentum", batch=64, evaluation=2048),
    # Convolutions: activations, and the layouts of oneDNN.
    _C("convnet", "momentum"),
    _C("convnet", "sgd", settings=BF16),
    _C("convnet", "decoupled-sgd", ("ChannelsLast()",)),
    _C("convnet", "adamw", ("BlurPool()", "LabelSmoothing()"), settings=MICRO),
    _C("convnet", "adamw", ("MixUp()", "EMA(half_life='2ba')", "ChannelsLast()"), settings=BF16),
    _C("convnet", "momentum", ("SAM()", "CutMix()")),
    _C("convnet", "momentum", ("ProgressiveResizing()",), batch=64),
    _C("convnet", "momentum", ("GhostBatchNorm(8)",)),
    _C("convnet", "sgd", ("SelectiveBackprop(start=0.0, end=1.0)",)),
    _C("convnet", "adamw", ("SqueezeExcite()", "CutOut()"), evaluation=128),
    _C("resnet", "momentum"),
    _C("resnet", "sgd-foreach", ("ChannelsLast()", "GradientClipping('norm', 1.0)"), settings=BF16),
    _C("resnet", "momentum", ("SWA(swa_start='0.25dur', swa_end='0.9dur', update_interval='1ba')",)),
    _C("resnet", "adamw", ("ColOut()", "WeightStandardization()")),
    _C("resnet", "adamw-fused", ("EMA(half_life='2ba')",), settings=BF16 | MICRO),
    _C("resnet", "momentum", ("LayerFreezing(freeze_start=0.25)",)),
    _C("resnet", "momentum", ("GradientClipping('adaptive', 0.1)",), batch=16),
    _C("mobile", "rmsprop"),
    _C("mobile", "momentum", ("ChannelsLast()",), settings=BF16),
    _C("group-norms", "adamw"),
    _C("group-norms", "adamw", ("LowPrecisionGroupNorm()",), settings=BF16),
    _C("unet", "adamw", batch=16),
    _C("unet", "adamw", ("ChannelsLast()",), batch=16, settings=BF16),
    # Transformers.
    _C("vit", "adamw"),
    _C("vit", "adamw", ("MixUp()", "LabelSmoothing()"), settings=BF16),
    _C("vit", "muon", ("EMA(half_life='2ba')",), settings=BF16 | MICRO),
    _C("gpt", "adamw", batch=16),
    _C("gpt", "adamw-foreach", batch=16, settings=BF16),
    _C("gpt", "adamw-fused", batch=16, settings=BF16),
    _C("gpt", "decoupled-adamw", ("GradientClipping('norm', 1.0)",), settings=MICRO),
    _C("gpt", "adamw", ("LowPrecisionLayerNorm()", "NEFTune()"), batch=16, settings=BF16),
    _C("gpt", "adamw", ("SAM()",), batch=16),
    _C("gpt", "muon", batch=8),
    _C("gpt", "adafactor", batch=16, evaluation=64),
    _C("gpt", "adamw", ("PostHocEMA(snapshot_interval='0.5dur')",), batch=8),
    _C("gpt", "adamw", ("GatedLinearUnits()",), batch=16),
    _C("gpt-spelled-out", "adamw", batch=16),
    _C("gpt-spelled-out", "adamw", batch=16, settings=BF16),
    _C("gpt-recompute", "adamw"),
    _C("gpt-recompute", "adamw-fused", settings=BF16),
    _C("gpt-attention-dropout", "adamw", batch=16),
    _C("llama", "adamw", batch=16),
    _C("llama", "adamw-foreach", ("GradientClipping('value', 1.0)",), batch=16, settings=BF16),
    _C("llama-recompute", "muon"),
    _C("encoder", "adamw", batch=16),
    # Recurrent ones and embeddings.
    _C("lstm", "adamw"),
    _C("gru", "momentum"),
    _C("bag", "adagrad"),
    # What fresh configurations were wrong about.
    _C("packed-gru", "adamw"),
    _C("padded-encoder", "adamw", batch=16, evaluation=32),
    _C("autoencoder", "adamw"),
    _C("convnet-float64", "adamw", batch=16),
    _C("mlp", "adamw", ("Factorize()",), batch=512),
    _C("mlp", "lbfgs"),
    _C("gpt-tied", "lion", batch=16),
)


class Samples(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Inputs and labels, each a tensor of its own."""

    def __init__(self, sample: Callable[[], Tensor], count: int) -> None:
        self.values = [(sample(), torch.tensor(i % NUM_CLASSES)) for i in range(count)]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.values[index]


def arguments_of(
    configuration: Configuration, data: Samples, evaluated: Samples | None, sampler: Sampler[Any] | None = None
) -> dict[str, Any]:
    """Return the arguments of the trainer.

    Args:
        configuration: What is trained.
        data: The samples of the training.
        evaluated: Those of the evaluation.
        sampler: Draws the samples of a rank; None for all in order.
    """
    torch.manual_seed(0)
    model = ComposerClassifier(MODELS[configuration.model].build(), num_classes=NUM_CLASSES)
    names = {name: getattr(algorithms, name) for name in algorithms.__all__}
    methods = [eval(text, dict(names)) for text in configuration.methods]
    return {
        "model": model,
        "optimizers": OPTIMIZERS[configuration.optimizer](model),
        "train_dataloader": DataLoader(data, configuration.batch, sampler=sampler),
        "eval_dataloader": None if evaluated is None else DataLoader(evaluated, configuration.evaluation),
        "algorithms": methods,
        "callbacks": [],
        "max_duration": f"{BATCHES}ba",
        "device": "cpu",
        "progress_bar": False,
        **configuration.settings,
    }


def measured(arguments: Callable[[], dict[str, Any]], device: str = "cpu") -> int:
    """Return the peak in bytes of everything that torch allocates while a model is built and trained.

    Args:
        arguments: Makes the arguments of the trainer.
        device: "cpu" or "cuda".
    """
    with Allocations(device) as allocations:
        trainer = Trainer(**arguments())
        trainer.fit()
        trainer.close()
    return allocations.whole.peak


def estimated(arguments: Callable[[], dict[str, Any]], *, cuda: bool = False, processes: int = 1) -> dict[str, Any]:
    """Return the estimate of the same, without computing.

    Args:
        arguments: Makes the arguments of the trainer.
        cuda: Whether to estimate for a GPU.
        processes: Number of ranks, all but one simulated until this process ends.
    """
    return logged(arguments, cuda=cuda, processes=processes)[0]


def logged(
    arguments: Callable[[], dict[str, Any]], *, cuda: bool = False, processes: int = 1
) -> tuple[dict[str, Any], AllocationLog]:
    """Return the estimate, and the allocations that it counts.

    Args:
        arguments: As for :func:`estimated`.
        cuda: Whether to estimate for a GPU.
        processes: Number of ranks.
    """
    with tempfile.TemporaryDirectory() as folder:
        probe = MemoryRecorder(Path(folder), STEPS, cuda=cuda, processes=processes)
        trainer = Trainer(**probe.init(arguments(), {}))
        probe.fit(trainer, trainer.fit, {})
        return dict(probe.result()), probe.log


def compare(configuration: Configuration) -> tuple[int, dict[str, Any]]:
    """Return the measured peak in bytes, and the estimate.

    Args:
        configuration: What is trained.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sample = MODELS[configuration.model].sample
    data = Samples(sample, BATCHES * configuration.batch)
    evaluated = Samples(sample, 2 * configuration.evaluation) if configuration.evaluation else None

    def arguments() -> dict[str, Any]:
        return arguments_of(configuration, data, evaluated)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truth = measured(arguments)
        gc.collect()
        estimate = estimated(arguments)
    gc.collect()
    return truth, estimate


def measure(configurations: Iterable[Configuration] = CONFIGURATIONS, *, verbose: bool = False) -> Report:
    """Compare all configurations.

    Args:
        configurations: Which.
        verbose: Whether to print each when it is done.
    """
    compared: dict[str, tuple[int, dict[str, Any]]] = {}
    for each in configurations:
        compared[each.label] = compare(each)
        if verbose:
            print(line(each.label, *compared[each.label]), flush=True)
    notes = [
        f"Measured: the memory events of torch's profiler from the building of the model to the end of "
        f"{BATCHES} batches and an evaluation, on one thread.",
        f"Estimated: {STEPS} steps without computing, the last at the end of the run.",
    ]
    title = "Estimated and measured peak memory of training on the CPU"
    return report(compared, notes, name="estimate_memory", title=title, below=3.0)


def line(label: str, truth: int, estimate: Mapping[str, Any]) -> str:
    """Return a comparison in a line.

    Args:
        label: Of the configuration.
        truth: The measured peak in bytes.
        estimate: The estimate.
    """
    error, at = 100 * (estimate["peak"] / truth - 1), f"{estimate['stage']} {estimate['module']}"
    return f"{error:+6.2f} %  {truth / MIB:8.2f} MiB  {label}  ({at})"


def report(
    compared: Mapping[str, tuple[int, Mapping[str, Any]]], notes: list[str], *, name: str, title: str, below: float
) -> Report:
    """Return the report of comparisons.

    Args:
        compared: Measured peak in bytes and estimate, by configuration.
        notes: How it was measured.
        name: Name of the benchmark.
        title: What was measured.
        below: The goal for errors below the truth, in per cent.
    """
    samples = {
        label: {"measured": truth, "estimated": estimate["peak"], "error": estimate["peak"] / truth - 1}
        for label, (truth, estimate) in compared.items()
    }
    errors = [100 * each["error"] for each in samples.values()]
    low = [error for error in errors if error < 0]
    lowest = -min(low, default=0.0)
    return Report(
        name=name,
        title=title,
        columns=["configuration", "MiB measured", "MiB estimated", "error in %"],
        rows=[
            [label, each["measured"] / MIB, each["estimated"] / MIB, f"{100 * each['error']:+.2f}"]
            for label, each in samples.items()
        ],
        goals=[
            Goal("median of the absolute errors", statistics.median(map(abs, errors)), 3.0, "%"),
            Goal("largest absolute error", max(map(abs, errors)), 10.0, "%"),
            Goal("largest error below the truth", lowest, below, "%"),
        ],
        notes=[
            f"{len(errors)} configurations; {len(low)} estimates lie below the truth, by at most {lowest:.2f} %.",
            *notes,
        ],
        samples=samples,
        machine=environment.describe("cpu"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="configurations whose label holds this text")
    options = parser.parse_args()
    chosen = [each for each in CONFIGURATIONS if options.only in each.label]
    result = measure(chosen, verbose=True)
    print(result.text())
    if not options.only:
        result.write()


if __name__ == "__main__":
    main()
