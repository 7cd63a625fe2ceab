"""Gradient accumulation: forward, loss and backward of each microbatch of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor

from composer import dist, trees
from composer._containers import copy_containers
from composer._text import first_of
from composer.core.data_spec import DataSpec
from composer.core.event import (
    AFTER_BACKWARD,
    AFTER_FORWARD,
    AFTER_LOSS,
    BEFORE_BACKWARD,
    BEFORE_FORWARD,
    BEFORE_LOSS,
)
from composer.core.types import Batch
from composer.trainer.label_weights import warn_of_unreduced_loss, warn_of_unused_weights
from composer.trainer.microbatch_weights import LossWeights, averages_over_tokens, count, reduce_loss_weights
from composer.trainer.outputs import clone_reused_gradients, detach_outputs, free_unread_outputs
from composer.trainer.run import Run
from composer.trainer.train_metrics import update_train_metrics
from composer.trainer.zero_weight import mask_gradients, weighted

__all__ = ["accumulate_gradients", "finish_accumulation", "named_losses", "pad_microbatches", "run_microbatches"]

_REAL: Final = "its abs() or its real part"


def accumulate_gradients(run: Run) -> Tensor:
    """Run every microbatch of the batch forward and backward; return the loss of the batch, detached.

    The gradient is that of the loss averaged over the global batch of all ranks: if the loss of microbatch i on rank r
    averages over n_ri samples (or valid tokens), it is weighted by n_ri / sum_sj n_sj.

    Args:
        run: The run; ``state.batch`` is the batch, ``state.total_loss_dict`` receives the losses of this rank by name.
    """
    batch = run.state.batch
    run.strategy.begin_batch()
    losses = run_microbatches(run)
    run.state.batch = batch  # an optimizer may evaluate its closure again
    return finish_accumulation(run, losses)


def run_microbatches(run: Run, max_microbatches: int | None = None) -> dict[str, Tensor]:
    """Run every microbatch of the batch forward and backward; return the losses of this rank by name.

    Args:
        run: The run; ``state.batch`` is the batch, and its last microbatch afterwards.
        max_microbatches: Maximum number of microbatches to run; None runs all.
    """
    state, strategy = run.state, run.strategy
    size, batch = state.microbatch_size, state.batch
    spec: DataSpec = state.train_phase.loader
    run.microbatches_left = None
    # The dummy batch of a rank without data has run.samples == 0, but contains samples.
    samples = run.samples or spec.__num_samples__(batch)
    microbatches = spec.__microbatches__(batch, size, samples)[:max_microbatches]
    # A batch may have no valid token; its loss and gradients are then masked, which needs the weights.
    if len(microbatches) == 1 and run.step_sync is None and not averages_over_tokens(run, microbatches[0]):
        state.batch = microbatches[0]
        return _run_microbatch(run, None)

    if run.options.weight_by_tokens is None:
        warn_of_unused_weights(microbatches[0])
    counted = run.batch_counts
    weights = reduce_loss_weights(
        run, count(run, microbatches) if counted is None or len(microbatches) > 1 else counted
    )
    num_microbatches = cast(int, run.microbatches_left)
    losses: dict[str, Tensor] = {}
    for index in range(num_microbatches):
        state.batch = microbatches[min(index, len(microbatches) - 1)]  # repeat the last one if other ranks have more
        run.microbatches_left = num_microbatches - index
        with strategy.accumulate(is_last=run.microbatches_left == 1):
            microbatch_losses = _run_microbatch(run, weights, index)
        for name, loss in microbatch_losses.items():
            losses[name] = losses[name] + loss if name in losses else loss
    return losses


def finish_accumulation(run: Run, losses: dict[str, Tensor]) -> Tensor:
    """All-reduce the gradients, and start averaging the losses over the ranks if any may read them; return the loss.

    Args:
        run: The run, after all microbatches of the batch.
        losses: Losses of this rank by name.
    """
    run.strategy.reduce()
    run.state.total_loss_dict = losses
    if run.step_sync is not None:
        if run.step_sync.counts().losses_read:
            run.step_sync.send_losses(losses)
        else:
            run.step_sync.keep_losses(losses)
    return losses["loss/train/total"]


def pad_microbatches(microbatches: Sequence[Batch]) -> list[Batch]:
    """Repeat the last microbatch until the list is as long as that of the rank with the most; repetitions get weight 0.

    Args:
        microbatches: Microbatches of this rank.

    >>> pad_microbatches([1, 2])
    [1, 2]
    """
    return [*microbatches, *[microbatches[-1]] * (dist.largest(len(microbatches)) - len(microbatches))]


def named_losses(loss: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss to differentiate, and all losses by their names in the log.

    Args:
        loss: A tensor, which is averaged; a sequence, whose means are summed; or a mapping, whose entry ``"total"`` is
            the loss if present, otherwise the sum of its means.

    Raises:
        TypeError: The loss is none of these, or a loss is complex.
        ValueError: Two entries of a mapping have the same name as text, such as 0 and "0".

    >>> total, parts = named_losses({"a": torch.tensor(1.0), "b": torch.tensor([2.0, 4.0])})
    >>> total, sorted(parts)
    (tensor(4.), ['loss/train/a', 'loss/train/b', 'loss/train/total'])
    """
    if isinstance(loss, Tensor):
        if loss.is_complex():
            raise TypeError(_invalid_loss_message(loss))
        total = loss if loss.ndim == 0 else loss.mean()
        return total, {"loss/train/total": total.detach()}
    try:
        if isinstance(loss, Mapping):
            entries = cast("Mapping[Any, Tensor]", loss)
            named = {str(name): _mean(value) for name, value in entries.items()}
            if len(named) < len(entries):
                names = first_of(list(map(repr, entries)))
                raise ValueError(f"The model's loss has two entries of the same name: {names}.")
        elif isinstance(loss, Sequence) and not isinstance(loss, str):
            named = {f"loss{i}": _mean(value) for i, value in enumerate(cast("Sequence[Tensor]", loss))}
        else:
            named = {}
    except (AttributeError, TypeError):
        raise TypeError(_invalid_loss_message(loss)) from None
    if not named:
        raise TypeError(_invalid_loss_message(loss))
    total = named.pop("total") if "total" in named else torch.stack(list(named.values())).sum()
    if len(named) == 1 and isinstance(loss, Sequence):
        named = {}
    all_losses = {f"loss/train/{name}": value.detach() for name, value in named.items()}
    return total, all_losses | {"loss/train/total": total.detach()}


