"""Schedules in training: the learning rate of each step, ratios, step frequency, multiple optimizers, evaluation."""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, OneCycleLR, ReduceLROnPlateau, StepLR

from composer import DataSpec, Time
from composer.optim.scheduler import (
    ComposerScheduler,
    ConstantScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWithWarmupScheduler,
    LinearScheduler,
    MultiStepScheduler,
    StepScheduler,
    WarmupStableDecayScheduler,
    compile_composer_scheduler,
)
from composer.trainer.schedules import as_schedulers
from composer.warnings import ComposerWarning
from tests.common import At, Received, Regression, TwoLayers, Unsized, regression_data, trainer_of, weights


def rates(state) -> list[float]:
    """The learning rate of each optimizer's first group."""
    return [optimizer.param_groups[0]["lr"] for optimizer in state.optimizers]


def follow(schedulers: Any, lr: float = 1e-3, fit: dict[str, Any] | None = None, **arguments: Any) -> list[float]:
    """Train, by default two epochs of four batches; the learning rate of each step as a multiple of the first one."""
    used = At("after_train_batch", rates)
    arguments = {"max_duration": "2ep", "callbacks": used, "lr": lr, **arguments}
    trainer_of(schedulers=schedulers, **arguments).fit(**(fit or {}))
    return [rate / lr for (rate,) in used.found]


def wrong(error: type[Exception], **arguments: Any) -> str:
    with pytest.raises(error) as raised:
        trainer_of(**arguments)
    return str(raised.value)


falling = [1 - k / 8 for k in range(8)]

# ---------------------------------------------------------------------------------------------------- rate of a step


@pytest.mark.parametrize("t_max", ["1dur", "2ep", "8ba", "16sp"])
def test_learning_rate_of_step_k_is_the_schedule_at_k(t_max) -> None:
    assert follow(LinearScheduler(t_max=t_max)) == pytest.approx(falling)


@pytest.mark.parametrize("max_duration", ["2ep", "8ba", "16sp"])
def test_fractions_of_any_duration(max_duration) -> None:
    assert follow(LinearScheduler(), max_duration=max_duration) == pytest.approx(falling)


def test_tokens_and_seconds() -> None:
    data = DataSpec(regression_data(), get_num_tokens_in_batch=lambda batch: 10)
    assert follow(LinearScheduler(t_max="80tok"), data=data) == pytest.approx(falling)
    assert follow(LinearScheduler(), data=data, max_duration="80tok") == pytest.approx(falling)
    found = follow(LinearScheduler(t_max="1h"))
    assert all(1 - 1 / 60 < later < earlier <= 1 for earlier, later in itertools.pairwise(found))


def test_functions() -> None:
    found = follow(lambda state, ssr: 1 / (1 + state.timestamp.batch.value))
    assert found == pytest.approx([1 / (1 + k) for k in range(8)])
    assert follow(lambda state, ssr: 0.5**state.timestamp.epoch.value) == pytest.approx([1] * 4 + [0.5] * 4)
    assert follow([lambda state: 0.5]) == pytest.approx([0.5] * 8)


def test_data_without_length() -> None:
    schedule = MultiStepScheduler("1ep", gamma=0.5)
    assert follow(schedule, data=Unsized(regression_data())) == pytest.approx([1] * 4 + [0.5] * 4)
    assert follow(LinearScheduler(), data=Unsized(regression_data())) == pytest.approx([1] * 4 + [0.5] * 4)


def test_initial_learning_rate_is_set_by_the_constructor() -> None:
    trainer = trainer_of(schedulers=CosineAnnealingWithWarmupScheduler("2ba"))
    assert rates(trainer.state) == [0.0]


