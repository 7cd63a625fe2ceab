"""What is to be known of torch's own schedules: which ones a trainer takes, how to scale them, how long they are."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, cast

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from composer._text import positive
from composer.optim.compiled_schedule import CompiledSchedule
from composer.optim.schedule_times import whole_part
from composer.warnings import ComposerWarning

__all__ = ["check_length", "check_torch_schedule", "is_torch_schedule", "scale_torch_schedule", "steps_of"]

# Class -> the attributes that a ratio applies to. By name, so that subclasses are left alone.
_SCALED: dict[str, tuple[str, ...]] = {
    "StepLR": ("step_size",),
    "MultiStepLR": ("milestones",),
    "ConstantLR": ("total_iters",),
    "LinearLR": ("total_iters",),
    "PolynomialLR": ("total_iters",),
    "CosineAnnealingLR": ("T_max",),
    "CosineAnnealingWarmRestarts": ("T_0", "T_i"),
    "ExponentialLR": ("gamma",),
}


def is_torch_schedule(scheduler: object) -> bool:
    """Tell whether a schedule is one of torch, which counts its own steps.

    Args:
        scheduler: The schedule.

    >>> is_torch_schedule(lambda state: 1.0)
    False
    """
    return isinstance(scheduler, LRScheduler) and not isinstance(scheduler, CompiledSchedule)


def check_torch_schedule(scheduler: LRScheduler, optimizers: Sequence[Optimizer]) -> None:
    """Refuse a schedule of torch that a trainer cannot step.

    Args:
        scheduler: The schedule.
        optimizers: The optimizers of the trainer.

    Raises:
        TypeError: It needs a metric.
        ValueError: It sets the learning rate of another optimizer.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> check_torch_schedule(torch.optim.lr_scheduler.StepLR(optimizer, 1), [optimizer])
    """
    name = type(scheduler).__name__
    if isinstance(scheduler, ReduceLROnPlateau):
        raise TypeError(
            f"schedulers: {name} needs a metric at each step. Use composer.optim.ReduceOnPlateauScheduler("
            f"'eval/Accuracy', mode='max', factor={scheduler.factor}, patience={scheduler.patience}), which reads it "
            f"after evaluations."
        )
    if not any(optimizer is scheduler.optimizer for optimizer in optimizers):
        raise ValueError(
            f"schedulers: {name} sets the learning rate of an optimizer that was not given as optimizers=. Make it "
            f"with one of those."
        )


def scale_torch_schedule(scheduler: LRScheduler, ratio: float) -> None:
    """Stretch a schedule of torch by a ratio, in place and before its first step; whole numbers are cut.

    Args:
        scheduler: The schedule.
        ratio: By what its lengths are multiplied; of an exponential decay the rate is taken to the power of 1 / ratio.

    Raises:
        ValueError: It cannot be stretched, or a length would become zero.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    >>> scale_torch_schedule(scheduler, 0.5)
    >>> scheduler.T_max
    5
    """
    positive("scale_schedule_ratio", ratio)
    name, anyone = type(scheduler).__name__, cast(Any, scheduler)
    if name not in _SCALED or not type(scheduler).__module__.startswith("torch."):
        listed = ", ".join(_SCALED)
        raise ValueError(
            f"scale_schedule_ratio={ratio}: {name} cannot be stretched; of torch's schedules these can: {listed}. Make "
            f"it for the length wanted, or use one of composer.optim."
        )
    for attribute in _SCALED[name]:
        value = getattr(anyone, attribute)
        if attribute == "gamma":
            scaled: Any = value ** (1 / ratio)
        elif attribute == "milestones":  # counts how often each stands there
            scaled = type(value)({whole_part(step * ratio): times for step, times in value.items()})
        else:
            scaled = whole_part(value * ratio)
            if scaled == 0:
                raise ValueError(f"scale_schedule_ratio={ratio}: {attribute} of {name}, {value}, would become 0.")
        setattr(anyone, attribute, scaled)


def steps_of(scheduler: LRScheduler) -> int | None:
    """Return after how many steps a schedule that is made for a whole run comes to its end; None for others.

    Args:
        scheduler: The schedule.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> steps_of(torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100))
    100
    """
    anyone, name = cast(Any, scheduler), type(scheduler).__name__
    if name == "OneCycleLR":
        return int(anyone.total_steps)
    if name == "CosineAnnealingLR":
        return int(anyone.T_max)
    if name == "SequentialLR":
        last = steps_of(anyone._schedulers[-1])
        return None if last is None else int(anyone._milestones[-1]) + last
    return None


def check_length(scheduler: LRScheduler, every_batch: bool, epochs: int, batches: int) -> None:
    """Look whether a schedule of torch was made for the number of steps that it will take.

    Args:
        scheduler: The schedule.
        every_batch: Whether it is stepped after every batch, or else after every epoch.
        epochs: Number of epochs still to come.
        batches: Number of batches still to come.

    Raises:
        ValueError: It would be stepped beyond its end, where it fails.

    Warns:
        ComposerWarning: Its length is that of the other way of stepping.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    >>> check_length(scheduler, every_batch=True, epochs=10, batches=1000)
    Traceback (most recent call last):
    ValueError: schedulers: OneCycleLR was made for 10 steps, but would be stepped 1000 times. Step it with every epoch:
    step_schedulers_every_batch=False, or make it with total_steps=1000.
    """
    made_for = steps_of(scheduler)
    if made_for is None:
        return
    name, left = type(scheduler).__name__, made_for - int(scheduler.last_epoch)
    steps, unit, other = (batches, "batch", "epoch") if every_batch else (epochs, "epoch", "batch")
    # Nearer, as a ratio, to the number of steps of the other way than to that of this one.
    mistaken = left**2 < epochs * batches if every_batch else left**2 > epochs * batches
    remedy = f"Step it with every {other}: step_schedulers_every_batch={not every_batch}"
    if name == "OneCycleLR" and steps > left:
        remedy = f"{remedy}, or make it" if mistaken and every_batch else "Make it"
        raise ValueError(
            f"schedulers: {name} was made for {made_for} steps, but would be stepped {steps} times. {remedy} with "
            f"total_steps={made_for - left + steps}."
        )
    if mistaken and epochs < batches:
        warnings.warn(
            f"schedulers: {name} was made for {made_for} steps, but is stepped with every {unit}, {steps} times. "
            f"{remedy}; if that is meant, set step_schedulers_every_batch={every_batch}.",
            ComposerWarning,
            stacklevel=2,
        )
