"""Optimizers, parameter groups, the learning-rate finder, and learning-rate schedulers."""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        **dict.fromkeys(("DecoupledAdamW",), "composer.optim.decoupled_adam"),
        **dict.fromkeys(("DecoupledSGDW",), "composer.optim.decoupled_sgd"),
        **dict.fromkeys(("parameter_groups",), "composer.optim.param_groups"),
        **dict.fromkeys(("RangeTest",), "composer.optim.lr_finder"),
        **dict.fromkeys(("mup_groups", "scale_readout"), "composer.optim.mup"),
        **dict.fromkeys(("MuonAdamW", "hidden_matrices", "muon_and_adamw"), "composer.optim.muon"),
        "AssignedSchedule": "composer.optim.schedule_assignment",
        "ComposerScheduler": "composer.optim.schedule",
        "ReduceOnPlateauScheduler": "composer.optim.reduce_on_plateau",
        "SequentialScheduler": "composer.optim.sequential_schedule",
        "compile_composer_scheduler": "composer.optim.compiled_schedule",
        **dict.fromkeys(
            ("InverseSquareRootScheduler", "OneMinusSqrtScheduler", "WarmupStableDecayScheduler"),
            "composer.optim.sqrt_and_wsd_schedules",
        ),
        **dict.fromkeys(
            (
                "ConstantScheduler",
                "CosineAnnealingScheduler",
                "CosineAnnealingWarmRestartsScheduler",
                "ExponentialScheduler",
                "LinearScheduler",
                "MultiStepScheduler",
                "PolynomialScheduler",
                "StepScheduler",
            ),
            "composer.optim.basic_schedules",
        ),
        **dict.fromkeys(
            (
                "ConstantWithWarmupScheduler",
                "CosineAnnealingWithWarmupScheduler",
                "LinearWithWarmupScheduler",
                "MultiStepWithWarmupScheduler",
                "PolynomialWithWarmupScheduler",
                "WithWarmup",
            ),
            "composer.optim.warmup_schedules",
        ),
    },
)
