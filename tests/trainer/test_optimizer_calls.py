"""Optimizers step as if ``step`` and ``zero_grad`` were called, whatever is attached to them."""

from __future__ import annotations

import functools
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Muon, Optimizer, RMSprop
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from composer.optim import DecoupledAdamW, DecoupledSGDW
from composer.trainer import optimizer_calls

CLASSES = (SGD, Adam, AdamW, Adagrad, RMSprop, DecoupledSGDW, DecoupledAdamW, Muon)


def _with_gradient(make: Callable[..., Optimizer] = SGD) -> Optimizer:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(3, 3))
    weight.grad = torch.randn(3, 3)
    return make([weight], lr=0.1)


def _weight(optimizer: Optimizer) -> torch.Tensor:
    return optimizer.param_groups[0]["params"][0]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_updates_are_those_of_the_optimizer(cls: type[Optimizer]) -> None:
    ours, theirs = _with_gradient(cls), _with_gradient(cls)
    for _ in range(3):
        optimizer_calls.step(ours)
        theirs.step()
    assert torch.equal(_weight(ours), _weight(theirs))
    assert not torch.equal(_weight(ours), _weight(_with_gradient(cls)))


def test_schedules_see_the_step() -> None:
    optimizer = _with_gradient()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns if a schedule steps before its optimizer
        optimizer_calls.step(optimizer)
        schedule.step()
    expected = _with_gradient()
    expected.step()
    assert torch.equal(_weight(optimizer), _weight(expected))


def _on_instance(optimizer: Optimizer, seen: list[str]) -> None:
    own = optimizer.step

    @functools.wraps(own)
    def step(*args: Any, **kwargs: Any) -> Any:
        seen.append("instance")
        return own(*args, **kwargs)

    optimizer.step = step  # type: ignore[method-assign]


def _above_a_schedule(optimizer: Optimizer, seen: list[str]) -> None:
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    _on_instance(optimizer, seen)


def _below_a_schedule(optimizer: Optimizer, seen: list[str]) -> None:
    class Watched(type(optimizer)):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            seen.append("below")
            return super().step(closure)

    optimizer.__class__ = Watched
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def _pre_hook(optimizer: Optimizer, seen: list[str]) -> None:
    optimizer.register_step_pre_hook(lambda *_: seen.append("pre"))


def _post_hook(optimizer: Optimizer, seen: list[str]) -> None:
    optimizer.register_step_post_hook(lambda *_: seen.append("post"))


@pytest.mark.parametrize("attach", [_on_instance, _above_a_schedule, _below_a_schedule, _pre_hook, _post_hook])
def test_what_is_attached_to_the_step_is_called(attach: Callable[[Optimizer, list[str]], None]) -> None:
    optimizer, seen, expected = _with_gradient(), list[str](), _with_gradient()
    attach(optimizer, seen)
    optimizer_calls.step(optimizer)
    expected.step()
    assert len(seen) == 1
    assert torch.equal(_weight(optimizer), _weight(expected))


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_hooks_of_all_optimizers_are_called(register: Callable[..., Any]) -> None:
    seen: list[Optimizer] = []
    optimizer = _with_gradient()
    handle = register(lambda one, *_: seen.append(one))
    try:
        optimizer_calls.step(optimizer)
    finally:
        handle.remove()
    assert seen == [optimizer]


def test_a_step_that_was_replaced_on_the_class_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(SGD):
        pass

    optimizer, seen = _with_gradient(Own), list[str]()
    hooked = Own.step

    @functools.wraps(hooked)  # which also copies what torch notes on its wrapper
    def step(self: Own, closure: Any = None) -> Any:
        seen.append("class")
        return hooked(self, closure)

    monkeypatch.setattr(Own, "step", step)
    optimizer_calls.step(optimizer)
    assert seen == ["class"]


def test_what_was_replaced_before_the_import_is_called() -> None:
    program = """
import functools, torch
from torch.optim import Optimizer
seen = []
def noting(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        seen.append(function.__name__)
        return function(*args, **kwargs)
    return wrapper
own = Optimizer.profile_hook_step
Optimizer.zero_grad = noting(Optimizer.zero_grad)
Optimizer.profile_hook_step = staticmethod(lambda function: noting(own(function)))
from composer.trainer import optimizer_calls
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
optimizer_calls.step(optimizer)
optimizer_calls.zero_grad(optimizer)
print(seen)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "['step', 'zero_grad']"


def test_a_zero_grad_that_was_replaced_is_called() -> None:
    class Keeping(SGD):
        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none=False)

    optimizer = _with_gradient(Keeping)
    optimizer_calls.zero_grad(optimizer)
    assert torch.equal(_weight(optimizer).grad, torch.zeros(3, 3))


def test_profiles_show_the_spans() -> None:
    optimizer = _with_gradient()
    with torch.profiler.profile() as profile:
        optimizer_calls.step(optimizer)
        optimizer_calls.zero_grad(optimizer)
    names = {event.name for event in profile.events()}
    assert {"Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"} <= names


def test_the_span_is_left_out_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    record = torch.autograd.profiler.record_function

    def counting(name: str, args: str | None = None) -> Any:
        opened.append(name)
        return record(name, args)

    monkeypatch.setattr(torch.autograd.profiler, "record_function", counting)
    optimizer = _with_gradient()
    optimizer.step()
    assert opened == ["Optimizer.step#SGD.step"]
    optimizer_calls.step(optimizer)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    optimizer_calls.step(optimizer)
    assert opened == ["Optimizer.step#SGD.step"]
