"""Optimizers that take a closure train as in a hand-written loop: gradients first, and evaluations on request."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn

from composer import Callback, Logger, State
from composer.trainer.closure import StepClosure
from tests.common import At, Received, Regression, TwoLayers, regression_data, trainer_of


class Usual(torch.optim.SGD):
    """What most optimizers of other libraries do with a closure."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        super().step()
        return loss


class WithoutGrad(torch.optim.SGD):
    """Calls the closure where no gradients are recorded, as Adafactor of transformers does."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        super().step()
        return loss


class Clipping(torch.optim.SGD):
    """Clips before it calls the step that evaluates the closure."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.01)
        return super().step(closure)


class Ignoring(torch.optim.SGD):
    """Takes a closure, and does not call it."""

    def step(self, closure: Any = None) -> Any:
        return super().step()


def _clip_in_a_hook(optimizer: torch.optim.Optimizer) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(parameters, 0.01) and None)


def _clip_in_a_patch(optimizer: torch.optim.Optimizer) -> None:
    parameters, own = [p for group in optimizer.param_groups for p in group["params"]], optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        nn.utils.clip_grad_norm_(parameters, 0.01)
        return own(*args, **kwargs)

    optimizer.step = step  # type: ignore[method-assign]


def _without_arguments(optimizer: torch.optim.Optimizer) -> None:
    own = optimizer.step
    optimizer.step = lambda: own()  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("attach", [None, _clip_in_a_hook, _clip_in_a_patch, _without_arguments])
@pytest.mark.parametrize("cls", [Usual, WithoutGrad, Clipping, Ignoring], ids=lambda cls: cls.__name__)
def test_weights_are_those_of_a_loop_by_hand(cls: type[torch.optim.SGD], attach: Callable[..., None] | None) -> None:
    model = Regression()
    twin = copy.deepcopy(model)
    ours, theirs = (cls(one.parameters(), lr=0.1, momentum=0.9) for one in (model, twin))
    if attach is not None:
        attach(ours)
        attach(theirs)
    trainer_of(model, optimizers=ours).fit()
    for batch in regression_data():
        theirs.zero_grad()
        twin.loss(twin(batch), batch).backward()
        theirs.step()
    assert torch.equal(model.linear.weight, twin.linear.weight)


class AfterAFlag(torch.optim.SGD):
    def step(self, skip: bool = False, closure: Any = None) -> Any:
        return None if skip else super().step(closure)


class KeywordOnly(torch.optim.SGD):
    def step(self, *, closure: Any) -> Any:
        return super().step(closure)


class OtherName(torch.optim.SGD):
    def step(self, loss_function: Any) -> Any:
        return super().step(loss_function)


class Forwarding(torch.optim.SGD):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        return super().step(*args, **kwargs)


class WithAScale(torch.optim.SGD):
    def step(self, scale: float = 1.0) -> Any:
        assert scale == 1.0
        return super().step()


class PositionalOnly(torch.optim.SGD):
    def step(self, closure: Any, /) -> Any:
        return super().step(closure)


class AnyKeywords(torch.optim.SGD):
    def step(self, **keywords: Any) -> Any:
        return super().step(**keywords)


