"""A minimal training loop around an engine, which runs the training events in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from composer.core.algorithm import Algorithm
from composer.core.engine import Engine
from composer.core.microbatches import join
from composer.core.state import State
from composer.optim.closure_use import needs_closure
from composer.precision import get_precision_context
from tests.on_device import autocast_type


def start(
    model: nn.Module,
    algorithms: Sequence[Algorithm] = (),
    optimizer: torch.optim.Optimizer | None = None,
    max_duration: str = "4ba",
    precision: str = "fp32",
) -> Engine:
    """Make an engine and run what a trainer runs before training."""
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = State(model=model, max_duration=max_duration, optimizers=optimizer, precision=precision)
    engine = Engine(state, algorithms=algorithms)
    for event in ("init", "before_load", "after_load"):
        engine.run_event(event)
    return engine


def fit(engine: Engine, batches: Iterable[Any], evaluate: Sequence[Any] = ()) -> Engine:
    """Train on some batches, from where the state is; evaluate after each if there are batches for it."""
    with engine.looping():
        _fit(engine, batches, evaluate)
    return engine


def _fit(engine: Engine, batches: Iterable[Any], evaluate: Sequence[Any]) -> None:
    state, fire = engine.state, engine.run_event
    fire("fit_start")
    if state.timestamp.batch_in_epoch == 0:
        fire("epoch_start")
    rest, phase = list(batches), state.train_phase
    while rest:
        fire("before_dataloader")
        group, rest = rest[: phase.batches_per_step], rest[phase.batches_per_step :]
        state.batch = join(group)
        fire("after_dataloader")
        fire("batch_start")
        step(engine)
        state.timestamp = state.timestamp.to_next_batch(samples=1)
        phase.batches_in_step, phase.extra_batches = len(group), phase.extra_batches + len(group) - 1
        fire("batch_end")
        if evaluate:
            evaluation(engine, evaluate)
        fire("batch_checkpoint")
    state.timestamp, phase.extra_batches = state.timestamp.to_next_epoch(), 0
    for event in ("epoch_end", "epoch_checkpoint", "fit_end"):
        fire(event)


def step(engine: Engine) -> None:
    """Train on the batch of the state; optimizers that cannot do without get a closure."""
    optimizers = engine.state.optimizers
    if not any(needs_closure(type(optimizer)) for optimizer in optimizers[:1]):
        gradients(engine)
    for optimizer in optimizers:
        if needs_closure(type(optimizer)):
            optimizer.step(lambda: gradients(engine))
        else:
            optimizer.step()


def gradients(engine: Engine) -> torch.Tensor:
    """Compute the gradients of the batch of the state; return its loss."""
    state, fire = engine.state, engine.run_event
    fire("before_train_batch")
    for optimizer in state.optimizers:
        optimizer.zero_grad()
    fire("before_forward")
    with get_precision_context(state.precision, device_type=autocast_type()):
        state.outputs = state.model(state.batch)
    fire("after_forward")
    fire("before_loss")
    with get_precision_context(state.precision, device_type=autocast_type()):
        state.loss = state.model.loss(state.outputs, state.batch)
    fire("after_loss")
    fire("before_backward")
    loss = state.loss
    loss.backward()
    fire("after_backward")
    fire("after_train_batch")
    return loss


@torch.no_grad()
def evaluation(engine: Engine, batches: Sequence[Any]) -> None:
    """Run the model in evaluation mode; the outputs of the last batch stay in the state."""
    state, fire = engine.state, engine.run_event
    training_batch = state.batch
    state.model.eval()
    fire("eval_before_all")
    fire("eval_start")
    for state.batch in batches:
        fire("eval_batch_start")
        fire("eval_before_forward")
        state.outputs = state.model(state.batch)
        fire("eval_after_forward")
        fire("eval_batch_end")
    fire("eval_end")
    fire("eval_after_all")
    state.model.train()
    state.batch = training_batch
