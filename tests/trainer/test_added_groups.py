"""Parameter groups that are added to an optimizer during training are scheduled from their first step on."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch.optim import lr_scheduler

from composer.callbacks import LRMonitor
from composer.loggers import InMemoryLogger
from composer.optim.scheduler import ConstantScheduler, LinearScheduler, MultiStepScheduler
from tests.common import At, TwoLayers, regression_data, trainer_of, weights_of

FALLING = [1 - k / 8 for k in range(8)]
HALF = ConstantScheduler(0.5)


def optimizer_of(model: TwoLayers, **settings: Any) -> torch.optim.SGD:
    """An optimizer of the first layer."""
    settings = {"lr": 0.01, "momentum": 0.9, **settings}
    return torch.optim.SGD(model.first.parameters(), **settings)


def follow(optimizer: torch.optim.Optimizer) -> list[list[float]]:
    """The learning rates of all groups in each step, as multiples of 0.01."""
    used: list[list[float]] = []
    optimizer.register_step_pre_hook(lambda *_: used.append([float(g["lr"]) / 0.01 for g in optimizer.param_groups]))
    return used


def add_at(event: str, batch: int, **group: Any) -> At:
    """A callback that adds the second layer to the optimizer, at an event after a number of batches."""

    def add(state) -> None:
        optimizer = state.optimizers[0]
        if state.timestamp.batch == batch and len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": list(state.model.second.parameters()), **group})

    return At(event, add)


def train(event: str, batch: int, settings: dict[str, Any] | None = None, **arguments: Any) -> list[list[float]]:
    """Train two epochs of four batches; the learning rates of each step."""
    model = TwoLayers()
    optimizer = optimizer_of(model, **(settings or {}))
    used = follow(optimizer)
    callbacks = [add_at(event, batch), *arguments.pop("callbacks", [])]
    arguments = {"schedulers": LinearScheduler(), "max_duration": "2ep", **arguments}
    trainer_of(model, optimizers=optimizer, callbacks=callbacks, **arguments).fit()
    return used


def both(rates: list[float], since: int) -> list[Any]:
    """The rates of one group, and of two from a step on."""
    return [pytest.approx([rate] * (1 if step < since else 2)) for step, rate in enumerate(rates)]


EVENTS = ["batch_start", "before_forward", "after_train_batch", "batch_end", "batch_checkpoint"]


@pytest.mark.parametrize(("event", "batch"), [*((e, 3) for e in EVENTS), ("epoch_start", 4), ("epoch_end", 4)])
def test_from_the_first_step_on(event, batch) -> None:
    assert train(event, batch) == both(FALLING, since=batch)


@pytest.mark.parametrize("event", ["epoch_end", "epoch_start", "batch_start"])
def test_with_schedules_of_epochs(event) -> None:
    assert train(event, 4, step_schedulers_every_batch=False) == both([1.0] * 4 + [0.5] * 4, since=4)


def test_in_the_middle_of_an_epoch_with_schedules_of_epochs() -> None:
    found = train("batch_start", 5, step_schedulers_every_batch=False)
    assert found == both([1.0] * 4 + [0.5] * 4, since=5)


def test_between_two_fits() -> None:
    model = TwoLayers()
    optimizer = optimizer_of(model)
    used = follow(optimizer)
    trainer = trainer_of(model, optimizers=optimizer, schedulers=MultiStepScheduler("2ba", gamma=0.1))
    trainer.fit()
    optimizer.add_param_group({"params": list(model.second.parameters())})
    trainer.fit(duration="1ep")
    assert used == both([1.0] * 2 + [0.1] * 6, since=4)


def test_other_groups_keep_what_the_user_set() -> None:
    def edit(state) -> None:
        if state.timestamp.batch == 3:
            state.optimizers[0].param_groups[0]["lr"] = 0.07

    found = train("batch_start", 3, callbacks=[At("batch_start", edit)])
    assert found[3] == pytest.approx([7.0, 0.625]) and found[4] == pytest.approx([0.5, 0.5])


def test_its_own_rate_and_other_hyperparameters() -> None:
    model = TwoLayers()
    optimizer = optimizer_of(model)
    used = follow(optimizer)
    momenta: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: momenta.append(optimizer.param_groups[-1]["momentum"]))
    schedulers = [LinearScheduler(), LinearScheduler().assign("momentum")]
    callback = add_at("after_train_batch", 4, lr=0.03, momentum=0.5)
    trainer_of(model, optimizers=optimizer, callbacks=callback, schedulers=schedulers, max_duration="2ep").fit()
    assert [rates[1:] for rates in used[4:]] == [pytest.approx([3 * rate]) for rate in FALLING[4:]]
    assert momenta == pytest.approx([0.9 * rate for rate in FALLING[:4]] + [0.5 * rate for rate in FALLING[4:]])


def test_a_tensor_that_is_shared_with_the_first_group() -> None:
    assert train("batch_start", 3, {"lr": torch.tensor(0.01), "foreach": False}) == both(FALLING, since=3)


@pytest.mark.parametrize("event", ["epoch_end", "batch_end", "batch_start"])
def test_rates_are_logged_and_seen_as_they_are_used(event) -> None:
    seen = At("after_train_batch", lambda state: [group["lr"] / 0.01 for group in state.optimizers[0].param_groups])
    log = InMemoryLogger()
    found = train(event, 4, callbacks=[LRMonitor(), seen], loggers=log)
    assert seen.found == found
    if event != "batch_start":  # the event at which LRMonitor logs
        logged = [float(value) / 0.01 for _, value in log.data["lr-SGD/group1"]]
        assert logged == pytest.approx(FALLING[4:])


# ---------------------------------------------------------------------------------------------------- which schedule


@pytest.mark.parametrize(
    ("groups", "schedulers", "expected"),
    [
        (2, [HALF, ConstantScheduler(0.2).assign(groups=[1])], [0.5, 0.2, 0.5]),
        (2, [HALF.assign(groups=[1])], [1.0, 0.5, 1.0]),
        (1, [HALF.assign(groups=[0])], [0.5, 1.0]),
        (2, [HALF.assign(groups=[0, 1])], [0.5, 0.5, 1.0]),
        (1, [HALF.assign()], [0.5, 0.5]),
        (1, [HALF.assign(optimizer=0)], [0.5, 0.5]),
    ],
)
def test_which_schedule_takes_it_over(groups, schedulers, expected) -> None:
    model = TwoLayers()
    layers = [model.first.weight, model.first.bias] if groups == 2 else [model.first.weight]
    optimizer = torch.optim.SGD([{"params": [layer]} for layer in layers], lr=0.01)
    used = follow(optimizer)

    def add(state) -> None:
        if state.timestamp.batch == 3:
            optimizer.add_param_group({"params": list(model.second.parameters())})

    callback = At("batch_end", add)
    trainer_of(model, optimizers=optimizer, callbacks=callback, schedulers=schedulers, max_duration="6ba").fit()
    assert len(used) == 6
    assert used[3:] == [pytest.approx(expected)] * 3


def two_optimizers(added: bool, **arguments: Any) -> tuple[Any, torch.optim.SGD, TwoLayers]:
    torch.manual_seed(1)
    model = TwoLayers()
    first, second = (torch.optim.SGD([weight], lr=0.01) for weight in (model.first.weight, model.second.weight))
    if added:
        first.add_param_group({"params": [model.first.bias]})
    schedulers = [LinearScheduler(), ConstantScheduler().assign(optimizer=0, groups=[0])]
    trainer = trainer_of(
        model, optimizers=[first, second], schedulers=schedulers, max_duration="2ep", run_name="run", **arguments
    )
    return trainer, first, model


def test_where_assigned_schedules_set_all_groups_that_there_were(tmp_path) -> None:
    def add(state) -> None:
        if state.timestamp.batch == 3:
            first.add_param_group({"params": [model.first.bias]})

    full, first, model = two_optimizers(False, callbacks=At("batch_start", add))
    used = follow(first)
    full.fit(duration="6ba")
    saved = full.save_checkpoint(str(tmp_path / "saved.pt"))
    full.fit(duration="2ba")
    again, optimizer, other = two_optimizers(True, load_path=saved)
    resumed = follow(optimizer)
    again.fit(duration="2ba")
    expected = [1 - step / 6 for step in range(6)] + [1 - step / 8 for step in (6, 7)]
    assert used == [pytest.approx([1.0] if step < 3 else [1.0, expected[step]]) for step in range(8)]
    assert resumed == used[6:]
    assert torch.equal(weights_of(other), weights_of(model))


TORCH_SCHEDULES = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=8),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.5), lr_scheduler.LambdaLR(o, lambda step: 0.9**step)], [2]
    ),
}


@pytest.mark.parametrize("every_batch", [True, False])
@pytest.mark.parametrize("name", TORCH_SCHEDULES)
def test_an_error_names_a_schedule_of_torch_that_does_not_cover_it(name, every_batch) -> None:
    model = TwoLayers()
    optimizer = optimizer_of(model)
    message = rf"schedulers: {name} does not cover parameter group 1 \('head'\) of SGD.*composer\.optim, which covers"
    arguments = {"schedulers": TORCH_SCHEDULES[name](optimizer), "step_schedulers_every_batch": every_batch}
    duration = "2ep" if every_batch else "8ep"
    callback = add_at("batch_start", 4, name="head")
    trainer = trainer_of(model, optimizers=optimizer, callbacks=callback, max_duration=duration, **arguments)
    with pytest.raises(ValueError, match=message):
        trainer.fit()


def test_a_schedule_of_torch_that_fails_for_another_reason() -> None:
    model = TwoLayers()
    optimizer = optimizer_of(model)
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 3 else {}["no"])
    trainer = trainer_of(model, optimizers=optimizer, schedulers=schedule, step_schedulers_every_batch=True)
    with pytest.raises(KeyError, match="no"):
        trainer.fit()


# ---------------------------------------------------------------------------------------------------- checkpoints


def resumable(two: bool = False, **arguments: Any) -> tuple[Any, TwoLayers]:
    torch.manual_seed(1)
    model = TwoLayers()
    optimizer = optimizer_of(model)
    if two:
        optimizer.add_param_group({"params": list(model.second.parameters())})
    # Of several schedules, each finds its own state by the groups that it sets.
    schedulers = [LinearScheduler(), LinearScheduler(0.5, 0.1).assign("momentum", groups=[0])]
    arguments = {"schedulers": schedulers, "max_duration": "2ep", "run_name": "run", **arguments}
    return trainer_of(model, optimizers=optimizer, **arguments), model


@pytest.mark.parametrize("event", ["epoch_end", "batch_end"])
def test_a_checkpoint_right_after_it_was_added_is_resumed_exactly(event, tmp_path) -> None:
    saving = {"save_folder": str(tmp_path), "save_filename": "{batch}.pt", "save_interval": "2ba"}
    if event == "epoch_end":
        saving["save_interval"] = "1ep"
    full, model = resumable(callbacks=add_at(event, 4), **saving)
    full.fit()
    again, other = resumable(two=True, load_path=str(tmp_path / "4.pt"))
    used = follow(again.state.optimizers[0])
    again.fit()
    assert torch.equal(weights_of(other), weights_of(model))
    assert used == both(FALLING[4:], since=0)
    assert again.state.schedulers[0].base_lrs == [0.01, 0.01]


@pytest.mark.parametrize("batch", [4, 5, 7])
@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("schedule", [LinearScheduler, lambda: LinearScheduler().assign("weight_decay"), None])
def test_groups_that_a_program_has_not_added_yet_are_added_when_loading(
    schedule, momentum, batch, tmp_path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(**more: Any) -> tuple[Any, TwoLayers, list[list[float]]]:
        torch.manual_seed(1)
        model = TwoLayers()
        model.second.requires_grad_(False)  # the callback, which acts once, unfreezes and adds it
        optimizer = optimizer_of(model, momentum=momentum, weight_decay=0.1)
        used = follow(optimizer)
        unfreeze = At("epoch_end", lambda state: model.second.requires_grad_(True))
        arguments = {"callbacks": [unfreeze, add_at("epoch_end", 4, lr=0.03, weight_decay=0.2)], **more}
        schedulers = None if schedule is None else schedule()
        trainer = trainer_of(model, optimizers=optimizer, schedulers=schedulers, max_duration="2ep", **arguments)
        trainer.fit()
        return trainer, model, used

    saving = {"save_folder": str(tmp_path), "save_filename": "{epoch}-{batch}.pt", "save_num_checkpoints_to_keep": -1}
    _, full, rates = run(save_interval="1ep" if batch == 4 else "1ba", **saving)
    resumed, model, used = run(load_path=str(tmp_path / f"1-{batch}.pt"))
    assert "added to SGD, and is trainable: second.weight" in caplog.text
    assert used == rates[batch:]
    assert torch.equal(weights_of(model), weights_of(full))
    assert [len(group["params"]) for group in resumed.state.optimizers[0].param_groups] == [2, 2]


def test_groups_of_parameters_that_another_optimizer_has_are_refused(tmp_path) -> None:
    torch.manual_seed(1)
    saved, _ = resumable(two=True)
    saved.save_checkpoint(tmp_path / "saved.pt")
    model = TwoLayers()
    others = [optimizer_of(model), torch.optim.Adam(model.second.parameters())]
    with (
        pytest.warns(UserWarning, match="no state of the optimizers"),
        pytest.raises(ValueError, match=r"2 parameter groups of SGD, .* has 1. .* that no optimizer has"),
    ):
        trainer_of(model, optimizers=others, load_path=str(tmp_path / "saved.pt"))
    assert len(others[0].param_groups) == 1


def test_state_dict_between_two_fits_covers_it() -> None:
    trainer, model = resumable(schedulers=ConstantScheduler(0.5, t_max="9ep"))
    trainer.fit(duration="1ep")
    trainer.state.optimizers[0].add_param_group({"params": list(model.second.parameters())})
    saved = trainer.state.state_dict()
    other, _ = resumable(two=True, schedulers=ConstantScheduler(0.5, t_max="9ep"))
    other.state.load_state_dict(saved, other.logger)
    assert [group["lr"] for group in other.state.optimizers[0].param_groups] == pytest.approx([0.005, 0.005])


# ---------------------------------------------------------------------------------------------------- undone


class FailingOnce(torch.optim.SGD):
    """Runs out of memory in the step of the batch in which a group was added."""

    failed = False
    rates: ClassVar[list[list[float]]] = []

    def step(self, closure=None):
        if len(self.param_groups) == 2 and not type(self).failed:
            type(self).failed = True
            raise torch.OutOfMemoryError("CUDA out of memory.")
        self.rates.append([group["lr"] for group in self.param_groups])
        return super().step(closure)


def test_a_step_that_is_undone_also_undoes_the_schedules() -> None:
    """The group is added again when the batch is."""
    model = TwoLayers()
    optimizer = FailingOnce(model.first.parameters(), lr=0.01)
    trainer = trainer_of(
        model,
        regression_data(batch_size=4),
        optimizers=optimizer,
        callbacks=add_at("after_train_batch", 0, lr=0.03),
        schedulers=ConstantScheduler(0.5),
        device_train_microbatch_size="auto",
    )
    trainer.fit()
    assert FailingOnce.failed
    assert FailingOnce.rates == [pytest.approx([0.005, 0.015])] * 4
