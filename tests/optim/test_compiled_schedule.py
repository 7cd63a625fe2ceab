"""Schedules bound to a run and to an optimizer."""

from __future__ import annotations

import copy
import functools
import io
import pickle

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from composer.core.timestamp import Timestamp
from composer.optim.compiled_schedule import CompiledSchedule, schedule_added_groups
from composer.optim.schedule_assignment import Job
from composer.optim.schedule_functions import as_function
from composer.optim.scheduler import (
    ComposerScheduler,
    ConstantScheduler,
    CosineAnnealingWithWarmupScheduler,
    LinearScheduler,
    ReduceOnPlateauScheduler,
    compile_composer_scheduler,
)
from tests.optim.schedules import count_batch, rates, sgd, state_of


def run(schedule=None, max_duration="4ba", lr=1.0, **settings):
    """A state and the compiled schedule of its optimizer."""
    state = state_of(max_duration, sgd(lr, **settings))
    return state, compile_composer_scheduler(schedule or LinearScheduler(), state)


def test_the_rate_of_step_k_is_the_schedule_at_k() -> None:
    assert rates(LinearScheduler(), state_of("4ba"), 4) == [1.0, 0.75, 0.5, 0.25]


def test_each_group_has_its_own_initial_value() -> None:
    state = state_of("4ba", sgd(groups=2))
    state.optimizers[0].param_groups[1]["lr"] = 0.5
    compiled = compile_composer_scheduler(LinearScheduler(), state)
    count_batch(state)
    compiled.step()
    assert compiled.get_last_lr() == [0.75, 0.375]
    assert compiled.base_lrs == [1.0, 0.5]


def test_a_group_that_is_added_is_scheduled_from_its_value() -> None:
    state, compiled = run()
    compiled.base_lrs[0] = 2.0
    count_batch(state)
    compiled.step()
    optimizer = state.optimizers[0]
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.1})
    count_batch(state)
    compiled.step()
    assert compiled.get_last_lr() == [1.0, 0.05]
    again = compile_composer_scheduler(LinearScheduler(), state)
    again.load_state_dict(compiled.state_dict())
    assert again.base_lrs == [2.0, 0.1]


def test_a_group_that_is_added_beside_one_without_a_schedule_has_none() -> None:
    state = state_of("4ba", sgd(groups=2))
    job = Job(LinearScheduler(), state.optimizers[0], "lr", (1,))
    compiled = CompiledSchedule(job, state)
    state.optimizers[0].add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.1})
    count_batch(state)
    compiled.step()
    assert compiled.get_last_lr() == [1.0, 0.75, 0.1]


def test_a_group_that_is_added_before_the_run_begins_gets_no_value_yet() -> None:
    state = state_of("4ba")
    compiled = CompiledSchedule(Job(ConstantScheduler(0.5), state.optimizers[0], with_added=True), state)
    state.optimizers[0].add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.1})
    schedule_added_groups([compiled])
    assert compiled.get_last_lr() == [1.0, 0.1]
    compiled.refresh()
    assert compiled.get_last_lr() == [0.5, 0.05]


def test_schedules_of_torch_are_left_to_themselves() -> None:
    optimizer = sgd()
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.1})
    schedule_added_groups([schedule])
    assert schedule.base_lrs == [1.0]


def test_it_passes_for_one_of_torch_and_leaves_the_optimizer_alone() -> None:
    state = state_of("4ba")
    before = state.optimizers[0].step
    compiled = compile_composer_scheduler(LinearScheduler(), state)
    assert isinstance(compiled, LRScheduler)
    assert compiled.optimizer.step == before
    assert compiled.last_epoch == 0
    compiled.step()
    assert compiled.last_epoch == 1
    assert repr(compiled) == f"CompiledSchedule({compiled.schedule!r}, 'lr' of SGD)"


@pytest.mark.parametrize(
    ("hyperparameter", "settings", "expected"),
    [("momentum", {"momentum": 0.8}, 0.6), ("weight_decay", {"weight_decay": 0.4}, 0.3)],
)
def test_other_hyperparameters(hyperparameter, settings, expected) -> None:
    state, compiled = run(LinearScheduler().assign(hyperparameter), **settings)
    count_batch(state)
    compiled.step()
    (group,) = state.optimizers[0].param_groups
    assert group[hyperparameter] == pytest.approx(expected)
    assert group["lr"] == 1.0


