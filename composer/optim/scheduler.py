"""The schedules, under the name that scripts import."""

from __future__ import annotations

from composer.optim.assignment import AssignedSchedule
from composer.optim.compiled import compile_composer_scheduler
from composer.optim.decay_schedules import (
    InverseSquareRootScheduler,
    OneMinusSqrtScheduler,
    WarmupStableDecayScheduler,
)
from composer.optim.plain_schedules import (
    ConstantScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWarmRestartsScheduler,
    ExponentialScheduler,
    LinearScheduler,
    MultiStepScheduler,
    PolynomialScheduler,
    StepScheduler,
)
from composer.optim.plateau import ReduceOnPlateauScheduler
from composer.optim.schedule import ComposerScheduler
from composer.optim.sequential import SequentialScheduler
from composer.optim.warmup_schedules import (
    ConstantWithWarmupScheduler,
    CosineAnnealingWithWarmupScheduler,
    LinearWithWarmupScheduler,
    MultiStepWithWarmupScheduler,
    PolynomialWithWarmupScheduler,
    WithWarmup,
)

__all__ = [
    "AssignedSchedule",
    "ComposerScheduler",
    "ConstantScheduler",
    "ConstantWithWarmupScheduler",
    "CosineAnnealingScheduler",
    "CosineAnnealingWarmRestartsScheduler",
    "CosineAnnealingWithWarmupScheduler",
    "ExponentialScheduler",
    "InverseSquareRootScheduler",
    "LinearScheduler",
    "LinearWithWarmupScheduler",
    "MultiStepScheduler",
    "MultiStepWithWarmupScheduler",
    "OneMinusSqrtScheduler",
    "PolynomialScheduler",
    "PolynomialWithWarmupScheduler",
    "ReduceOnPlateauScheduler",
    "SequentialScheduler",
    "StepScheduler",
    "WarmupStableDecayScheduler",
    "WithWarmup",
    "compile_composer_scheduler",
]
