"""One update of the parameters."""

from __future__ import annotations

import inspect
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from composer._class_cache import cached_by_class
from composer.core.event import Event
from composer.trainer.microbatch import accumulate_gradients
from composer.trainer.run import Run

__all__ = ["may_use_closure", "needs_closure", "step_scaled", "train_batch", "zero_gradients"]


def train_batch(run: Run) -> None:
    """Compute the gradients of the batch and update the parameters once, by every optimizer.

    An optimizer that may evaluate the gradients several times is given a closure that computes them. Where there are
    several optimizers, those that cannot do without get it and the others follow with the gradients that it left.

    Args:
        run: The run; ``state.batch`` is the batch.
    """
    if run.auto is None:
        _update(run)
    else:
        run.auto.train_batch(run, _update, uses_closure=bool(_closing(run)))


def _update(run: Run) -> None:
    """Compute the gradients, and step."""
    optimizers = run.state.optimizers
    if run.strategy.owns_step:
        _compute_gradients(run)
        run.strategy.step()
        _settle(run)
        return
    if run.state.scaler is not None:
        _scaled_step(run)
        _settle(run)
        return
    closing = _closing(run)
    if not closing:
        # Outside of step(), which would switch the recording of gradients off and on again around it.
        _compute_gradients(run)
    for optimizer in closing:
        optimizer.step(cast(Any, lambda: _loss_of_all(run)))  # torch says float, and takes its tensor
    for optimizer in optimizers:
        if not closing or optimizer not in closing:
            optimizer.step()
    _settle(run)


def _closing(run: Run) -> list[Optimizer]:
    """The optimizers that compute the gradients within their step."""
    optimizers = run.state.optimizers
    if run.strategy.owns_step or run.state.scaler is not None:
        return []
    use = may_use_closure if len(optimizers) == 1 else needs_closure
    return [optimizer for optimizer in optimizers if use(type(optimizer))]


def _settle(run: Run) -> None:
    """Put the losses of all processes in the place of those of this one, if there are several."""
    if run.step_sync is not None:
        run.state.total_loss_dict = run.step_sync.averages(run.state.total_loss_dict)


def _loss_of_all(run: Run) -> Tensor:
    """Compute the gradients of the whole batch; return its loss, the same in all processes, which step by it."""
    _compute_gradients(run)
    _settle(run)
    return run.state.total_loss_dict["loss/train/total"]


@cached_by_class
def needs_closure(kind: type[Optimizer]) -> bool:
    """Tell whether optimizers of a class cannot step without a closure, as LBFGS.

    Args:
        kind: The class.

    >>> needs_closure(torch.optim.LBFGS), needs_closure(torch.optim.SGD)
    (True, False)
    """
    parameter = inspect.signature(kind.step).parameters.get("closure")
    return parameter is not None and parameter.default is parameter.empty


@cached_by_class
def may_use_closure(kind: type[Optimizer]) -> bool:
    """Tell whether optimizers of a class may evaluate a closure several times: LBFGS, and all but torch's and ours.

    Args:
        kind: The class.

    >>> may_use_closure(torch.optim.Adam)
    False
    """
    takes_something = len(inspect.signature(kind.step).parameters) > 1  # beside self
    return needs_closure(kind) or (
        takes_something and not kind.__module__.startswith(("torch.optim.", "composer.optim."))
    )


def zero_gradients(run: Run) -> None:
    """Forget the gradients of the step before, unless who steps does so itself.

    Args:
        run: The run.
    """
    if not run.strategy.owns_step:
        for optimizer in run.state.optimizers:
            optimizer.zero_grad()


def _compute_gradients(run: Run) -> Tensor:
    """Compute the gradients of the whole batch; return its loss."""
    state, fire = run.state, run.engine.run_event
    fire(Event.BEFORE_TRAIN_BATCH)
    zero_gradients(run)
    loss = accumulate_gradients(run) if run.auto is None else run.auto.accumulate_gradients(run)
    scaler: Any = state.scaler
    if scaler is not None:
        for optimizer in state.optimizers:
            scaler.unscale_(optimizer)
    fire(Event.AFTER_TRAIN_BATCH)
    run.steps = True
    return loss


def _scaled_step(run: Run) -> None:
    """Compute scaled gradients, and step."""
    for optimizer in run.state.optimizers:
        if needs_closure(type(optimizer)):
            raise ValueError(
                f"{type(optimizer).__name__} evaluates its closure several times, which the gradient scaling of "
                f"amp_fp16 does not allow. Train in amp_bf16 or fp32."
            )
    _compute_gradients(run)
    step_scaled(run)


def step_scaled(run: Run) -> None:
    """Step with gradients that were scaled; a step whose gradients overflowed is left out, and the scale lowered.

    An optimizer without gradients, of which the scaler has nothing to check, steps as it does without one. Where no
    optimizer has any, nothing says whether the scale is right, and it stays.

    Args:
        run: The run; its gradients are unscaled.
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
        scaler.update(scaler.get_scale())  # which also ends the step
