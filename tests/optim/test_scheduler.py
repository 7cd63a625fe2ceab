"""The names that scripts import."""

from __future__ import annotations

import composer.optim
from composer.optim import scheduler


def test_the_names_of_both_places_are_the_same_things() -> None:
    assert set(scheduler.__all__) <= set(composer.optim.__all__)
    for name in scheduler.__all__:
        assert getattr(composer.optim, name) is getattr(scheduler, name)


def test_the_names_of_the_predecessor() -> None:
    names = """
        ComposerScheduler ConstantScheduler ConstantWithWarmupScheduler CosineAnnealingScheduler
        CosineAnnealingWarmRestartsScheduler CosineAnnealingWithWarmupScheduler ExponentialScheduler LinearScheduler
        LinearWithWarmupScheduler MultiStepScheduler MultiStepWithWarmupScheduler PolynomialScheduler
        PolynomialWithWarmupScheduler StepScheduler compile_composer_scheduler
    """
    assert set(names.split()) <= set(scheduler.__all__)
