"""Which schedule is for what."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, ExponentialLR

from composer.optim.schedule_assignment import Job, assign, name_of
from composer.optim.scheduler import AssignedSchedule, ConstantScheduler, CosineAnnealingScheduler, LinearScheduler
from tests.optim.schedules import sgd

linear, cosine, constant = LinearScheduler(), CosineAnnealingScheduler(), ConstantScheduler()


def jobs(entries, optimizers):
    """Each job as schedule, number of the optimizer, hyperparameter, groups."""
    found = assign(entries, optimizers)
    number = {id(optimizer): number for number, optimizer in enumerate(optimizers)}
    return [
        (job.schedule, number[id(job.optimizer)], job.hyperparameter, job.groups) if isinstance(job, Job) else job
        for job in found
    ]


def named(*names: str) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "name": name} for name in names], lr=0.1)


def test_one_for_all_or_one_each() -> None:
    optimizers = [sgd(groups=2), sgd()]
    assert jobs([linear], optimizers) == [(linear, 0, "lr", (0, 1)), (linear, 1, "lr", (0,))]
    assert jobs([linear, cosine], optimizers) == [(linear, 0, "lr", (0, 1)), (cosine, 1, "lr", (0,))]
    assert jobs([linear, linear], optimizers) == [(linear, 0, "lr", (0, 1)), (linear, 1, "lr", (0,))]
    assert jobs([], optimizers) == []


def test_functions_are_schedules() -> None:
    def halve(state, ssr):
        return 0.5

    optimizer = sgd()
    assert jobs([halve], [optimizer]) == [(halve, 0, "lr", (0,))]
    assert jobs([AssignedSchedule(halve, "momentum")], [optimizer]) == [(halve, 0, "momentum", (0,))]


def test_a_plain_schedule_is_for_what_the_assigned_ones_leave() -> None:
    optimizers = [sgd(groups=3), sgd()]
    entries = [linear, cosine.assign(groups=1, optimizer=0), constant.assign("weight_decay", optimizer=optimizers[1])]
    assert jobs(entries, optimizers) == [
        (linear, 0, "lr", (0, 2)),
        (linear, 1, "lr", (0,)),
        (cosine, 0, "lr", (1,)),
        (constant, 1, "weight_decay", (0,)),
    ]


def test_a_plain_schedule_is_for_added_groups_where_assigned_ones_set_all_present_ones() -> None:
    optimizers = [sgd(groups=2), sgd()]
    for_groups = [linear, constant.assign(optimizer=0, groups=[0, 1])]
    rest, *others = [(linear, 0, "lr", ()), (linear, 1, "lr", (0,)), (constant, 0, "lr", (0, 1))]
    assert jobs(for_groups, optimizers) == [rest, *others]
    assert jobs([linear, constant.assign(optimizer=0)], optimizers) == others  # which sets added groups itself
    with pytest.raises(ValueError, match="LinearScheduler has nothing to set"):
        assign([linear, constant.assign(groups=[0])], [sgd()])


def test_groups_by_name() -> None:
    optimizer = named("body", "head")
    assert jobs([linear.assign(groups=["head", 0, 1])], [optimizer]) == [(linear, 0, "lr", (1, 0))]
    assert jobs([linear.assign(groups="body")], [optimizer]) == [(linear, 0, "lr", (0,))]
    with pytest.raises(ValueError, match=r"no group 'haed'\. Did you mean 'head'\? It has groups 0 to 1, named 'body'"):
        assign([linear.assign(groups="haed")], [optimizer])
    with pytest.raises(ValueError, match=r"SGD has no group 'head'\. It has groups 0 to 0, without names"):
        assign([linear.assign(groups="head")], [sgd()])
    with pytest.raises(ValueError, match=r"SGD has no group -1\."):
        assign([linear.assign(groups=-1)], [sgd()])


def test_beside_schedules_of_torch() -> None:
    first, second = sgd(), sgd()
    theirs = [ConstantLR(first), ExponentialLR(first, 0.9)]
    assert jobs([*theirs, linear], [first, second]) == [*theirs, (linear, 1, "lr", (0,))]
    assert jobs([linear.assign("momentum"), theirs[0]], [first]) == [(linear, 0, "momentum", (0,)), theirs[0]]
    with pytest.raises(
        ValueError, match=r"LinearScheduler has nothing to set, because ConstantLR set every learning rate"
    ):
        assign([theirs[0], linear], [first])
    with pytest.raises(ValueError, match="ConstantLR and LinearScheduler both set 'lr' of group 0 of SGD"):
        assign([theirs[0], linear.assign()], [first])


def test_two_for_one_thing() -> None:
    with pytest.raises(ValueError, match=r"2 learning-rate schedules \(LinearScheduler, <lambda>\) for 1"):
        assign([linear, lambda state: 1.0], [sgd()])
    with pytest.raises(ValueError, match=r"3 learning-rate schedules .* for 2 optimizers\. Give one for all"):
        assign([linear] * 3, [sgd(), sgd()])
    with pytest.raises(ValueError, match="LinearScheduler and CosineAnnealingScheduler both set 'momentum' of group 1"):
        assign([linear.assign("momentum", groups=[1]), cosine.assign("momentum")], [sgd(groups=2)])
    both = [linear.assign("momentum", groups=[1]), cosine.assign("momentum", groups=[0])]
    assert len(assign(both, [sgd(groups=2)])) == 2


def test_optimizers_that_are_not_there() -> None:
    with pytest.raises(ValueError, match=r"optimizer=1\) is for .* not passed .* There are 0 \(SGD\)"):
        assign([linear.assign(optimizer=1)], [sgd()])
    with pytest.raises(ValueError, match=r"optimizer=Adam\) is for an optimizer that was not passed"):
        assign([linear.assign(optimizer=torch.optim.Adam([nn.Parameter(torch.ones(1))]))], [sgd()])


@pytest.mark.parametrize("schedule", [3, "cosine", LinearScheduler])
def test_wrong_kinds(schedule) -> None:
    with pytest.raises(TypeError, match="schedule must be a ComposerScheduler or a function"):
        AssignedSchedule(schedule)


def test_names() -> None:
    assert name_of(linear.assign("momentum")) == "LinearScheduler"
    shown = f"AssignedSchedule({linear!r}, 'momentum', optimizer=0, groups=(2,))"
    assert repr(linear.assign("momentum", optimizer=0, groups=2)) == shown
