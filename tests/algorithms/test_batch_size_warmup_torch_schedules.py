"""BatchSizeWarmup(lr_scaling=) with schedules of torch, many of which compute the next rate from the current one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import Adam, lr_scheduler

from composer import Callback, Trainer
from composer.algorithms import BatchSizeWarmup
from tests.common import At, TwoLayers, regression_data, trainer_of, weights

SCHEDULES: dict[str, Callable[[Adam], Any]] = {
    "none": lambda optimizer: None,
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    "multi step": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [1, 4], 0.5),
    "exponential": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 5, 0.01),
    "linear": lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 6),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
}


def optimizer_of(model: TwoLayers, *, tensor: bool = False) -> Adam:
    """Two groups with the default rate, which torch gives them as one tensor, and one with another rate."""
    first, second, *others = model.parameters()
    rates: list[Any] = [torch.tensor(0.1), torch.tensor(0.3)] if tensor else [0.1, 0.3]
    return Adam([{"params": first}, {"params": second}, {"params": others, "lr": rates[1]}], lr=rates[0])


def group_rates(optimizer: Any) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def build(name: str, *, tensor: bool = False, callbacks: Any = (), **more: Any) -> tuple[dict[int, Any], Trainer]:
    """A trainer of 6 steps, the last four with 2 batches of the loader; it fills the dictionary with their rates."""
    torch.manual_seed(0)
    model, found = TwoLayers(), {}
    optimizer = optimizer_of(model, tensor=tensor)
    seen = At("before_train_batch", lambda state: found.update({state.timestamp.batch.value: group_rates(optimizer)}))
    trainer = trainer_of(
        model,
        regression_data(12),
        optimizers=optimizer,
        schedulers=SCHEDULES[name](optimizer),
        step_schedulers_every_batch=True,
        algorithms=BatchSizeWarmup({"2ba": 2}, lr_scaling="linear"),
        callbacks=[seen, *callbacks],
        max_duration="6ba",
        run_name="run",
        **more,
    )
    return found, trainer


def train(name: str, **arguments: Any) -> tuple[dict[int, Any], Trainer]:
    """Train, and return the rates of each step, and the trainer."""
    found, trainer = build(name, **arguments)
    trainer.fit()
    trainer.close()
    return found, trainer


class Fail(Callback):
    """Raises once, while the rates are scaled."""

    failed = False

    def after_backward(self, state, logger):
        if state.timestamp.batch == 3 and not self.failed:
            self.failed = True
            raise OSError("no")


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_follows_the_schedule(name, tensor) -> None:
    found, trainer = train(name, tensor=tensor)
    optimizer = optimizer_of(TwoLayers(), tensor=tensor)
    schedule = SCHEDULES[name](optimizer)
    for step in range(6):
        assert found[step] == pytest.approx([rate * (1 if step < 2 else 2) for rate in group_rates(optimizer)]), step
        optimizer.step()
        if schedule is not None:
            schedule.step()
    assert group_rates(trainer.state.optimizers[0]) == group_rates(optimizer)  # exactly


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("name", ["none", "step", "exponential", "cosine"])
def test_resumes(name, tensor, tmp_path) -> None:
    folder = str(tmp_path)
    found, straight = train(name, tensor=tensor, save_folder=folder, save_interval="1ba")
    for batch in range(1, 6):
        some, resumed = train(name, tensor=tensor, load_path=f"{folder}/ep0-ba{batch}-rank0.pt")
        assert some == {step: rates for step, rates in found.items() if step >= batch}
        assert torch.equal(weights(resumed), weights(straight))


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("name", ["none", "exponential"])
def test_resumes_in_a_step(name, tensor, tmp_path) -> None:
    """Also from a checkpoint that was saved while the rates were scaled."""
    _, straight = train(name, tensor=tensor)
    _, failed = build(name, tensor=tensor, callbacks=[Fail()])
    with pytest.raises(OSError, match="no"):
        failed.fit()
    saved = failed.save_checkpoint(str(tmp_path / "failed.pt"))
    failed.fit()
    _, resumed = train(name, tensor=tensor, load_path=saved)
    for trainer in (failed, resumed):
        assert group_rates(trainer.state.optimizers[0]) == group_rates(straight.state.optimizers[0])
        assert torch.equal(weights(trainer), weights(straight))


def test_schedules_that_step_every_epoch() -> None:
    model = TwoLayers()
    optimizer = optimizer_of(model)
    seen = At("before_train_batch", lambda state: group_rates(optimizer)[2])
    trainer_of(
        model,
        optimizers=optimizer,
        schedulers=lr_scheduler.ExponentialLR(optimizer, 0.5),
        algorithms=BatchSizeWarmup({"0ba": 2}, lr_scaling="linear"),
        callbacks=seen,
        max_duration="3ep",
    ).fit()
    assert seen.found == pytest.approx([0.6, 0.6, 0.3, 0.3, 0.15, 0.15])
