"""Support for PyTorch schedulers (``torch.optim.lr_scheduler``): validate, scale, and check their number of steps."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, cast

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from composer._numbers import positive
from composer.optim.compiled_schedule import CompiledSchedule
from composer.optim.schedule_times import truncate_to_int
from composer.optim.wrapped_optimizer import is_or_wraps
from composer.warnings import ComposerWarning

__all__ = [
    "added_group_message",
    "check_num_steps",
    "check_torch_schedule",
    "is_torch_schedule",
    "scale_torch_schedule",
    "steps_of",
]

# Class -> the attributes to scale. By name, so that subclasses are not affected.
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
    """Return whether a schedule is a PyTorch scheduler, which counts its steps itself.

    Args:
        scheduler: The schedule.

    >>> is_torch_schedule(lambda state: 1.0)
    False
    """
    return isinstance(scheduler, LRScheduler) and not isinstance(scheduler, CompiledSchedule)


def check_torch_schedule(scheduler: LRScheduler, optimizers: Sequence[Optimizer]) -> None:
    """Raise if the trainer cannot step a PyTorch scheduler.

    Args:
        scheduler: The scheduler.
        optimizers: The optimizers of the trainer.

    Raises:
        TypeError: The scheduler requires a metric.
        ValueError: The scheduler sets the learning rate of another optimizer.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> check_torch_schedule(torch.optim.lr_scheduler.StepLR(optimizer, 1), [optimizer])
    """
    name = type(scheduler).__name__
    if isinstance(scheduler, ReduceLROnPlateau):
        raise TypeError(
            f"schedulers: {name} requires a metric at each step. Use composer.optim.ReduceOnPlateauScheduler("
            f"'eval/Accuracy', mode='max', factor={scheduler.factor}, patience={scheduler.patience}), which reads it "
            f"after evaluations."
        )
    if not any(is_or_wraps(optimizer, scheduler.optimizer) for optimizer in optimizers):
        raise ValueError(
            f"schedulers: {name} sets the learning rate of an optimizer that was not passed as optimizers=. Create "
            f"the scheduler with one of those."
        )


def scale_torch_schedule(scheduler: LRScheduler, ratio: float) -> None:
    """Scale the length of a PyTorch scheduler, in place and before its first step; lengths are truncated to integers.

    Args:
        scheduler: The scheduler.
        ratio: Factor by which its lengths are multiplied; the gamma of an exponential decay is raised to 1 / ratio.

    Raises:
        ValueError: The scheduler cannot be scaled, or a length would become zero.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    >>> scale_torch_schedule(scheduler, 0.5)
    >>> scheduler.T_max
    5
    """
    positive("scale_schedule_ratio", ratio)
    name, untyped = type(scheduler).__name__, cast(Any, scheduler)
    if name not in _SCALED or not type(scheduler).__module__.startswith("torch."):
        listed = ", ".join(_SCALED)
        raise ValueError(
            f"scale_schedule_ratio={ratio}: {name} cannot be scaled. Supported PyTorch schedulers: {listed}. Create it "
            f"with the desired length, or use a scheduler of composer.optim."
        )
    for attribute in _SCALED[name]:
        value = getattr(untyped, attribute)
        if attribute == "gamma":
            scaled: Any = value ** (1 / ratio)
        elif attribute == "milestones":  # a Counter of milestones
            scaled = type(value)({truncate_to_int(step * ratio): times for step, times in value.items()})
        else:
            scaled = truncate_to_int(value * ratio)
            if scaled == 0:
                raise ValueError(f"scale_schedule_ratio={ratio}: {attribute} of {name}, {value}, would become 0.")
        setattr(untyped, attribute, scaled)


def steps_of(scheduler: LRScheduler) -> int | None:
    """Return the number of steps of a scheduler with a fixed total length, or None for others.

    Args:
        scheduler: The scheduler.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> steps_of(torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100))
    100
    """
    untyped, name = cast(Any, scheduler), type(scheduler).__name__
    if name == "OneCycleLR":
        return int(untyped.total_steps)
    if name == "CosineAnnealingLR":
        return int(untyped.T_max)
    if name == "PolynomialLR" or (name == "LinearLR" and untyped.end_factor < untyped.start_factor):
        return int(untyped.total_iters)  # not a warm-up, after which the learning rate is constant
    if name == "LambdaLR":  # those of transformers
        lengths = [getattr(one, "keywords", {}).get("num_training_steps") for one in untyped.lr_lambdas]
        return lengths[0] if lengths and type(lengths[0]) is int else None
    if name == "SequentialLR":
        last = steps_of(untyped._schedulers[-1])
        return None if last is None else int(untyped._milestones[-1]) + last
    return None


def added_group_message(scheduler: LRScheduler) -> str | None:
    """Return what to do about a parameter group that was added after a PyTorch scheduler was made; None without one.

    Args:
        scheduler: The scheduler.

    >>> weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    >>> optimizer = torch.optim.SGD(weights[:1], lr=0.1)
    >>> scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    >>> added_group_message(scheduler) is None
    True
    >>> optimizer.add_param_group({"params": weights[1:], "name": "head"})
    >>> added_group_message(scheduler).split(";")[0]
    "schedulers: LambdaLR does not cover parameter group 1 ('head') of SGD, which was added after it was made"
    """
    known, groups = _number_of_groups(scheduler), scheduler.optimizer.param_groups
    if not is_torch_schedule(scheduler) or known is None or known >= len(groups):
        return None
    name = groups[known].get("name")
    which = f"{known}" if name is None else f"{known} ({name!r})"
    return (
        f"schedulers: {type(scheduler).__name__} does not cover parameter group {which} of "
        f"{type(scheduler.optimizer).__name__}, which was added after it was made; its step failed. Use a schedule of "
        f"composer.optim, which covers added groups, or add all groups before you make the schedule of torch."
    )


def _number_of_groups(scheduler: LRScheduler) -> int | None:
    """Return the number of groups when a scheduler of torch was made, or the least of those it consists of."""
    untyped = cast(Any, scheduler)
    inner = [_number_of_groups(part) for part in getattr(untyped, "_schedulers", ())]
    own = [len(untyped.base_lrs)] if hasattr(untyped, "base_lrs") else []
    return min([*own, *(number for number in inner if number is not None)], default=None)


def check_num_steps(scheduler: LRScheduler, every_batch: bool, epochs: int, batches: int) -> None:
    """Check that a PyTorch scheduler was created for the number of steps that it will take.

    Args:
        scheduler: The scheduler.
        every_batch: Whether it is stepped after every batch; otherwise after every epoch.
        epochs: Number of remaining epochs.
        batches: Number of remaining batches.

    Raises:
        ValueError: The scheduler would be stepped beyond its end, which fails.

    Warns:
        ComposerWarning: Its length suggests that it was meant to be stepped every epoch instead of every batch, or
            the reverse.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    >>> check_num_steps(scheduler, every_batch=True, epochs=10, batches=1000)
    Traceback (most recent call last):
    ValueError: schedulers: OneCycleLR was made for 10 steps, but would be stepped 1000 times. Step it with every epoch:
    step_schedulers_every_batch=False, or make it with total_steps=1000.
    """
    made_for = steps_of(scheduler)
    if made_for is None:
        return
    name, left = type(scheduler).__name__, made_for - int(scheduler.last_epoch)
    steps, unit, other = (batches, "batch", "epoch") if every_batch else (epochs, "epoch", "batch")
    # Closer, as a ratio, to the number of steps of the other mode than to that of this one. One that has been stepped
    # was checked when it began, and has few steps left at its end.
    mistaken = left == made_for and (left**2 < epochs * batches if every_batch else left**2 > epochs * batches)
    remedy = f"Step it with every {other}: step_schedulers_every_batch={not every_batch}"
    if name == "OneCycleLR" and steps > left:
        remedy = f"{remedy}, or make it" if mistaken and every_batch else "Make it"
        taken = f" after the {made_for - left} that it has taken" if left < made_for else ""
        raise ValueError(
            f"schedulers: {name} was made for {made_for} steps, but would be stepped {steps} times{taken}. {remedy} "
            f"with total_steps={made_for - left + steps}."
        )
    if mistaken and epochs < batches:
        warnings.warn(
            f"schedulers: {name} was made for {made_for} steps, but is stepped with every {unit}, {steps} times. "
            f"{remedy}. If this is intended, set step_schedulers_every_batch={every_batch}.",
            ComposerWarning,
            stacklevel=2,
        )
