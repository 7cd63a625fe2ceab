"""One optimizer step: compute the gradients of the batch, unscale them (fp16 loss scaling), step every optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from composer._containers import copy_containers
from composer.core.event import AFTER_TRAIN_BATCH, BATCH_CHECKPOINT, BATCH_END, BEFORE_TRAIN_BATCH
from composer.core.types import Batch
from composer.optim.closure_use import may_use_closure, needs_closure, step_with_closure, takes_closure
from composer.optim.compiled_schedule import schedule_added_groups
from composer.trainer import optimizer_calls
from composer.trainer.closure import StepClosure
from composer.trainer.microbatch import accumulate_gradients
from composer.trainer.run import Run

__all__ = [
    "average_unread_losses",
    "may_read_losses",
    "step_with_scaler",
    "train_batch",
    "zero_gradients",
]


def train_batch(run: Run) -> None:
    """Compute the gradients of the batch and step every optimizer once.

    The gradients are computed first. An optimizer that may evaluate them more than once gets a closure for that, see
    :class:`.StepClosure`. Optimizers step in the order in which they are given, each with the gradients that were
    computed last.

    Args:
        run: The run; ``state.batch`` is the batch.
    """
    if run.auto_microbatch is None:
        _train_step(run)
    else:
        run.auto_microbatch.train_batch(run, _train_step, _closure_optimizers)


def _train_step(run: Run) -> None:
    """Compute the gradients and step."""
    if run.strategy.has_own_optimizer_step:
        _compute_gradients(run)
        run.strategy.step()
        _average_losses(run)
        return
    if run.state.scaler is not None:
        _compute_and_step_scaled(run)
        _average_losses(run)
        return
    with_closure = _closure_optimizers(run)
    if with_closure:
        _step_with_closures(run, with_closure)
    else:
        # Outside of step(), which would disable and re-enable gradient computation around it.
        _compute_gradients(run)
        for optimizer in run.state.optimizers:
            optimizer_calls.step(optimizer)
    _average_losses(run)


def _step_with_closures(run: Run, with_closure: list[Optimizer]) -> None:
    """Step every optimizer; some of them may evaluate the gradients again.

    One that requires a closure searches for weights with a lower loss, which also depends on the weights of the others;
    one that can do without must not be the reason for a second evaluation because another has stepped.
    """
    batch = run.state.batch
    _compute_gradients_of(run, batch)
    _average_losses(run)
    loss = run.state.total_loss_dict["loss/train/total"]
    evaluate = partial(_evaluate_again, run, batch)
    closures: dict[Optimizer, StepClosure] = {}
    for optimizer in with_closure:
        watched = run.state.optimizers if needs_closure(type(optimizer)) else [optimizer]
        closures[optimizer] = StepClosure(evaluate, loss, _parameters(watched))
    for optimizer in run.state.optimizers:
        if optimizer in closures:
            step_with_closure(optimizer, closures[optimizer])
        else:
            optimizer_calls.step(optimizer)


def _closure_optimizers(run: Run) -> list[Optimizer]:
    """Return the optimizers that may evaluate the gradients within their step, by a closure."""
    optimizers = run.state.optimizers
    if run.strategy.has_own_optimizer_step or run.state.scaler is not None:
        return []
    found: list[Optimizer] = []
    for optimizer in optimizers:  # a loop, since a comprehension costs a call in each step
        if may_use_closure(type(optimizer)) and takes_closure(optimizer):
            found.append(optimizer)
    return found


def _average_losses(run: Run) -> None:
    """Replace the losses of this rank by their averages over all ranks."""
    if run.step_sync is not None:
        run.state.total_loss_dict = run.step_sync.averages(run.state.total_loss_dict)


def may_read_losses(run: Run) -> bool:
    """Return whether anything on this rank may read the losses of the next step before training ends.

    These are loggers, listeners to the events after the step, schedules and intervals of evaluations, which may be
    functions of the user, and optimizers that compute the loss within their step.

    Args:
        run: The run.
    """
    state, engine = run.state, run.engine
    if run.logger.destinations or state.schedulers or state.evaluators or _closure_optimizers(run):
        return True
    return engine.listens(BATCH_END) or engine.listens(BATCH_CHECKPOINT)


def average_unread_losses(run: Run) -> None:
    """Average the losses of the last step over all ranks if that was put off; all ranks must call this.

    Args:
        run: The run.
    """
    if run.step_sync is not None:
        run.state.total_loss_dict = run.step_sync.averages_of_unread(run.state.total_loss_dict)


def _parameters(optimizers: Sequence[Optimizer]) -> list[Tensor]:
    """Return the parameters of optimizers."""
    return [parameter for each in optimizers for group in each.param_groups for parameter in group["params"]]


def _compute_gradients_of(run: Run, batch: Batch) -> None:
    """Compute the gradients of a copy of the batch, so that events and the model edit it for this evaluation only."""
    run.state.batch = batch  # frees the copy of the evaluation before
    run.state.batch = copy_containers(batch, with_tensors=True)
    _compute_gradients(run)


def _evaluate_again(run: Run, batch: Batch) -> Tensor:
    """Compute the gradients at moved weights; return the loss, averaged so that all ranks take the same step.

    The losses and metrics of the step stay those of the weights before it.
    """
    state = run.state
    losses, metrics = state.total_loss_dict, state.train_metrics
    state.train_metrics = {}
    try:
        _compute_gradients_of(run, batch)
        _average_losses(run)
        return state.total_loss_dict["loss/train/total"]
    finally:
        state.total_loss_dict, state.train_metrics = losses, metrics


def zero_gradients(run: Run) -> None:
    """Zero the gradients of the previous step, unless the strategy does so in its own step.

    Args:
        run: The run.
    """
    if run.strategy.has_own_optimizer_step:
        return
    for optimizer in run.state.optimizers:
        optimizer_calls.zero_grad(optimizer)


def _compute_gradients(run: Run) -> Tensor:
    """Compute the gradients of the full batch; return its loss."""
    state, fire, schedulers = run.state, run.engine.run_event, run.state.schedulers
    fire(BEFORE_TRAIN_BATCH)
    zero_gradients(run)
    uneven, replicas = run.uneven_inputs, state.replicas
    if uneven is None or not uneven.is_idle:
        loss = _accumulate_gradients(run)
    else:
        with uneven.undone(state.model):
            loss = _accumulate_gradients(run)
    if uneven is not None and replicas is not None and uneven.is_idle_replica(replicas):
        zero_gradients(run)  # gradients of zero would still move the weights, by momentum and weight decay
    scaler: Any = state.scaler
    if scaler is not None:
        for optimizer in state.optimizers:
            scaler.unscale_(optimizer)
    schedule_added_groups(schedulers)  # a replay records the rates at the next event
    fire(AFTER_TRAIN_BATCH)
    schedule_added_groups(schedulers)  # those that were added at this event step now, too
    run.gradients_ready = True
    return loss


def _accumulate_gradients(run: Run) -> Tensor:
    """Accumulate the gradients of the microbatches; return the loss of the batch."""
    if run.auto_microbatch is None:
        return accumulate_gradients(run)
    return run.auto_microbatch.accumulate_gradients(run)


def _compute_and_step_scaled(run: Run) -> None:
    """Compute gradients with loss scaling (fp16), and step."""
    for optimizer in run.state.optimizers:
        if needs_closure(type(optimizer)):
            raise ValueError(
                f"{type(optimizer).__name__} evaluates its closure several times, which the gradient scaler of "
                f"precision='amp_fp16' does not support. Use precision='amp_bf16' or 'fp32'."
            )
    _compute_gradients(run)
    step_with_scaler(run)


def step_with_scaler(run: Run) -> None:
    """Step with scaled gradients; if they overflowed (inf or NaN), skip the step and lower the scale.

    An optimizer without gradients has nothing to check for overflow and steps as it does without a scaler. If no
    optimizer has gradients, the scale does not change.

    Args:
        run: The run; its gradients are already unscaled.
    """
    scaler: Any = run.state.scaler
    checked = [bool(scaler._found_inf_per_device(optimizer)) for optimizer in run.state.optimizers]
    for optimizer, is_checked in zip(run.state.optimizers, checked, strict=True):
        if is_checked:
            scaler.step(optimizer)
        else:
            optimizer.step()
    if any(checked):
        scaler.update()
    else:
        scaler.update(scaler.get_scale())  # also resets the per-optimizer state
