"""Torch's own schedules: which are taken, how they scale, whether they have the right length."""

from __future__ import annotations

import functools
import warnings

import pytest
from torch.optim import lr_scheduler as theirs

from composer.optim.scheduler import LinearScheduler, compile_composer_scheduler
from composer.optim.torch_schedules import (
    check_num_steps,
    check_torch_schedule,
    is_torch_schedule,
    scale_torch_schedule,
    steps_of,
)
from composer.warnings import ComposerWarning
from tests.optim.schedules import sgd, state_of


def follow(scheduler, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return found


SCALED = {
    "step": (lambda o: theirs.StepLR(o, 4, 0.5), lambda o: theirs.StepLR(o, 2, 0.5)),
    "multi-step": (lambda o: theirs.MultiStepLR(o, [4, 6, 6]), lambda o: theirs.MultiStepLR(o, [2, 3, 3])),
    "constant": (lambda o: theirs.ConstantLR(o, 0.5, 4), lambda o: theirs.ConstantLR(o, 0.5, 2)),
    "linear": (lambda o: theirs.LinearLR(o, 0.5, 1, 4), lambda o: theirs.LinearLR(o, 0.5, 1, 2)),
    "polynomial": (lambda o: theirs.PolynomialLR(o, 8), lambda o: theirs.PolynomialLR(o, 4)),
    "cosine": (lambda o: theirs.CosineAnnealingLR(o, 13), lambda o: theirs.CosineAnnealingLR(o, 6)),
    "restarts": (
        lambda o: theirs.CosineAnnealingWarmRestarts(o, 4, 2),
        lambda o: theirs.CosineAnnealingWarmRestarts(o, 2, 2),
    ),
    "exponential": (lambda o: theirs.ExponentialLR(o, 0.5), lambda o: theirs.ExponentialLR(o, 0.25)),
}


@pytest.mark.parametrize("name", SCALED)
def test_scaled_is_like_made_for_that_length(name) -> None:
    make, expected = SCALED[name]
    scheduler = make(sgd())
    scale_torch_schedule(scheduler, 0.5)
    assert follow(scheduler, 8) == pytest.approx(follow(expected(sgd()), 8))


def test_what_cannot_be_scaled() -> None:
    with pytest.raises(ValueError, match=r"scale_schedule_ratio=0.5: LambdaLR cannot be scaled"):
        scale_torch_schedule(theirs.LambdaLR(sgd(), lambda k: 1.0), 0.5)
    with pytest.raises(ValueError, match=r"scale_schedule_ratio=0.1: T_max of CosineAnnealingLR, 4, would become 0"):
        scale_torch_schedule(theirs.CosineAnnealingLR(sgd(), 4), 0.1)
    with pytest.raises(ValueError, match="scale_schedule_ratio must be greater than 0"):
        scale_torch_schedule(theirs.CosineAnnealingLR(sgd(), 4), 0)

    class StepLR(theirs.StepLR):
        """One that does something else."""

    with pytest.raises(ValueError, match="StepLR cannot be scaled"):
        scale_torch_schedule(StepLR(sgd(), 4), 0.5)


def test_which_are_taken() -> None:
    optimizer = sgd()
    check_torch_schedule(theirs.StepLR(optimizer, 1), [sgd(), optimizer])
    with pytest.raises(ValueError, match="StepLR sets the learning rate of an optimizer that was not passed"):
        check_torch_schedule(theirs.StepLR(sgd(), 1), [optimizer])
    with pytest.raises(TypeError, match=r"ReduceLROnPlateau requires a metric at each step\. Use composer\.optim"):
        check_torch_schedule(theirs.ReduceLROnPlateau(optimizer, factor=0.5), [optimizer])
    assert is_torch_schedule(theirs.StepLR(optimizer, 1))
    assert not is_torch_schedule(compile_composer_scheduler(LinearScheduler(), state_of()))


def one_cycle(steps):
    return theirs.OneCycleLR(sgd(), 0.1, total_steps=steps)


def cosine(steps):
    return theirs.CosineAnnealingLR(sgd(), steps)


def warm(steps):
    optimizer = sgd()
    parts = [theirs.LinearLR(optimizer, total_iters=3), theirs.CosineAnnealingLR(optimizer, steps - 3)]
    return theirs.SequentialLR(optimizer, parts, [3])


def polynomial(steps):
    return theirs.PolynomialLR(sgd(), steps)


def decay(steps):
    return theirs.LinearLR(sgd(), 1.0, 0.0, steps)


def _share(step: int, *, num_warmup_steps: int, num_training_steps: int) -> float:
    return min(step / num_warmup_steps, 1 - step / num_training_steps)


def of_transformers(steps):
    """As get_linear_schedule_with_warmup of transformers makes it."""
    return theirs.LambdaLR(sgd(), functools.partial(_share, num_warmup_steps=2, num_training_steps=steps))


LONG = [one_cycle, cosine, warm, polynomial, decay, of_transformers]


@pytest.mark.parametrize("make", LONG)
def test_lengths(make) -> None:
    assert steps_of(make(20)) == 20


def test_schedules_without_an_end() -> None:
    assert steps_of(theirs.LinearLR(sgd(), 0.1, 1.0, 20)) is None  # a warm-up
    assert steps_of(theirs.LambdaLR(sgd(), lambda step: 0.5)) is None
    assert steps_of(theirs.LambdaLR(sgd(), functools.partial(max, 0.5))) is None


@pytest.mark.parametrize("make", LONG)
@pytest.mark.parametrize("steps", [10, 12])
def test_right_lengths_are_silent(make, steps) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_num_steps(make(steps), every_batch=False, epochs=10, batches=1000)
        check_num_steps(make(steps * 100), every_batch=True, epochs=10, batches=1000)
        check_num_steps(make(steps), every_batch=True, epochs=10, batches=10)
        check_num_steps(theirs.StepLR(sgd(), 5), every_batch=False, epochs=10, batches=1000)


@pytest.mark.parametrize("make", LONG)
def test_made_for_batches_but_stepped_with_epochs(make) -> None:
    name = type(make(9)).__name__
    message = f"{name} was made for 1000 steps, but is stepped with every epoch, 10 times. Step it with"
    with pytest.warns(ComposerWarning, match=message):
        check_num_steps(make(1000), every_batch=False, epochs=10, batches=1000)


@pytest.mark.parametrize("make", [make for make in LONG if make is not one_cycle])
def test_made_for_epochs_but_stepped_with_batches(make) -> None:
    with pytest.warns(ComposerWarning, match="made for 10 steps, but is stepped with every batch, 1000 times"):
        check_num_steps(make(10), every_batch=True, epochs=10, batches=1000)


def test_one_cycle_ends() -> None:
    expected = (
        "schedulers: OneCycleLR was made for 10 steps, but would be stepped 1000 times. Step it with every epoch: "
        "step_schedulers_every_batch=False, or make it with total_steps=1000."
    )
    with pytest.raises(ValueError) as raised:
        check_num_steps(one_cycle(10), every_batch=True, epochs=10, batches=1000)
    assert str(raised.value) == expected
    with pytest.raises(ValueError, match=r"stepped 1000 times\. Make it with total_steps=1000\."):
        check_num_steps(one_cycle(999), every_batch=True, epochs=10, batches=1000)
    used = one_cycle(10)
    follow(used, 4)
    check_num_steps(used, every_batch=False, epochs=6, batches=600)
    expected = (
        r"made for 10 steps, but would be stepped 7 times after the 4 that it has taken\. Make it with total_steps=11\."
    )
    with pytest.raises(ValueError, match=expected):
        check_num_steps(used, every_batch=False, epochs=7, batches=700)


def test_a_schedule_that_has_ended_was_stepped_as_intended() -> None:
    ended = one_cycle(16)
    follow(ended, 16)
    with pytest.raises(
        ValueError, match=r"stepped 8 times after the 16 that it has taken\. Make it with total_steps=24\."
    ):
        check_num_steps(ended, every_batch=True, epochs=1, batches=8)
    for every_batch, steps in ((True, 16), (False, 2)):
        used = cosine(steps)
        follow(used, steps)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_num_steps(used, every_batch=every_batch, epochs=1, batches=8)
