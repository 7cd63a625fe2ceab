"""Gradients that a CUDA graph would overwrite are cloned once, wherever their memory moves."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from composer import Engine, Logger, State
from composer.trainer.outputs import clone_reused_gradients
from composer.trainer.owned_memory import OwnedMemory
from composer.trainer.run import Run


def run_with_gradient() -> tuple[Run, nn.Parameter]:
    state = State(model=nn.Linear(2, 1, bias=False))
    state.model.weight.grad = torch.ones(1, 2)
    run = Run(state, Engine(state, logger := Logger(state)), logger, reuses_outputs=True)
    clone_reused_gradients(run)
    return run, state.model.weight


def gradient_of(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def by_data(parameter: nn.Parameter, memory: Tensor) -> None:
    gradient_of(parameter).data = memory


def by_set(parameter: nn.Parameter, memory: Tensor) -> None:
    gradient_of(parameter).set_(memory)


def by_assignment(parameter: nn.Parameter, memory: Tensor) -> None:
    parameter.grad = memory


@pytest.mark.parametrize("change", [by_data, by_set, by_assignment])
def test_shared_memory_is_copied(change: Callable[[nn.Parameter, Tensor], None]) -> None:
    run, parameter = run_with_gradient()
    memory = torch.full((1, 2), 3.0)  # such as a graph's
    change(parameter, memory)
    clone_reused_gradients(run)
    memory.zero_()
    assert gradient_of(parameter).tolist() == [[3.0, 3.0]]


def test_copies_are_not_copied_again() -> None:
    run, parameter = run_with_gradient()
    first = gradient_of(parameter)
    for _ in range(3):
        gradient_of(parameter).add_(1)
        clone_reused_gradients(run)
        assert parameter.grad is first


def test_tensors_are_neither_modified_nor_kept() -> None:
    run, parameter = run_with_gradient()
    assert not vars(gradient_of(parameter))
    gone = weakref.ref(gradient_of(parameter))
    parameter.grad = None
    gc.collect()
    assert gone() is None
    for _ in range(100):  # the allocator gives the same place again
        assert torch.ones(1, 2) not in run.owned_gradients


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_are_empty(copied: Callable[[OwnedMemory], OwnedMemory]) -> None:
    owned, tensor = OwnedMemory(), torch.ones(1)
    owned.replace([tensor, torch.ones(2, 2).to_sparse()])
    assert tensor in owned
    assert tensor not in copied(owned)


def test_sparse_gradients_are_copied_each_time() -> None:
    run, parameter = run_with_gradient()
    parameter.grad = first = torch.ones(1, 2).to_sparse()
    clone_reused_gradients(run)
    assert gradient_of(parameter) is not first
    assert gradient_of(parameter).to_dense().tolist() == [[1.0, 1.0]]
