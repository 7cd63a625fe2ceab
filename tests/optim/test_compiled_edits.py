"""A compiled schedule that a script edits, beside ``torch.optim.lr_scheduler.LambdaLR``, which it is."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from composer import Callback, Trainer
from composer.checkpoint.named_states import as_named, load_each
from composer.optim import (
    ConstantScheduler,
    LinearScheduler,
    MultiStepScheduler,
    compile_composer_scheduler,
)
from tests.common import Regression, regression_data
from tests.optim.schedules import count_batch, sgd, state_of

STEPS = 8


class Half:
    """A function that is an object, whose fields a state has."""

    def __init__(self, factor: float = 0.5) -> None:
        self.factor = factor

    def __call__(self, epoch: int) -> float:
        return self.factor / (1 + epoch)


class Pair:
    """Ours and torch's, on optimizers of two groups each."""

    def __init__(self, lr=1.0) -> None:
        self.optimizers = [sgd(lr, groups=2), sgd(lr, groups=2)]
        for optimizer in self.optimizers:
            optimizer.param_groups[1]["lr"] = 0.25 * lr
        self.state = state_of(f"{STEPS}ba", self.optimizers[0])
        self.ours = compile_composer_scheduler(LinearScheduler(), self.state)
        # What the predecessor's `compile_composer_scheduler` made.
        self.theirs = LambdaLR(self.optimizers[1], lambda epoch: 1 - int(self.state.timestamp.batch) / STEPS)

    def __iter__(self):
        return iter((self.ours, self.theirs))

    def step(self) -> None:
        count_batch(self.state)
        for optimizer in self.optimizers:
            optimizer.step()
        for schedule in self:
            schedule.step()

    @property
    def found(self):
        return [
            (
                [group["lr"] for group in schedule.optimizer.param_groups],
                [group["initial_lr"] for group in schedule.optimizer.param_groups],
                schedule.get_last_lr(),
                schedule._last_lr,
                schedule.base_lrs,
                schedule.last_epoch,
                schedule._step_count,
            )
            for schedule in self
        ]


def _new_bases(schedule):
    schedule.base_lrs = [3.0, 4.0]


def _one_base(schedule):
    schedule.base_lrs[0] = 0.5


def _scaled_bases(schedule):
    schedule.base_lrs[:] = [base * 2 for base in schedule.base_lrs]


def _rate(schedule):
    schedule.optimizer.param_groups[0]["lr"] = 7.0


def _initial(schedule):
    schedule.optimizer.param_groups[0]["initial_lr"] = 9.0


def _last_epoch(schedule):
    schedule.last_epoch = 5


def _last_lr(schedule):
    schedule._last_lr[0] = 11.0


def _lambda(schedule):
    schedule.lr_lambdas[1] = lambda epoch: 1 / (1 + epoch)


def _lambdas(schedule):
    schedule.lr_lambdas = [Half(), Half(0.125)]


def _another_optimizer(schedule):
    schedule.optimizer = sgd(groups=2)
    for group in schedule.optimizer.param_groups:
        group["initial_lr"] = 1.0


def _loaded(schedule):
    schedule.load_state_dict({**schedule.state_dict(), "base_lrs": [2.0, 3.0], "last_epoch": 4, "_last_lr": [1.0, 1.0]})


def _epoch(schedule):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        schedule.step(schedule.last_epoch)


def _nothing(schedule):
    schedule.get_last_lr()


EDITS = [
    _new_bases,
    _one_base,
    _scaled_bases,
    _rate,
    _initial,
    _last_epoch,
    _last_lr,
    _lambda,
    _lambdas,
    _another_optimizer,
    _loaded,
    _epoch,
    _nothing,
]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__.strip("_"))
def test_edits_hold_as_in_torch(edit) -> None:
    pair = Pair()
    pair.step()
    for schedule in pair:
        edit(schedule)
    ours, theirs = pair.found
    assert ours == theirs
    for _ in range(3):
        pair.step()
        ours, theirs = pair.found
        for one, other in zip(ours, theirs, strict=True):
            assert one == pytest.approx(other)