def test_matches_a_manual_loop() -> None:
    model = Regression()
    twin = copy.deepcopy(model)
    trainer = trainer_of(model, schedulers=CosineAnnealingWithWarmupScheduler("2ba"), max_duration="2ep")
    trainer.fit()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    factors = CosineAnnealingWithWarmupScheduler("2ba").preview("8ba")[:-1]
    for factor, batch in zip(factors, regression_data() * 2, strict=True):
        optimizer.param_groups[0]["lr"] = 0.1 * factor
        optimizer.zero_grad()
        twin.loss(twin(batch), batch).backward()
        optimizer.step()
    assert torch.equal(weights(trainer), torch.cat([p.detach().flatten() for p in twin.parameters()]))


# ---------------------------------------------------------------------------------------------------- ways to step


@pytest.mark.parametrize(
    ("every_batch", "expected"), [(None, falling), (True, falling), (False, [1.0] * 4 + [0.5] * 4)]
)
def test_ways_to_step(every_batch, expected) -> None:
    assert follow(LinearScheduler(), step_schedulers_every_batch=every_batch) == pytest.approx(expected)
    assert follow(None, fit={"schedulers": LinearScheduler(), "step_schedulers_every_batch": every_batch}) == (
        pytest.approx(expected)
    )


def test_mixed_torch_scheduler_steps_by_epochs() -> None:
    model = TwoLayers()
    first, second = model.optimizers()
    used = At("after_train_batch", rates)
    schedulers = [StepLR(first, 1, gamma=0.5), LinearScheduler()]
    trainer_of(model, optimizers=[first, second], schedulers=schedulers, max_duration="2ep", callbacks=used).fit()
    assert used.found == [pytest.approx([0.02, 0.01])] * 4 + [pytest.approx([0.01, 0.005])] * 4


def test_without_schedules_learning_rate_is_constant() -> None:
    assert follow(None) == [1.0] * 8
    assert follow([]) == [1.0] * 8


# ---------------------------------------------------------------------------------------------------- ratios


@pytest.mark.parametrize("by_fit", [False, True])
@pytest.mark.parametrize(("max_duration", "ratio"), [("4ep", 0.5), ("1ep", 2), ("16ba", 0.5)])
def test_ratios(by_fit, max_duration, ratio) -> None:
    given = {"schedulers": StepScheduler(f"{int(4 / ratio)}ba", gamma=0.5), "scale_schedule_ratio": ratio}
    arguments = {"schedulers": None, "fit": given} if by_fit else given
    assert follow(max_duration=max_duration, **arguments) == pytest.approx([1] * 4 + [0.5] * 4)


def test_ratio_with_a_full_length_schedule() -> None:
    schedule = CosineAnnealingWithWarmupScheduler("2ba", t_max="16ba")
    expected = CosineAnnealingWithWarmupScheduler("2ba").preview("8ba")[:-1]
    assert follow(schedule, max_duration="16ba", scale_schedule_ratio=0.5) == pytest.approx(expected)


def test_ratio_scales_the_remaining_schedule() -> None:
    used = At("after_train_batch", rates)
    trainer = trainer_of(callbacks=used, lr=1.0)
    trainer.fit()
    trainer.fit(duration="4ep", schedulers=LinearScheduler(), scale_schedule_ratio=0.5)
    assert trainer.state.max_duration == "3ep"
    assert [rate for (rate,) in used.found[4:]] == pytest.approx([1 - k / 12 for k in range(4, 12)])


def test_ratios_of_torch_schedules() -> None:
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    schedule = StepLR(optimizer, 2, gamma=0.5)
    found = follow(schedule, model=model, optimizers=optimizer, max_duration="4ep", scale_schedule_ratio=0.5)
    assert found == pytest.approx([1] * 4 + [0.5] * 4)