def _wrap(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step = functools.wraps(optimizer.step)(partial(optimizer.step))  # type: ignore[method-assign]


def _follow_a_schedule(optimizer: torch.optim.Optimizer) -> None:
    torch.optim.lr_scheduler.StepLR(optimizer, 100)


def _replace_and_follow_a_schedule(optimizer: torch.optim.Optimizer) -> None:
    own = optimizer.step
    method = (lambda self, **keywords: own(**keywords)) if type(optimizer) is AnyKeywords else type(optimizer).step
    optimizer.step = MethodType(method, optimizer)  # type: ignore[method-assign]
    _follow_a_schedule(optimizer)


@pytest.mark.parametrize("attach", [None, _wrap, _follow_a_schedule, _replace_and_follow_a_schedule])
@pytest.mark.parametrize(
    "cls",
    [AfterAFlag, KeywordOnly, OtherName, Forwarding, WithAScale, PositionalOnly, AnyKeywords],
    ids=lambda cls: cls.__name__,
)
def test_a_closure_is_passed_as_the_step_takes_it(
    cls: type[torch.optim.SGD], attach: Callable[..., None] | None
) -> None:
    model = Regression()
    twin = copy.deepcopy(model)
    ours, theirs = cls(model.parameters(), lr=0.1), torch.optim.SGD(twin.parameters(), lr=0.1)
    if attach is not None:
        attach(ours)
    trainer_of(model, optimizers=ours).fit()
    trainer_of(twin, optimizers=theirs).fit()
    assert torch.equal(model.linear.weight, twin.linear.weight)


def _parameter_and_calls() -> tuple[nn.Parameter, list[float], Callable[[], torch.Tensor]]:
    weight, calls = nn.Parameter(torch.ones(2)), list[float]()

    def evaluate() -> torch.Tensor:
        weight.grad = None
        loss = (weight**2).sum()
        loss.backward()
        calls.append(loss.item())
        return loss.detach()

    return weight, calls, evaluate


def test_first_call_returns_the_loss_of_the_gradients() -> None:
    weight, calls, evaluate = _parameter_and_calls()
    closure = StepClosure(evaluate, evaluate(), [weight])
    assert closure() == 2.0
    assert calls == [2.0]
    with torch.no_grad():
        assert closure() == 2.0  # a second call evaluates, also without gradient recording
    assert calls == [2.0, 2.0]


@torch.no_grad()
def _move(weight: nn.Parameter) -> None:
    weight.add_(1)


def _zero(weight: nn.Parameter) -> None:
    assert weight.grad is not None
    weight.grad.zero_()


def _drop(weight: nn.Parameter) -> None:
    weight.grad = None


@pytest.mark.parametrize(("change", "loss"), [(_move, 8.0), (_zero, 2.0), (_drop, 2.0)])
def test_first_call_evaluates_if_the_gradients_are_of_no_use(change: Callable[..., None], loss: float) -> None:
    weight, calls, evaluate = _parameter_and_calls()
    closure = StepClosure(evaluate, evaluate(), [weight])
    change(weight)
    assert closure() == loss
    assert calls == [2.0, loss]
    assert torch.equal(weight.grad, 2 * weight)


def test_edited_gradients_are_kept() -> None:
    weight, calls, evaluate = _parameter_and_calls()
    closure = StepClosure(evaluate, evaluate(), [weight])
    weight.grad.mul_(0.5)
    closure()
    assert len(calls) == 1
    assert torch.equal(weight.grad, torch.ones(2))


def test_an_optimizer_may_climb_before_its_first_call() -> None:
    """As the sharpness-aware optimizers of other libraries do, whose users call backward before the step."""

    class Climbing(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            parameters = [p for group in self.param_groups for p in group["params"]]
            moves = [0.1 * p.grad for p in parameters]
            torch._foreach_add_(parameters, moves)
            self.zero_grad()
            with torch.enable_grad():
                loss = closure()
            torch._foreach_sub_(parameters, moves)
            super().step()
            return loss

    model = Regression()
    twin = copy.deepcopy(model)
    trainer_of(model, optimizers=Climbing(model.parameters(), lr=0.1)).fit()
    optimizer = Climbing(twin.parameters(), lr=0.1)
    for batch in regression_data():

        def closure(batch: Any = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = twin.loss(twin(batch), batch)
            loss.backward()
            return loss

        closure()
        optimizer.step(closure)
    assert torch.equal(model.linear.weight, twin.linear.weight)


# ---------------------------------------------------------------------------------------------- several optimizers


class Extragradient(torch.optim.SGD):
    """Evaluates the gradients again at the weights after a first step; it steps from where it began."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.had_closure: list[bool] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.had_closure.append(closure is not None)
        if closure is None:
            return super().step()
        parameters = [p for group in self.param_groups for p in group["params"]]
        with torch.enable_grad():
            loss = closure()
        before = [p.clone() for p in parameters]
        super().step()
        with torch.enable_grad():
            closure()
        torch._foreach_copy_(parameters, before)
        super().step()
        return loss


def _lbfgs(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters, lr=lr, max_iter=3)


@pytest.mark.parametrize(
    "kinds",
    [(_lbfgs, torch.optim.SGD), (torch.optim.SGD, _lbfgs), (Extragradient, torch.optim.SGD)],
    ids=["LBFGS first", "LBFGS last", "optional closure"],
)
def test_several_optimizers_step_in_the_order_of_the_list(kinds: tuple[Callable[..., Any], ...]) -> None:
    model = TwoLayers()
    twin = copy.deepcopy(model)
    trainer_of(model, optimizers=_one_for_each_layer(kinds, model)).fit()
    theirs = _one_for_each_layer(kinds, twin)
    for batch in regression_data():

        def closure(batch: Any = batch) -> torch.Tensor:
            twin.zero_grad()
            loss = twin.loss(twin(batch), batch)
            loss.backward()
            return loss

        closure()
        for optimizer in theirs:
            # With torch's others, a closure would evaluate again; they step with the gradients computed last.
            optimizer.step() if type(optimizer) is torch.optim.SGD else optimizer.step(closure)
    for ours, by_hand in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, by_hand)


def _one_for_each_layer(kinds: tuple[Callable[..., Any], ...], model: TwoLayers) -> list[torch.optim.Optimizer]:
    layers = (model.first, model.second)
    return [kind(layer.parameters(), lr=0.1) for kind, layer in zip(kinds, layers, strict=True)]


@pytest.mark.parametrize("others", [0, 1])
def test_an_optimizer_that_may_use_a_closure_gets_it_beside_others(others: int) -> None:
    model = TwoLayers()
    optimizer = Extragradient(model.first.parameters(), lr=0.1)
    more = [torch.optim.SGD(model.second.parameters(), lr=0.1)] * others
    trainer_of(model, optimizers=[optimizer, *more], max_duration="3ba").fit()
    assert optimizer.had_closure == [True] * 3


def test_an_optimizer_that_could_do_without_a_closure_causes_no_second_evaluation() -> None:
    model, count = TwoLayers(), At("before_train_batch", lambda state: None)
    first, second = (Usual(layer.parameters(), lr=0.1) for layer in (model.first, model.second))
    trainer_of(model, optimizers=[first, second], max_duration="3ba", callbacks=count).fit()
    assert len(count.found) == 3


def test_loss_and_metrics_are_those_of_the_weights_before_the_step() -> None:
    model, log = Regression(metrics=True), Received()
    batch = regression_data()[0]
    expected = model.loss(model(batch), batch).item()
    trainer = trainer_of(
        model, [batch], max_duration="1ba", optimizers=Extragradient(model.parameters(), lr=0.1), loggers=log
    )
    trainer.fit()
    assert [float(value) for _, value in log.series("loss/train/total")] == pytest.approx([expected])
    assert float(trainer.state.train_metrics["MeanSquaredError"].compute()) == pytest.approx(expected)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("size", [None, 2, "auto"])
def test_each_evaluation_gets_the_batch_as_it_was_loaded(size: Any, in_place: bool) -> None:
    class Named(Regression):
        def forward(self, batch: Any) -> torch.Tensor:
            seen.append(batch["inputs"]["x"].sum().item())
            return super().forward((batch["inputs"]["x"], None))

        def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
            return super().loss(outputs, (None, batch["y"]))

    class Double(Callback):
        def before_forward(self, state: State, logger: Logger) -> None:
            inputs = state.batch["inputs"]
            inputs["x"] = inputs["x"].mul_(2) if in_place else inputs["x"] * 2

    seen: list[float] = []
    ((x, y),) = regression_data(1, 4)
    loaded, model, batch = x.clone(), Named(), {"inputs": OrderedDict(x=x), "y": y}
    lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    more = {} if size is None else {"device_train_microbatch_size": size}
    trainer_of(model, [batch], max_duration="1ba", optimizers=lbfgs, callbacks=Double(), **more).fit()
    parts = [x[:2], x[2:]] if size == 2 else [x]
    assert seen == [2 * part.sum().item() for part in parts] * (len(seen) // len(parts))
    assert len(seen) > len(parts)
    assert batch["inputs"]["x"] is x
    assert torch.equal(x, loaded)
