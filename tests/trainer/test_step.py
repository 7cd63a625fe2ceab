"""One optimizer step: optimizers, schedules, loss scaling."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer import Callback
from composer.algorithms import GradientClipping
from tests.common import (
    At,
    Received,
    Recorder,
    Regression,
    TwoLayers,
    classifier,
    labeled_data,
    regression_data,
    trainer_of,
    weights,
)


def train_by_hand(model, optimizer, data, epochs: int = 1) -> list[float]:
    """The loop that everybody writes; the losses."""
    losses = []
    for _ in range(epochs):
        for batch in data:
            optimizer.zero_grad()
            loss = model.loss(model(batch), batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.05),
        lambda p: torch.optim.Adagrad(p, lr=0.05),
    ],
    ids=["SGD", "AdamW", "Adagrad"],
)
def test_training_matches_a_manual_loop_bit_for_bit(make) -> None:
    model = Regression()
    twin = copy.deepcopy(model)
    log = Received()
    trainer_of(model, optimizers=make(model.parameters()), max_duration="3ep", loggers=log).fit()
    losses = train_by_hand(twin, make(twin.parameters()), regression_data(), epochs=3)
    assert [value for _, value in log.series("loss/train/total")] == losses
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


# ---------------------------------------------------------------------------------------------------- closures


def lbfgs(parameters) -> torch.optim.LBFGS:
    return torch.optim.LBFGS(
        parameters, max_iter=10, tolerance_grad=0, tolerance_change=0, line_search_fn="strong_wolfe"
    )


def test_LBFGS_finds_the_least_squares_solution() -> None:
    x, y = (torch.cat(parts).double() for parts in zip(*regression_data(8), strict=True))
    model = Regression(dtype=torch.float64)
    trainer_of(model, [(x, y)], optimizers=lbfgs(model.parameters()), max_duration="6ba").fit()
    design = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
    solution = torch.linalg.lstsq(design, y).solution.flatten()
    torch.testing.assert_close(
        torch.cat([p.detach().flatten() for p in model.parameters()]), solution, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("size", [None, 3])
def test_LBFGS_sees_the_same_batch_in_every_evaluation(size) -> None:
    """Transforms of microbatches are applied once for each evaluation, not on top of each other."""
    from composer import DataSpec

    seen = []

    def double(batch):
        seen.append(batch[0].clone())
        return batch[0] * 2, batch[1]

    model = Regression()
    data = DataSpec(regression_data(1, batch_size=6), microbatch_transforms=double)
    trainer_of(
        model, data, optimizers=lbfgs(model.parameters()), max_duration="1ba", device_train_microbatch_size=size
    ).fit()
    parts = 1 if size is None else 2
    assert len(seen) > parts
    for i, x in enumerate(seen):
        torch.testing.assert_close(x, seen[i % parts])


def test_custom_optimizer_may_evaluate_twice() -> None:
    """Sharpness-aware minimisation: the gradient at the point that is worst nearby moves the weights."""

    class Sharp(torch.optim.SGD):
        def step(self, closure=None):
            with torch.enable_grad():
                loss = closure()
            parameters = [p for group in self.param_groups for p in group["params"]]
            moves = [0.1 * p.grad for p in parameters]
            with torch.no_grad():
                torch._foreach_add_(parameters, moves)
            with torch.enable_grad():
                closure()
            with torch.no_grad():
                torch._foreach_sub_(parameters, moves)
            super().step()
            return loss

    model, recorder = Regression(), Recorder()
    twin = copy.deepcopy(model)
    trainer_of(model, optimizers=Sharp(model.parameters(), lr=0.1), callbacks=recorder).fit()
    by_hand = Sharp(twin.parameters(), lr=0.1)
    for batch in regression_data():

        def closure(batch=batch):
            by_hand.zero_grad()
            loss = twin.loss(twin(batch), batch)
            loss.backward()
            return loss

        by_hand.step(closure)
    assert recorder.events.count("before_train_batch") == 8
    torch.testing.assert_close(model.linear.weight, twin.linear.weight)


def test_custom_optimizer_with_step_without_arguments() -> None:
    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= 0.1 * parameter.grad

    ours, theirs = Regression(), Regression()
    theirs.load_state_dict(ours.state_dict())
    trainer_of(ours, optimizers=Plain(ours.parameters())).fit()
    trainer_of(theirs, lr=0.1).fit()
    torch.testing.assert_close(ours.linear.weight, theirs.linear.weight)


def test_closure_optimizer_next_to_one_without() -> None:
    model = TwoLayers()
    before = copy.deepcopy(model.state_dict())
    optimizers = [torch.optim.SGD(model.first.parameters(), lr=0.1), lbfgs(model.second.parameters())]
    log = Received()
    trainer = trainer_of(model, optimizers=optimizers, max_duration="2ba", loggers=log)
    trainer.fit()
    assert trainer.state.timestamp.batch == 2
    assert all(not torch.equal(before[name], value) for name, value in model.state_dict().items())


# ---------------------------------------------------------------------------------------------------- scaling


def test_scaled_gradients_are_unscaled_for_callbacks() -> None:
    plain, scaled = Regression(), Regression()
    scaled.load_state_dict(plain.state_dict())
    expected, found = (At("after_train_batch", lambda s: s.model.linear.weight.grad.clone()) for _ in range(2))
    trainer_of(plain, callbacks=expected).fit()
    trainer = trainer_of(scaled, callbacks=found)
    trainer.state.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    trainer.fit()
    for a, b in zip(found.found, expected.found, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(scaled.linear.weight, plain.linear.weight)


def test_overflowing_step_is_skipped_and_counted() -> None:
    data = regression_data(3)
    data[1] = (data[1][0] * float("inf"), data[1][1])
    model = Regression()
    seen = At("batch_end", lambda state: (model.linear.weight.detach().clone(), state.scaler.get_scale()))
    trainer = trainer_of(model, data, callbacks=seen)
    trainer.state.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    trainer.fit()
    (first, _), (second, scale), (third, _) = seen.found
    assert torch.equal(first, second)
    assert not torch.equal(second, third)
    assert scale == 2.0
    assert trainer.state.timestamp.batch == 3


def test_scaling_rejects_closures() -> None:
    model = Regression()
    trainer = trainer_of(model, optimizers=lbfgs(model.parameters()))
    trainer.state.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ValueError, match=r"LBFGS evaluates its closure several times.*'amp_bf16' or 'fp32'"):
        trainer.fit()


class TakingTurns(TwoLayers):
    """Trains the layers that ``turns`` names for each step; the others get no gradient."""

    def __init__(self, turns: list[tuple[str, ...]]) -> None:
        super().__init__()
        self.turns, self.step = turns, 0

    def loss(self, outputs, batch):
        trained = {id(p) for name in self.turns[self.step] for p in getattr(self, name).parameters()}
        self.step += 1
        for parameter in self.parameters():
            parameter.requires_grad_(id(parameter) in trained)
        # Anew, through those alone; where there is none, all the same something to differentiate.
        return super().loss(self(batch), batch) + torch.zeros((), requires_grad=True)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.AdamW(self.first.parameters(), lr=0.01),
            torch.optim.SGD(self.second.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
        ]


def taking_turns(turns: list[tuple[str, ...]], scale: float | None, **arguments) -> tuple[torch.Tensor, list[float]]:
    """The weights after a step for each turn, and the scales."""
    torch.manual_seed(0)
    model = TakingTurns(turns)
    scales = At("batch_end", lambda state: state.scaler.get_scale() if state.scaler else 0.0)
    optimizers = model.optimizers()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    data = regression_data(len(turns), 4)
    trainer = trainer_of(model, data, optimizers=optimizers, callbacks=scales, **arguments)
    if scale is not None:
        trainer.state.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    trainer.fit()
    return weights(trainer), scales.found


FIRST, SECOND, BOTH, NONE = ("first",), ("second",), ("first", "second"), ()


@pytest.mark.parametrize(
    "turns",
    [[FIRST, SECOND] * 3, [SECOND] * 4, [BOTH, NONE, FIRST, NONE, SECOND, BOTH], [NONE] * 3],
    ids=["in turn", "one is frozen", "now and then none", "never any"],
)
@pytest.mark.parametrize("clips", [False, True])
def test_scaled_optimizers_without_gradients_step_as_plain_ones_do(turns, clips) -> None:
    """Powers of two scale without rounding, so the weights are the same bit for bit."""
    found, expected = (
        taking_turns(turns, scale, algorithms=GradientClipping("norm", 0.1) if clips else None)
        for scale in (2.0**10, None)
    )
    assert torch.equal(found[0], expected[0])
    checked = [2 ** (sum(turn != NONE for turn in turns[: step + 1]) // 2) for step in range(len(turns))]
    assert found[1] == [2.0**10 * times for times in checked]  # grows by the steps that were checked


def test_an_overflow_of_one_optimizer_next_to_one_without_gradients() -> None:
    data = regression_data(3, 4)
    data[1] = (data[1][0] * float("inf"), data[1][1])
    model = TakingTurns([BOTH, FIRST, BOTH])
    optimizers = model.optimizers()
    seen = At("batch_end", lambda state: (weights(trainer), state.scaler.get_scale()))
    trainer = trainer_of(model, data, optimizers=optimizers, callbacks=seen)
    trainer.state.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    trainer.fit()
    (first, _), (second, scale), (third, _) = seen.found
    assert torch.equal(first, second)
    assert not torch.equal(second, third)
    assert scale == 4.0
    assert torch.isfinite(third).all()


# ---------------------------------------------------------------------------------------------------- odd losses


def test_nan_loss_does_not_stop_training() -> None:
    data = regression_data(3)
    data[1] = (data[1][0] * float("nan"), data[1][1])
    model, log = Regression(), Received()
    trainer = trainer_of(model, data, loggers=log, eval_dataloader=regression_data(1))
    trainer.fit()
    losses = [value for _, value in log.series("loss/train/total")]
    assert math.isfinite(losses[0])
    assert math.isnan(losses[1])
    assert math.isnan(losses[2])
    assert trainer.state.timestamp.batch == 3


def test_a_callback_can_act_on_a_nan_loss_before_the_update() -> None:
    class Skip(Callback):
        def after_train_batch(self, state, logger):
            if torch.isnan(state.loss):
                for parameter in state.model.parameters():
                    parameter.grad = None

    data = regression_data(3)
    data[1] = (data[1][0] * float("nan"), data[1][1])
    trainer = trainer_of(data=data, callbacks=Skip())
    trainer.fit()
    assert torch.isfinite(weights(trainer)).all()


@settings(max_examples=20)
@given(weight_decay=st.floats(0, 0.5), momentum=st.floats(0, 0.95))
def test_zeroed_gradients_after_training(weight_decay: float, momentum: float) -> None:
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum, weight_decay=weight_decay)
    trainer_of(model, regression_data(1), optimizers=optimizer).fit()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_accuracy_on_separable_data_reaches_one() -> None:
    data = labeled_data(8, 16)
    data = [(x, x[:, :3].argmax(1)) for x, _ in data]
    log = Received()
    trainer_of(classifier(), data, lr=1.0, max_duration="20ep", loggers=log, eval_dataloader=data).fit()
    assert log.series("metrics/eval/MulticlassAccuracy")[-1][1] > 0.95


def gradients_during(optimizer_of, make=classifier) -> tuple[list[bool], torch.optim.Optimizer]:
    """Whether gradients were there in each forward pass of three steps."""
    seen: list[bool] = []
    model = make()
    optimizer = optimizer_of(model)
    callback = At("before_forward", lambda state: seen.append(any(p.grad is not None for p in model.parameters())))
    trainer_of(model, labeled_data()[:3], optimizers=optimizer, callbacks=callback, max_duration="1ep").fit()
    return seen, optimizer


class CountsZeroGrad(torch.optim.SGD):
    """An optimizer with a `zero_grad` of its own."""

    zeroed = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.zeroed += 1
        super().zero_grad(set_to_none)


# Each is called before each step, and once at the end of training.


def test_gradients_are_none_before_each_step() -> None:
    seen, _ = gradients_during(lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    assert seen
    assert not any(seen)


def test_a_zero_grad_of_a_class_is_called() -> None:
    seen, optimizer = gradients_during(lambda model: CountsZeroGrad(model.parameters(), lr=0.1))
    assert not any(seen)
    assert optimizer.zeroed == len(seen) + 1


def test_a_zero_grad_of_an_instance_is_called() -> None:
    calls: list[int] = []

    def make(model) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        own = optimizer.zero_grad
        optimizer.zero_grad = lambda *args, **kwargs: (calls.append(1), own(*args, **kwargs))
        return optimizer

    seen, _ = gradients_during(make)
    assert not any(seen)
    assert len(calls) == len(seen) + 1


def test_profiles_show_the_span_of_zero_grad() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        seen, _ = gradients_during(lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    assert not any(seen)
    assert sum(event.name == "Optimizer.zero_grad#SGD.zero_grad" for event in profile.events()) == len(seen) + 1