def test_wrong_ratios() -> None:
    of = functools.partial(wrong, ValueError, schedulers=LinearScheduler())
    assert of(scale_schedule_ratio=0) == "scale_schedule_ratio must be greater than 0, but got 0."
    assert of(scale_schedule_ratio=float("inf")) == "scale_schedule_ratio must be finite, but got inf."
    assert of(scale_schedule_ratio=0.5) == "scale_schedule_ratio=0.5 scales '1ep' to zero; use a larger ratio."
    assert of(scale_schedule_ratio=0.5, max_duration=None).startswith("scale_schedule_ratio=0.5 requires max_duration")
    assert wrong(ValueError, scale_schedule_ratio=0.5) == (
        "scale_schedule_ratio=0.5 requires schedulers to scale. Pass schedulers as well, or use a shorter duration."
    )
    assert "must be a number" in wrong(TypeError, schedulers=LinearScheduler(), scale_schedule_ratio="0.5")
    with pytest.raises(ValueError, match=r"scale_schedule_ratio=0\.5 requires schedulers"):
        trainer_of(schedulers=LinearScheduler()).fit(scale_schedule_ratio=0.5)
    message = of(scale_schedule_ratio=0.5, max_duration="2ep", schedulers=lambda state: 1.0)
    assert "takes only the state and would ignore it" in message


# ---------------------------------------------------------------------------------------------------- fit again


def test_continuing_with_a_longer_run() -> None:
    used = At("after_train_batch", rates)
    trainer = trainer_of(schedulers=LinearScheduler(), callbacks=used, lr=1.0)
    trainer.fit()
    assert rates(trainer.state) == [0.0]
    trainer.fit(duration="1ep")
    found = [rate for (rate,) in used.found]
    assert found == pytest.approx([1 - k / 4 for k in range(4)] + [1 - k / 8 for k in range(4, 8)])


def test_a_cooldown_branched_from_a_stable_run() -> None:
    used = At("after_train_batch", rates)
    schedule = WarmupStableDecayScheduler("2ba", "4ba", "linear")
    trainer = trainer_of(schedulers=schedule, callbacks=used, lr=1.0, max_duration="100ba")
    stop = At("batch_start", lambda state: state.stop_training() if state.timestamp.batch == 5 else None)
    trainer.state.callbacks.append(stop)
    trainer.fit()
    trainer.fit(duration="4ba")
    assert [rate for (rate,) in used.found] == pytest.approx([0, 0.5] + [1] * 4 + [1, 0.75, 0.5, 0.25])


def test_schedules_that_are_given_to_fit_replace_the_others() -> None:
    found = follow(LinearScheduler(), fit={"schedulers": [ConstantScheduler(0.5)]})
    assert found == pytest.approx([0.5] * 8)


def test_data_and_duration_passed_to_fit() -> None:
    used = At("after_train_batch", rates)
    trainer = trainer_of(schedulers=LinearScheduler(), max_duration=None, callbacks=used, lr=1.0)
    trainer.state.train_dataloader = None
    trainer.fit(duration="8ba", train_dataloader=regression_data(2))
    assert [rate for (rate,) in used.found] == pytest.approx(falling)


def test_the_default_optimizer_has_schedules_too() -> None:
    used = At("after_train_batch", rates)
    with pytest.warns(ComposerWarning, match="No optimizers were given"):
        trainer_of(optimizers=None, schedulers=LinearScheduler(), callbacks=used).fit()
    assert [rate for (rate,) in used.found] == pytest.approx([0.1, 0.075, 0.05, 0.025])


def test_impossible_schedules_raise_before_training() -> None:
    message = wrong(ValueError, schedulers=CosineAnnealingWithWarmupScheduler("1ba", t_max="2ba"))
    assert "is impossible in this run: t_max='2ba' is 2ba, less than the run of 4ba" in message
    trainer = trainer_of(schedulers=CosineAnnealingWithWarmupScheduler("1ba", t_max="3ba"), max_duration=None)
    with pytest.raises(ValueError, match="t_max='3ba' is 3ba, less than the run of 4ba"):
        trainer.fit(duration="4ba")