@pytest.mark.parametrize("tensors", [False, True])
def test_betas(tensors) -> None:
    # The fused form on the CPU takes a rate that is a tensor.
    lr = torch.tensor(0.1) if tensors else 0.1
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(1))], lr=lr, betas=(0.8, 0.9), fused=tensors)
    state = state_of("4ba", optimizer)
    both = [LinearScheduler().assign(name) for name in ("beta2", "lr")]
    compiled = [compile_composer_scheduler(schedule, state) for schedule in both]
    for _ in range(2):
        count_batch(state)
        for schedule in compiled:
            schedule.step()
    (group,) = optimizer.param_groups
    assert group["betas"] == (0.8, 0.45)
    assert float(group["lr"]) == pytest.approx(0.05)
    assert (group["lr"] is lr) or not tensors
    last = compiled[1].get_last_lr()[0]
    assert not tensors or (isinstance(last, torch.Tensor) and last is not lr)


def test_a_multiple_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="LinearScheduler multiplies 'momentum', which is 0 in SGD and would stay 0"):
        run(LinearScheduler().assign("momentum"))
    state = state_of("4ba", sgd(groups=2))
    state.optimizers[0].param_groups[0]["weight_decay"] = 0.5
    compile_composer_scheduler(LinearScheduler().assign("weight_decay"), state)  # zero in the other group only
    with pytest.raises(ValueError, match=r"'momentun' is not a number in this optimizer\. Did you mean 'momentum'"):
        run(LinearScheduler().assign("momentun"))


# ---------------------------------------------------------------------------------------------------- length of the run


def test_a_run_that_becomes_longer() -> None:
    state, compiled = run(max_duration="4ba")
    for _ in range(2):
        count_batch(state)
    state.max_duration = "8ba"
    compiled.step()
    assert compiled.get_last_lr() == [0.75]
    state.max_duration, state.train_phase.length = "2ep", 2
    compiled.step()
    assert compiled.get_last_lr() == [0.5]


def test_a_run_that_is_stopped_keeps_its_schedule() -> None:
    state, compiled = run(CosineAnnealingWithWarmupScheduler("4ba"), "8ba")
    count_batch(state)
    state.stop_training()
    compiled.step()  # with a plan for one batch, the rise would be impossible
    assert compiled.get_last_lr() == [0.25]


def test_refresh_has_nothing_to_say_if_nothing_changed() -> None:
    state, compiled = run()
    count_batch(state)
    compiled.step()
    state.optimizers[0].param_groups[0]["lr"] = 7.0  # somebody else's, such as stochastic weight averaging
    compiled.refresh()
    assert state.optimizers[0].param_groups[0]["lr"] == 7.0
    state.max_duration = "2ba"
    compiled.refresh()
    assert compiled.get_last_lr() == [0.5]


def test_what_is_impossible_names_the_schedule() -> None:
    message = r"schedulers: CosineAnnealingWithWarmupScheduler\(.*\) is impossible in this run: t_max='2ba' is 2ba"
    with pytest.raises(ValueError, match=message):
        run(CosineAnnealingWithWarmupScheduler("1ba", t_max="2ba"))


def test_a_file_without_initial_rates_leaves_them_to_the_optimizer() -> None:
    state, compiled = run(lr=1.0)
    _, other = run(lr=4.0)
    state.optimizers[0].load_state_dict(other.optimizer.state_dict())
    compiled.load_state_dict({"multiplier": 1.0, "last_epoch": 0})
    compiled.refresh()
    count_batch(state)
    compiled.step()
    assert compiled.get_last_lr() == [3.0]


# ---------------------------------------------------------------------------------------------------- saving


def test_goes_on_after_loading() -> None:
    straight = rates(LinearScheduler(), state_of("6ba"), 6)
    state, compiled = run(max_duration="6ba")
    for _ in range(3):
        count_batch(state)
        compiled.step()
    again, other = run(max_duration="6ba")
    again.optimizers[0].load_state_dict(state.optimizers[0].state_dict())
    again.timestamp = state.timestamp
    other.load_state_dict(compiled.state_dict())
    other.refresh()
    assert other.get_last_lr() == straight[3:4]
    assert other.last_epoch == 3
    count_batch(again)
    other.step()
    assert other.get_last_lr() == straight[4:5]