def _invalid_loss_message(loss: Any) -> str:
    """Return the error message for an invalid loss."""
    entries = dict(cast("Mapping[Any, Any]", loss)) if isinstance(loss, Mapping) else {}
    if isinstance(loss, (list, tuple)):
        entries = dict(enumerate(cast("Sequence[Any]", loss)))
    wrong = next((pair for pair in entries.items() if not _is_differentiable(pair[1])), None)
    if loss is None:
        remedy = " Let loss() return it."
    elif isinstance(loss, (int, float)):
        remedy = " Return the tensor itself, without item() or float()."
    elif isinstance(loss, Tensor):
        remedy = f" It is complex, and only a real number can be minimized: return {_REAL}."
    elif wrong is not None and isinstance(wrong[1], Tensor) and wrong[1].is_complex():
        remedy = f" Its entry {wrong[0]!r} is complex, and only a real number can be minimized: return {_REAL}."
    elif wrong is not None:
        remedy = f" Its entry {wrong[0]!r} is {wrong[1]!r}: return only losses to minimize, and log other values."
    else:
        remedy = ""
    return f"The model's loss must be a tensor, or a sequence or mapping of tensors; got {loss!r}.{remedy}"


def _mean(value: Tensor) -> Tensor:
    if not _is_differentiable(value):
        raise TypeError("Only numbers with fractions have a mean in torch.")
    return value.mean()


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _run_microbatch(run: Run, weights: LossWeights | None, index: int = 0) -> dict[str, Tensor]:
    """Run ``state.batch`` forward and backward; return its weighted losses by name."""
    state, fire = run.state, run.engine.run_event
    transforms = state.train_phase.loader.microbatch_transforms
    if transforms is not None:
        state.batch = transforms(state.batch)
    # Training metrics get the batch before algorithms edit it in place.
    counts = weights is None or weights.has_microbatch(index)
    updates_metrics = bool(state.train_metrics) and (counts or run.strategy.has_collectives_per_microbatch)
    metric_batch = copy_containers(state.batch) if updates_metrics else None

    if run.autocast is None:
        _forward_and_loss(run)
    else:
        with run.autocast():
            _forward_and_loss(run)

    loss = state.loss
    if isinstance(loss, Tensor) and loss.ndim and loss.numel() > 1 and _is_weighted_by_labels(run, weights):
        warn_of_unreduced_loss(loss)
    total, losses = named_losses(loss)
    detached = losses["loss/train/total"] if total is loss else None
    if weights is not None:
        weight = weights.weight(index)
        if isinstance(weight, Tensor) or weight != 1.0:
            total = weighted(total, weight)
            losses = {name: weighted(one, weight) for name, one in losses.items()}
    if state.scaler is not None:
        total = state.scaler.scale(total)
    if weights is None:
        run.strategy.backward(total, create_graph=run.options.create_graph)
    else:
        with mask_gradients(state, weights.count(index)):
            run.strategy.backward(total, create_graph=run.options.create_graph)
    if run.reuses_outputs and _runs_again(run, updates_metrics=updates_metrics):
        clone_reused_gradients(run)
    fire(AFTER_BACKWARD)
    if detached is not None and state.loss is loss:
        state.loss = detached
    del total, loss  # they reference the graph
    if metric_batch is not None:
        detach_outputs(run)
        update_train_metrics(run, metric_batch, counts=counts)
    free_unread_outputs(run)
    return losses


