"""An invalid argument of fit rolls back all arguments."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from composer import Time
from composer.optim import StepScheduler
from composer.optim.scheduler import ReduceOnPlateauScheduler
from composer.precision import Precision
from composer.trainer.argument_rollback import all_or_nothing
from tests.common import Regression, regression_data, trainer_of, weights


def seen(trainer) -> dict[str, Any]:
    """What fit takes over."""
    state, run = trainer.state, trainer._run
    return {
        "phase": copy.copy(vars(state.train_phase)),
        "evaluators": list(state.evaluators),
        "metrics": dict(state.eval_metrics),
        "microbatch": (state.device_train_microbatch_size, state.auto_microbatching, run.auto_microbatch),
        "precision": (state.precision, run.autocast, state.scaler),
        "duration": state.max_duration,
        "schedulers": (list(state.schedulers), run.unbound_schedules),
        "options": run.options,
        "groups": [dict(group) for optimizer in state.optimizers for group in optimizer.param_groups],
        "optimizers": list(state.optimizers),
    }


FINE: dict[str, Any] = {
    "train_dataloader": regression_data(2),
    "train_dataloader_label": "other",
    "train_subset_num_batches": 1,
    "eval_dataloader": regression_data(1),
    "device_train_microbatch_size": 1,
    "precision": "amp_bf16",
    "reset_time": True,
    "spin_dataloaders": False,
    "duration": "3ep",
    "schedulers": StepScheduler("1ba", 0.5),
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"eval_subset_num_batches": 0},
        {"device_train_microbatch_size": 0},
        {"precision": "fp4"},
        {"duration": "0ep"},
        {"duration": "many"},
        {"schedulers": [ReduceOnPlateauScheduler("Absent", "min")]},
        {"schedulers": None, "step_schedulers_every_batch": True},
        {"schedulers": None, "scale_schedule_ratio": 0.5},
    ],
    ids=str,
)
def test_nothing_is_applied_when_one_raises(wrong) -> None:
    trainer = trainer_of(max_duration="2ep", eval_dataloader=regression_data(3))
    trainer.fit(duration="3ba")
    before, expected = seen(trainer), weights(trainer)
    with pytest.raises((ValueError, TypeError)):
        trainer.fit(**{**FINE, **wrong})
    assert seen(trainer) == before
    trainer.fit(duration="1ba")
    assert trainer.state.timestamp.batch == 4 and not torch.equal(weights(trainer), expected)


def test_all_arguments_are_applied_without_errors() -> None:
    trainer = trainer_of(max_duration="2ep")
    trainer.fit(**FINE)
    state = trainer.state
    assert (state.train_phase.label, state.max_duration, state.precision) == (
        "other",
        Time.from_epoch(3),
        Precision.AMP_BF16,
    )
    assert len(state.evaluators) == len(state.schedulers) == state.device_train_microbatch_size == 1


def test_a_schedule_of_torch_is_stretched_once() -> None:
    trainer = trainer_of(max_duration="8ep")
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(trainer.state.optimizers[0], 8)
    trainer.state.optimizers[0].param_groups[0]["lr"] = 0.05
    with pytest.raises(ValueError, match="stop"), all_or_nothing(trainer._run, scheduler):
        trainer.state.optimizers[0].param_groups[0]["lr"] = 1.0
        scheduler.T_max = 4
        raise ValueError("stop")
    assert (scheduler.T_max, trainer.state.optimizers[0].param_groups[0]["lr"]) == (8, 0.05)


def test_default_optimizer_is_created_only_for_training() -> None:
    trainer = trainer_of(Regression(), optimizers=None)
    trainer.state.optimizers = []
    with pytest.warns(UserWarning, match="No optimizers"), pytest.raises(ValueError, match="Absent"):
        trainer.fit(schedulers=ReduceOnPlateauScheduler("Absent", "min"))
    assert trainer.state.optimizers == []
