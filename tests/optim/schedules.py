"""Runs without training, for tests of schedules: an optimizer, a state, and steps that only count."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from composer import State
from composer.optim.scheduler import compile_composer_scheduler


def sgd(lr: float = 1.0, groups: int = 1, **settings: Any) -> torch.optim.SGD:
    """An optimizer with groups of one parameter each."""
    return torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))]} for _ in range(groups)], lr=lr, **settings)


def state_of(max_duration: str | None = "10ba", optimizer: Any = None, epoch_length: int | None = None) -> State:
    """The state of a run that has not begun."""
    state = State(model=nn.Linear(1, 1), max_duration=max_duration, optimizers=optimizer or sgd())
    state.train_phase.length = epoch_length
    return state


def count_batch(state: State, samples: int = 2, tokens: int = 8, seconds: float = 0.5) -> None:
    """Count a batch, and an epoch where one ends."""
    state.timestamp = state.timestamp.to_next_batch(samples, tokens, seconds)
    if state.train_phase.length and state.timestamp.batch_in_epoch.value == state.train_phase.length:
        state.timestamp = state.timestamp.to_next_epoch()


def rates(schedule: Any, state: State, steps: int, ssr: float = 1.0) -> list[float]:
    """The learning rates of steps 0, 1, ..., as multiples of the first group's own."""
    group = state.optimizers[0].param_groups[0]
    compiled = compile_composer_scheduler(schedule, state, ssr)
    found = [group["lr"] / group["initial_lr"]]
    for _ in range(steps - 1):
        count_batch(state)
        compiled.step()
        found.append(group["lr"] / group["initial_lr"])
    return found