def test_what_a_schedule_remembers_is_saved() -> None:
    def make():
        return run(ReduceOnPlateauScheduler("eval/Loss", "min", factor=0.5, patience=0))[1]

    first, second = make(), make()
    for value in (1.0, 1.0):
        first.schedule.update(value)
    saved = first.state_dict()
    second.load_state_dict(saved)
    second.step()
    assert second.get_last_lr() == [0.5]
    assert torch.load(_save(saved), weights_only=True) == saved


def _save(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


def test_functions_that_remember() -> None:
    class Falling:
        def __init__(self):
            self.calls = 0

        def __call__(self, state, ssr):
            self.calls += 1
            return 1 / self.calls

        def state_dict(self):
            return {"calls": self.calls}

        def load_state_dict(self, state):
            self.calls = state["calls"]

    _, compiled = run(Falling())
    compiled.step()
    _, other = run(Falling())
    other.load_state_dict(compiled.state_dict())
    other.step()
    assert other.get_last_lr() == [1 / 3]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_state_with_schedules_can_be_copied(copied) -> None:
    state, compiled = run()
    state.schedulers = [compiled]
    other = copied(state)
    count_batch(other)
    other.schedulers[0].step()
    assert other.optimizers[0].param_groups[0]["lr"] == 0.75
    assert compiled.get_last_lr() == [1.0]


# ---------------------------------------------------------------------------------------------------- functions


def two(state, ssr):
    return 0.5 * ssr


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (two, 0.25),
        (lambda state, ssr=1.0: 0.5 * ssr, 0.25),
        (lambda state, ratio: 0.5 * ratio, 0.25),
        (lambda *args: 0.5 * args[1], 0.25),
        (functools.partial(two), 0.25),
        (type("Own", (ComposerScheduler,), {"__call__": lambda self, state, ssr=1.0: 0.5 * ssr})(), 0.25),
    ],
)
def test_functions_of_state_and_ratio(function, expected) -> None:
    assert as_function(function, 0.5)(None) == expected
    assert as_function(LinearScheduler(), 0.5) is None


@pytest.mark.parametrize("function", [lambda state: 0.5, lambda state, power=2: 0.5**power * 2])
def test_functions_of_the_state(function) -> None:
    assert as_function(function)(None) == 0.5
    with pytest.raises(ValueError, match=r"scale_schedule_ratio=0.5, but <lambda> takes only the state"):
        as_function(function, 0.5)


def test_functions_that_return_no_multiplier() -> None:
    with pytest.raises(TypeError, match="schedulers: <lambda> must return a number, the multiplier, but got None"):
        run(lambda state, ssr: None)
    for value in ("nan", "inf"):
        with pytest.raises(ValueError, match=f"<lambda> must return a finite number, but got {value}"):
            run(lambda state, ssr, value=value: float(value))
    with pytest.raises(TypeError, match=r"<lambda>\(\) takes no state; write f\(state, ssr\) -> multiplier"):
        run(lambda: 1.0)


# ---------------------------------------------------------------------------------------------------- compile


def test_several_optimizers_need_an_assignment() -> None:
    state = state_of("4ba", [sgd(), sgd(2.0)])
    with pytest.raises(ValueError, match=r"the state has 2 optimizers. Use exactly one, or choose"):
        compile_composer_scheduler(LinearScheduler(), state)
    compiled = compile_composer_scheduler(ConstantScheduler(0.5).assign(optimizer=1), state)
    assert compiled.get_last_lr() == [1.0]
    state.optimizers = []
    with pytest.raises(ValueError, match="the state has 0 optimizers"):
        compile_composer_scheduler(LinearScheduler(), state)
    for wrong in (3, LinearScheduler):
        with pytest.raises(TypeError, match="scheduler must be a ComposerScheduler or a function"):
            compile_composer_scheduler(wrong, state)


def test_the_plan_is_made_once() -> None:
    made = []

    class Counting(ComposerScheduler):
        def __plan__(self, horizon):
            made.append(horizon)
            return lambda now: 1.0

    state = state_of("9ba")
    compiled = CompiledSchedule(Job(Counting(), state.optimizers[0]), state)
    for k in range(5):
        state.timestamp = Timestamp(batch=k)
        compiled.step()
    assert len(made) == 1
