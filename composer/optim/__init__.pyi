"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer.optim.basic_schedules import (
    ConstantScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWarmRestartsScheduler,
    ExponentialScheduler,
    LinearScheduler,
    MultiStepScheduler,
    PolynomialScheduler,
    StepScheduler,
)
from composer.optim.compiled_schedule import compile_composer_scheduler
from composer.optim.decoupled_adam import DecoupledAdamW
from composer.optim.decoupled_sgd import DecoupledSGDW
from composer.optim.lr_finder import RangeTest
from composer.optim.muon import MuonAdamW, hidden_matrices, muon_and_adamw
from composer.optim.mup import mup_groups, scale_readout
from composer.optim.param_groups import parameter_groups
from composer.optim.reduce_on_plateau import ReduceOnPlateauScheduler
from composer.optim.schedule import ComposerScheduler
from composer.optim.schedule_assignment import AssignedSchedule
from composer.optim.sequential_schedule import SequentialScheduler
from composer.optim.sqrt_and_wsd_schedules import (
    InverseSquareRootScheduler,
    OneMinusSqrtScheduler,
    WarmupStableDecayScheduler,
)
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
    "DecoupledAdamW",
    "DecoupledSGDW",
    "ExponentialScheduler",
    "InverseSquareRootScheduler",
    "LinearScheduler",
    "LinearWithWarmupScheduler",
    "MultiStepScheduler",
    "MultiStepWithWarmupScheduler",
    "MuonAdamW",
    "OneMinusSqrtScheduler",
    "PolynomialScheduler",
    "PolynomialWithWarmupScheduler",
    "RangeTest",
    "ReduceOnPlateauScheduler",
    "SequentialScheduler",
    "StepScheduler",
    "WarmupStableDecayScheduler",
    "WithWarmup",
    "compile_composer_scheduler",
    "hidden_matrices",
    "muon_and_adamw",
    "mup_groups",
    "parameter_groups",
    "scale_readout",
]