def test_warmup_longer_than_the_run_warns() -> None:
    """A configuration of a long run is tried with one batch."""
    used = At("after_train_batch", rates)
    with pytest.warns(ComposerWarning, match="t_warmup='10ba' is 10ba, longer than the run of 1ba"):
        trainer = trainer_of(schedulers=CosineAnnealingWithWarmupScheduler("10ba"), max_duration="1ba", callbacks=used)
    with pytest.warns(ComposerWarning, match="t_warmup='10ba' is 10ba, longer than the run of"):
        trainer.fit()
        trainer.fit(duration="2ba")
    lr = used.found[1][0] * 10
    assert [rate for (rate,) in used.found] == pytest.approx([0, 0.1 * lr, 0.2 * lr])


def test_stopping_early_during_warmup() -> None:
    stop = At("batch_start", lambda state: state.stop_training() if state.timestamp.batch == 2 else None)
    for every_batch in (True, False):
        trainer = trainer_of(
            schedulers=CosineAnnealingWithWarmupScheduler("4ba"),
            step_schedulers_every_batch=every_batch,
            callbacks=stop,
            max_duration="2ep",
        )
        trainer.fit()
        trainer.close()
        assert trainer.state.timestamp.batch == 3


def test_dry_run_of_a_long_warmup(capsys) -> None:
    used = At("after_train_batch", rates)
    trainer = trainer_of(
        schedulers=CosineAnnealingWithWarmupScheduler("6ba"), max_duration="2ep", dry_run=True, callbacks=used
    )
    (schedule,) = trainer.state.schedulers
    trainer.fit()
    assert "Dry run" in capsys.readouterr().err
    assert trainer.state.schedulers == [schedule]
    assert (schedule.last_epoch, rates(trainer.state)) == (0, [0.0])
    assert trainer.state.max_duration == Time(2, "ep")


def test_schedules_that_are_compiled_already() -> None:
    used = At("after_train_batch", rates)
    trainer, other = (trainer_of(max_duration="2ep", callbacks=calls, lr=1.0) for calls in (used, None))
    compiled = compile_composer_scheduler(LinearScheduler(), trainer.state)
    with pytest.raises(ValueError, match=r"CompiledSchedule\(.* follows the time of another state"):
        other.fit(schedulers=compiled)
    trainer.fit(schedulers=compiled)
    assert [rate for (rate,) in used.found] == pytest.approx(falling)


def test_schedules_are_logged_with_their_times() -> None:
    log = Received()
    trainer_of(schedulers=[CosineAnnealingWithWarmupScheduler("2ba")], auto_log_hparams=True, loggers=log)
    (logged,) = log.hyperparameters["schedulers"]
    assert logged == {
        "class": "CosineAnnealingWithWarmupScheduler",
        "t_warmup": "2ba",
        "t_max": "1.0dur",
        "alpha_f": 0.0,
        "scale_warmup": False,
    }


# ---------------------------------------------------------------------------------------------------- optimizers


@pytest.mark.parametrize("several", [False, True])
def test_one_for_all_or_one_each(several) -> None:
    model = TwoLayers()
    used = At("after_train_batch", rates)
    schedulers = [LinearScheduler(), ConstantScheduler(0.5)] if several else LinearScheduler()
    trainer_of(model, optimizers=model.optimizers(), schedulers=schedulers, max_duration="2ep", callbacks=used).fit()
    for k, found in enumerate(used.found):
        assert found == pytest.approx([0.02 * falling[k], 0.01 * (0.5 if several else falling[k])])


def test_groups_and_hyperparameters() -> None:
    model = TwoLayers()
    parts = {"body": model.first, "head": model.second}
    groups = [{"params": part.parameters(), "name": name} for name, part in parts.items()]
    optimizer = torch.optim.SGD(groups, lr=1e-3, momentum=0.8, weight_decay=0.1)
    used = At("after_train_batch", lambda state: [dict(group) for group in state.optimizers[0].param_groups])
    schedulers = [
        LinearScheduler(),
        ConstantScheduler(0.5).assign(groups="head"),
        LinearScheduler(1.0, 0.5).assign("momentum"),
        LinearScheduler(1.0, 2.0).assign("weight_decay", groups=[0]),
    ]
    trainer_of(model, optimizers=optimizer, schedulers=schedulers, max_duration="2ep", callbacks=used).fit()
    for k, (body, head) in enumerate(used.found):
        assert (body["lr"], head["lr"]) == pytest.approx((1e-3 * falling[k], 0.5e-3))
        assert body["momentum"] == head["momentum"] == pytest.approx(0.8 * (1 - k / 16))
        assert (body["weight_decay"], head["weight_decay"]) == pytest.approx((0.1 * (1 + k / 8), 0.1))