def test_what_it_has_of_the_base_class() -> None:
    pair = Pair()
    ours, theirs = pair
    assert isinstance(ours, LambdaLR)
    assert set(vars(theirs)) <= set(vars(ours)) | {"_is_initial", "_get_lr_called_within_step"}
    assert set(theirs.state_dict()) <= set(ours.state_dict())
    assert [len(schedule.lr_lambdas) for schedule in pair] == [2, 2]
    pair.step()
    assert [function(1) for function in ours.lr_lambdas] == [function(1) for function in theirs.lr_lambdas]
    for schedule in pair:
        with pytest.warns(UserWarning, match="please use `get_last_lr"):
            assert schedule.get_lr() == [0.875, 0.875 * 0.25]
        with pytest.warns(UserWarning, match="epoch parameter in `scheduler.step"):
            schedule.step(3)
        assert schedule.last_epoch == 3


@pytest.mark.parametrize("saved_by", [0, 1])
@pytest.mark.parametrize("loaded_by", [0, 1])
def test_a_state_goes_between_the_two(saved_by, loaded_by) -> None:
    pair, other = Pair(), Pair(lr=0.125)
    for schedule in pair:
        schedule.base_lrs[0] = 0.5
        schedule.lr_lambdas[1] = Half(0.75)
    pair.step()
    for schedule in other:
        schedule.lr_lambdas[1] = Half(0.1)
    target = list(other)[loaded_by]
    target.load_state_dict(copy.deepcopy(list(pair)[saved_by].state_dict()))
    other.state.timestamp = pair.state.timestamp
    other.step()
    pair.step()
    assert target.get_last_lr() == list(pair)[saved_by].get_last_lr()
    assert target.base_lrs == [0.5, 0.25]
    assert target.lr_lambdas[1].factor == 0.75
    assert target.last_epoch == 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_keeps_the_edits_and_its_own_functions(copied) -> None:
    pair = Pair()
    pair.ours.base_lrs[0] = 0.5
    other = copied(pair.ours)
    other.state.timestamp = other.state.timestamp.to_next_batch()
    other.step()
    assert other.get_last_lr() == [0.5 * 0.875, 0.25 * 0.875]
    assert all(function.__self__ is other for function in other.lr_lambdas)
    assert pair.ours.get_last_lr() == [1.0, 0.25]


@pytest.mark.parametrize("name", ["lr", "weight_decay"])
def test_initial_values_of_a_scheduled_hyperparameter(name) -> None:
    state = state_of("4ba", sgd(0.5, weight_decay=0.25))
    compiled = compile_composer_scheduler(LinearScheduler().assign(name), state)
    compiled.base_lrs[0] = 8.0
    count_batch(state)
    compiled.step()
    assert state.optimizers[0].param_groups[0][name] == 6.0
    assert compiled.get_last_lr() == [state.optimizers[0].param_groups[0]["lr"]]


def test_a_rate_that_is_a_tensor_is_set_in_place() -> None:
    rate = torch.tensor(0.5)
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(1))], lr=rate, fused=True)
    compiled = compile_composer_scheduler(LinearScheduler(), state := state_of("4ba", optimizer))
    compiled.base_lrs[0] = 1.0
    count_batch(state)
    compiled.step()
    last = compiled.get_last_lr()[0]
    assert optimizer.param_groups[0]["lr"] is rate
    assert (float(rate), float(last)) == (0.75, 0.75)
    rate.fill_(9.0)
    assert float(last) == 0.75


# ---------------------------------------------------------------------------------------------------- the schedule


def test_settings_of_a_schedule_hold_when_they_change() -> None:
    state = state_of("8ba")
    schedule = LinearScheduler()
    compiled = compile_composer_scheduler(schedule, state)
    for _ in range(4):
        count_batch(state)
        compiled.step()
    assert compiled.get_last_lr() == [0.5]
    schedule.alpha_f = 0.5
    compiled.step()
    assert compiled.get_last_lr() == [0.75]
    schedule.t_max = "4ba"
    compiled.step()
    assert compiled.get_last_lr() == [0.5]
    assert compiled.schedule is schedule
    compiled.schedule = ConstantScheduler(0.125)
    compiled.step()
    assert compiled.get_last_lr() == [0.125]