def _is_weighted_by_labels(run: Run, weights: LossWeights | None) -> bool:
    """Return whether there are several microbatches, on all ranks, that are weighted by their labels by default."""
    if weights is None or run.options.weight_by_tokens is not None:
        return False
    is_split = cast(int, run.microbatches_left) > 1 or run.step_sync is not None
    return is_split and averages_over_tokens(run, run.state.batch)


def _runs_again(run: Run, *, updates_metrics: bool) -> bool:
    """Return whether the compiled model runs again, for a microbatch or the metrics, before the optimizer step.

    In the last backward pass ``DistributedDataParallel`` copies gradients to its own buckets.
    """
    return (run.microbatches_left or 1) > 1 or (updates_metrics and run.strategy.module is None)


def _forward_and_loss(run: Run) -> None:
    """Compute outputs and loss; as one compiled graph if nothing listens to the events between them."""
    state, engine = run.state, run.engine
    fire = engine.run_event
    model: Any = state.model
    state.outputs = state.loss = None  # free the previous ones before the new ones are allocated
    fire(BEFORE_FORWARD)
    if run.dynamic_dims.dims:
        run.dynamic_dims.mark_batch(state.batch)
    if run.forward_and_loss is None or engine.listens(AFTER_FORWARD) or engine.listens(BEFORE_LOSS):
        state.outputs = (run.strategy.module or model)(state.batch)
        fire(AFTER_FORWARD)
        fire(BEFORE_LOSS)
        state.loss = model.loss(state.outputs, state.batch)
    else:
        detached = not (engine.listens(AFTER_LOSS) or engine.listens(BEFORE_BACKWARD))
        state.outputs, state.loss = run.forward_and_loss(state.batch, detached)
    if run.reuses_outputs:
        # The loss is logged after the next forward pass has overwritten it.
        state.loss = trees.map_tensors(torch.clone, state.loss)
    fire(AFTER_LOSS)
    fire(BEFORE_BACKWARD)