def test_invalid_schedule_types() -> None:
    assert wrong(TypeError, schedulers="cosine").startswith("schedulers: 'cosine' is not a schedule. Use one from")
    expected = "schedulers: got the class LinearScheduler; give an object of it: LinearScheduler(...)."
    assert wrong(TypeError, schedulers=LinearScheduler) == expected
    assert as_schedulers(LinearScheduler().assign()) != []


def test_schedules_of_torch() -> None:
    model = Regression()
    optimizer, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    of = functools.partial(wrong, model=model, optimizers=optimizer)
    assert "an optimizer that was not passed as optimizers=" in of(ValueError, schedulers=StepLR(other, 1))
    assert "Use composer.optim.ReduceOnPlateauScheduler" in of(TypeError, schedulers=ReduceLROnPlateau(optimizer))
    message = of(ValueError, schedulers=[ExponentialLR(optimizer, 0.9), CosineAnnealingScheduler()])
    assert "CosineAnnealingScheduler has nothing to set, because ExponentialLR set every learning rate" in message


def full_cosine(optimizer) -> CosineAnnealingLR:
    return CosineAnnealingLR(optimizer, 32)


def test_lengths_of_torch_schedules() -> None:
    def fit(make, max_duration="8ep", every_batch=None):
        model = Regression()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        trainer = trainer_of(
            model,
            optimizers=optimizer,
            schedulers=make(optimizer),
            max_duration=max_duration,
            step_schedulers_every_batch=every_batch,
        )
        trainer.fit()

    for make, max_duration in ((lambda o: OneCycleLR(o, 1e-3, total_steps=32), "8ep"), (full_cosine, "32ba")):
        with pytest.warns(ComposerWarning, match="was made for 32 steps, but is stepped with every epoch, 8 times"):
            fit(make, max_duration)
    with pytest.raises(ValueError, match=r"OneCycleLR was made for 8 steps, but would be stepped 32 times"):
        fit(lambda o: OneCycleLR(o, 1e-3, total_steps=8), every_batch=True)
    fit(lambda o: OneCycleLR(o, 1e-3, total_steps=8))
    fit(lambda o: OneCycleLR(o, 1e-3, total_steps=32), every_batch=True)
    fit(lambda o: OneCycleLR(o, 1e-3, total_steps=8), "33ba")


def test_schedules_by_epoch_keep_their_value_within_an_epoch() -> None:
    used = At("after_train_batch", rates)
    trainer = trainer_of(
        schedulers=LinearScheduler(t_max="8ba"), step_schedulers_every_batch=False, callbacks=used, lr=1.0
    )
    trainer.fit(duration="2ba")
    trainer.fit(duration="4ba")
    assert [rate for (rate,) in used.found] == pytest.approx([1] * 4 + [0.5] * 2)


def test_custom_schedule_receives_a_state() -> None:
    class Own(ComposerScheduler):
        def __plan__(self, horizon):
            assert horizon.total is not None
            assert (horizon.total.length, horizon.epoch_length) == (8, 4)
            return lambda now: 0.5

    assert follow(Own()) == pytest.approx([0.5] * 8)


def test_tensor_learning_rate_stays_a_tensor() -> None:
    model = Regression()
    lr = torch.tensor(1e-3)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, foreach=False)
    trainer_of(model, optimizers=optimizer, schedulers=LinearScheduler(), max_duration="3ba").fit()
    assert optimizer.param_groups[0]["lr"] is lr
    assert lr.item() == 0.0
