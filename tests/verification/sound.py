"""Trainers without a fault, of parts of the library at random: :func:`sound_case`, ``case_0`` to ``case_199``."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from composer import Algorithm, Callback, ComposerModel, DataSpec, Trainer, algorithms, callbacks, dist, rng
from composer import optim as schedules
from composer.core.traits import traits_of
from composer.models import ComposerClassifier, UNet
from composer.optim import DecoupledAdamW, DecoupledSGDW, MuonAdamW, parameter_groups
from tests.verification import sound_parts as parts
from tests.verification.parts import BATCH, CLASSES, FEATURES, SEED, Rows, Texts, rows

__all__ = ["COUNT", "describe", "sound_case"]

COUNT = 200

Methods = Sequence[Callable[[], Algorithm]]
_Choice = random.Random

_ANY_MODEL: Methods = (
    lambda: algorithms.EMA(half_life="3ba"),
    lambda: algorithms.EMA(half_life=None, smoothing=0.9, ema_start="2ba", update_interval="2ba"),
    lambda: algorithms.SWA(swa_start="0.5dur", swa_end="0.9dur", update_interval="1ba"),
    lambda: algorithms.GradientClipping("norm", 0.5),
    lambda: algorithms.GradientClipping("value", 0.05),
    lambda: algorithms.GradientClipping("adaptive", 0.1),
    lambda: algorithms.ZClip(warmup_steps=3),
    lambda: algorithms.SpikeSkip(window=4),
    lambda: algorithms.SAM(rho=0.05),
    lambda: algorithms.SAM(rho=0.05, interval=2),
    lambda: algorithms.LayerFreezing(freeze_start=0.2, freeze_level=0.7, update_interval="1ba"),
    lambda: algorithms.PostHocEMA(snapshot_interval="4ba"),
    parts.SavedAverage,
    parts.ScaleGradients,
)
_CLASSES: Methods = (
    lambda: algorithms.LabelSmoothing(0.1),
    lambda: algorithms.MixUp(0.2),
    lambda: algorithms.MixUp(0.4, per_sample=True),
    lambda: algorithms.MixUp(0.2, interpolate_loss=True),
)
_IMAGES: Methods = (
    lambda: algorithms.BlurPool(min_channels=1),
    algorithms.ChannelsLast,
    lambda: algorithms.CutMix(1.0),
    lambda: algorithms.CutMix(0.5, per_sample=True),
    lambda: algorithms.CutOut(1, 0.4),
    lambda: algorithms.ColOut(0.2, 0.2),
    lambda: algorithms.RandAugment(severity=3, depth=1, on_device=True),
    lambda: algorithms.AugMix(depth=2, width=2, on_device=True),
    lambda: algorithms.SqueezeExcite(latent_channels=4, min_channels=4),
    lambda: algorithms.WeightStandardization(),
    lambda: algorithms.StochasticDepth("Block", "sample", 0.3),
    lambda: algorithms.StochasticDepth("Block", "block", 0.3, "uniform"),
    lambda: algorithms.Factorize(min_channels=4, latent_channels=2, factorize_linears=False),
    lambda: algorithms.ProgressiveResizing(initial_scale=0.5, size_increment=2),
    lambda: algorithms.SelectiveBackprop(start=0.3, end=0.9, keep=0.5),
)
_TEXTS: Methods = (
    lambda: algorithms.NEFTune(5.0),
    lambda: algorithms.SeqLengthWarmup(duration=0.6, min_seq_length=3, max_seq_length=7, step_size=2),
)
_SCHEDULES: Sequence[Callable[[], Any]] = (
    lambda: None,
    schedules.CosineAnnealingScheduler,
    lambda: schedules.CosineAnnealingWithWarmupScheduler(t_warmup="2ba"),
    lambda: schedules.LinearWithWarmupScheduler(t_warmup="3ba"),
    lambda: schedules.WarmupStableDecayScheduler(t_warmup="1ba", t_decay="0.3dur"),
    lambda: schedules.StepScheduler(step_size="3ba"),
    lambda: schedules.MultiStepScheduler(milestones=["2ba", "5ba"]),
    lambda: schedules.ExponentialScheduler(gamma=0.9, decay_period="1ba"),
    lambda: schedules.InverseSquareRootScheduler(t_warmup="2ba"),
    lambda: schedules.PolynomialScheduler(power=2.0),
    schedules.LinearScheduler,
    lambda: schedules.CosineAnnealingWarmRestartsScheduler(t_0="3ba"),
    lambda: parts.warm_and_fall,
)
_CALLBACKS: Sequence[Callable[[], Callback]] = (
    parts.LossHistory,
    parts.WeightNorms,
    callbacks.LRMonitor,
    callbacks.NaNMonitor,
    lambda: callbacks.OptimizerMonitor(batch_log_interval=2),
    lambda: callbacks.SpeedMonitor(window_size=2),
    lambda: callbacks.RuntimeEstimator(skip_batches=1),
    lambda: callbacks.CallbackTimer(batch_log_interval=2),
    lambda: callbacks.GarbageCollector(interval="4ba"),
)


def sound_case(number: int) -> Trainer:
    """Return a trainer without a fault, not fitted yet; it trains for 8 steps.

    Args:
        number: Which one, from 0 to ``COUNT`` - 1; the same number gives the same trainer in any process.

    Raises:
        ValueError: The number is out of range.
    """
    if not 0 <= number < COUNT:
        raise ValueError(f"number must be from 0 to {COUNT - 1}; got {number}.")
    choice = random.Random(number)
    rng.seed_all(SEED + number)
    model, dataset, methods, evaluation = _FAMILIES[number % len(_FAMILIES)](choice)
    chosen = _compatible([make() for make in choice.sample(methods, choice.choice([0, 1, 1, 2, 3]))])
    data = _loader(choice, dataset)
    optimizer = _optimizer(choice, model)
    arguments: dict[str, Any] = {"schedulers": choice.choice(_SCHEDULES)()}
    # SAM replaces the optimizer, so that the schedule would be that of another one.
    if (
        type(optimizer) is SGD
        and choice.random() < 0.2
        and not any(isinstance(each, algorithms.SAM) for each in chosen)
    ):
        arguments = {"schedulers": StepLR(optimizer, 2), "step_schedulers_every_batch": True}
    if choice.random() < 0.5:
        arguments["eval_dataloader"] = DataLoader(evaluation, BATCH)
        arguments["eval_interval"] = choice.choice(["3ba", "1ep"])
    # BatchNorm1d needs two samples, and with 3 in a microbatch one may be left.
    needs_two = any(isinstance(module, nn.BatchNorm1d) for module in model.modules())
    sizes = [None, None, None, 4, 2, 4 if needs_two else 3]
    return Trainer(
        model=model,
        train_dataloader=data,
        optimizers=optimizer,
        algorithms=chosen,
        callbacks=[make() for make in choice.sample(_CALLBACKS, choice.choice([0, 0, 1, 2]))],
        device_train_microbatch_size=choice.choice(sizes),
        max_duration="8ba",
        precision="amp_bf16" if choice.random() < 0.12 else "fp32",
        seed=SEED + number,
        progress_bar=False,
        **arguments,
    )


def describe(number: int) -> str:
    """Return what a case is made of, in one line.

    Args:
        number: Which one.
    """
    state = sound_case(number).state
    methods = ", ".join(map(repr, state.algorithms)) or "no method"
    spec = state.train_phase.loader
    data = type(getattr(spec.dataloader, "dataset", spec.dataloader)).__name__
    optimizers = ", ".join(type(each).__name__ for each in state.optimizers)
    microbatch = state.device_train_microbatch_size
    return f"{type(state.model).__name__} on {data}: {methods}; {optimizers}; microbatches {microbatch}"


def __getattr__(name: str) -> Callable[[], Trainer]:
    """Return ``case_17`` as a function without arguments that another process can import."""
    prefix, _, number = name.partition("_")
    if prefix != "case" or not number.isdecimal() or not int(number) < COUNT:
        raise AttributeError(f"There is no sound case {name!r}; they are case_0 to case_{COUNT - 1}.")

    def case() -> Trainer:
        return sound_case(int(number))

    case.__name__ = case.__qualname__ = name
    return case


def _compatible(methods: Sequence[Algorithm]) -> list[Algorithm]:
    """Leave out methods that conflict with an earlier one, or do the same."""
    kept: list[Algorithm] = []
    for method in methods:
        if not any(_conflict(method, other) for other in kept):
            kept.append(method)
    return kept


def _conflict(method: Algorithm, other: Algorithm) -> bool:
    one, two = traits_of(method), traits_of(other)
    names = type(method).__name__, type(other).__name__
    declared = names[0] in two.conflicts_with or names[1] in one.conflicts_with
    return names[0] == names[1] or declared or bool(one.claims & two.claims)


def _loader(choice: _Choice, dataset: Any) -> Any:
    """A loader of the data in one of many ways that are right."""
    workers = 2 if choice.random() < 0.08 else 0
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return DataLoader(dataset, BATCH, num_workers=workers)
    load = functools.partial(DataLoader[Any], dataset, BATCH, num_workers=workers)
    number = len(dataset)
    return choice.choice(
        [
            lambda: load(shuffle=True),
            lambda: load(shuffle=True, drop_last=True),
            lambda: load(shuffle=True, generator=torch.Generator().manual_seed(9)),
            lambda: load(shuffle=False),
            lambda: DataSpec(load(shuffle=True)),
            lambda: load(sampler=SubsetRandomSampler(range(number - 4))),
            lambda: load(sampler=WeightedRandomSampler([1 + index % 3 for index in range(number)], number)),
            lambda: load(
                sampler=DistributedSampler(dataset, dist.get_world_size(), dist.get_global_rank(), shuffle=True)
            ),
        ]
    )()


def _optimizer(choice: _Choice, model: nn.Module) -> Optimizer:
    """An optimizer, with one or more groups of parameters."""
    groups: Any = list(model.parameters())
    if choice.random() < 0.3:
        groups = parameter_groups(model, weight_decay=1e-5)
    makers: list[Callable[[], Optimizer]] = [
        lambda: SGD(groups, lr=0.05),
        lambda: SGD(groups, lr=0.05, momentum=0.9, nesterov=True),
        lambda: DecoupledSGDW(groups, lr=0.05, momentum=0.9, weight_decay=1e-4),
        lambda: Adam(groups, lr=0.003),
        lambda: AdamW(groups, lr=0.003, amsgrad=True),
        lambda: DecoupledAdamW(groups, lr=0.003),
        lambda: RMSprop(groups, lr=0.001),
        lambda: parts.SignMomentum(groups),
    ]
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        makers.append(lambda: MuonAdamW(model, lr=0.01))
    return choice.choice(makers)()


_Family = tuple[ComposerModel, Any, Methods, Any]


def _vectors(choice: _Choice) -> _Family:
    """A network of vectors."""
    width = choice.choice([8, 12, 16])
    between = choice.choice(
        [
            nn.Identity,
            lambda: nn.BatchNorm1d(width),
            lambda: nn.LayerNorm(width),
            lambda: nn.GroupNorm(4, width),
            lambda: nn.Dropout(0.3),
            lambda: nn.Sequential(nn.BatchNorm1d(width), nn.Dropout(0.2)),
        ]
    )()
    net = nn.Sequential(nn.Linear(FEATURES, width), between, nn.GELU(), parts.Dense(width), nn.Linear(width, CLASSES))
    data = choice.choice([rows, Rows, parts.FixedNoise, parts.RandomlyAugmented, parts.ShardedStream])()
    methods = [*_ANY_MODEL, *_CLASSES, lambda: algorithms.StochasticDepth("Dense", "sample", 0.3)]
    if any(isinstance(module, nn.Dropout) for module in net.modules()):
        methods.append(lambda: algorithms.GyroDropout(0.3, sigma=8, tau=2))
    if any(isinstance(module, nn.BatchNorm1d) for module in net.modules()):
        methods.append(lambda: algorithms.GhostBatchNorm(4))
    return ComposerClassifier(net, num_classes=CLASSES), data, methods, Rows()


def _pictures(choice: _Choice) -> _Family:
    """A small residual network."""

    def norm() -> nn.Module:
        return nn.GroupNorm(2, 8) if is_grouped else nn.BatchNorm2d(8)

    is_grouped = choice.random() < 0.5
    stem = [nn.Conv2d(3, 8, 3, padding=1, bias=False), norm(), nn.ReLU(), nn.MaxPool2d(2)]
    blocks = [parts.Block(8, norm()) for _ in range(choice.choice([2, 3]))]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(choice.choice([0.0, 0.2])), nn.Linear(8, CLASSES)]
    model = ComposerClassifier(nn.Sequential(*stem, *blocks, *tail), num_classes=CLASSES)
    methods = [*_ANY_MODEL, *_CLASSES, *_IMAGES, *_IMAGES]
    if not is_grouped:
        methods.append(lambda: algorithms.GhostBatchNorm(4))
    return model, parts.images(choice.choice([44, 48])), methods, parts.images(16)


def _words(choice: _Choice) -> _Family:
    """A transformer of padded rows of tokens."""
    model = parts.Transformer(choice.choice([0.0, 0.2]), choice.random() < 0.5)
    return model, Texts(), [*_ANY_MODEL, *_TEXTS, *_TEXTS], Texts()


def _numbers(choice: _Choice) -> _Family:
    """A regression with two losses and a buffer of its own."""
    center = choice.choice([nn.Identity, lambda: nn.LayerNorm(12), lambda: parts.RunningCenter(12)])()
    net = nn.Sequential(nn.Linear(FEATURES, 12), center, nn.Tanh(), nn.Linear(12, CLASSES))
    data = choice.choice([Rows, parts.RandomlyAugmented, rows])()
    return parts.Regressor(net), data, _ANY_MODEL, Rows()


def _pixels(choice: _Choice) -> _Family:
    """A U-Net of the library."""
    model = UNet(num_classes=CLASSES, in_channels=3, widths=choice.choice([(4, 4), (4, 6)]))
    return model, parts.masks(choice.choice([24, 28])), _ANY_MODEL, parts.masks(8)


# Segmentation takes longest.
_FAMILIES = (_vectors, _pictures, _words, _numbers, _vectors, _pictures, _words, _vectors, _pictures, _pixels)