def test_settings_of_a_part_of_a_schedule_hold() -> None:
    state = state_of("8ba")
    part = MultiStepScheduler("2ba", gamma=0.5)
    compiled = compile_composer_scheduler(part.with_warmup("2ba"), state)
    for _ in range(5):
        count_batch(state)
        compiled.step()
    assert compiled.get_last_lr() == [0.5]
    part.gamma = 0.25
    compiled.step()
    assert compiled.get_last_lr() == [0.25]
    with pytest.raises(AttributeError):  # not ignored
        part.milestones.append("4ba")
    part.milestones = ["7ba"]
    compiled.step()
    assert compiled.get_last_lr() == [1.0]


# ---------------------------------------------------------------------------------------------------- in a run


def trained(path, until, edit=None, load=False, **settings):
    """A trainer of four steps an epoch, and the rates of its steps."""
    model = Regression()
    rates = []

    class Watch(Callback):
        def after_train_batch(self, state, logger):
            rates.append(state.optimizers[0].param_groups[0]["lr"])

    trainer = Trainer(
        model=model,
        train_dataloader=regression_data(),
        max_duration="2ep",
        optimizers=torch.optim.SGD(model.parameters(), lr=settings.pop("lr", 0.5)),
        schedulers=LinearScheduler(),
        load_path=str(path) if load else None,
        callbacks=Watch(),
        progress_bar=False,
        seed=1,
        **settings,
    )
    if edit is not None:
        edit(trainer.state.schedulers[0])
    if until:
        trainer.fit(duration=until) if load else trainer.fit()
    return trainer, rates


def test_an_edit_before_fit_holds_from_the_second_step_on() -> None:
    _, rates = trained(None, "2ep", _one_base)
    assert rates[1:] == pytest.approx([0.5 * (1 - k / 8) for k in range(1, 8)])
    _, rates = trained(None, "2ep", _scaled_bases)
    assert rates == pytest.approx([0.5, *(1 - k / 8 for k in range(1, 8))])


def test_edits_survive_a_resume(tmp_path) -> None:
    trainer, _ = trained(None, None)
    trainer.state.schedulers[0].base_lrs[0] = 4.0
    trainer.save_checkpoint(str(tmp_path / "a.pt"))
    again, rates = trained(tmp_path / "a.pt", None, load=True, lr=0.125)
    again.fit()
    assert again.state.schedulers[0].base_lrs == [4.0]
    assert rates[1:] == pytest.approx([4.0 * (1 - k / 8) for k in range(1, 8)])
    # Without its state the schedule begins with what the optimizer was made with here, as in torch.
    anew, rates = trained(tmp_path / "a.pt", None, load=True, lr=0.125, load_ignore_keys=["state/schedulers*"])
    anew.fit()
    assert rates[1:] == pytest.approx([0.125 * (1 - k / 8) for k in range(1, 8)])


def test_the_state_of_one_of_torch_goes_to_one_of_torch_first() -> None:
    saved = {"LambdaLR": {"base_lrs": [9.0], "last_epoch": 7, "_last_lr": [9.0], "lr_lambdas": [None]}}
    state = state_of("4ba", sgd(weight_decay=0.5))
    decay, rate = (compile_composer_scheduler(LinearScheduler().assign(n), state) for n in ("weight_decay", "lr"))
    load_each("schedulers", [decay, rate], as_named(saved))
    assert (decay.base_lrs, rate.base_lrs) == ([0.5], [9.0])
    theirs = LambdaLR(sgd(), lambda epoch: 1.0)
    rate.base_lrs = [1.0]
    load_each("schedulers", [rate, theirs], as_named(saved))
    assert (rate.base_lrs, theirs.base_lrs) == ([1.0], [9.0])


def test_a_state_of_other_groups_is_refused() -> None:
    state = state_of("4ba")
    compiled = compile_composer_scheduler(LinearScheduler(), state)
    with pytest.raises(ValueError, match="base_lrs has 2 values, but SGD has 1 groups"):
        compiled.load_state_dict({"base_lrs": [1.0, 2.0]})
