"""Forward, loss and backward of the parts of a batch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from composer.core.data import DataSpec
from composer.core.event import Event
from composer.core.types import Batch
from composer.trainer.metrics import update_train_metrics
from composer.trainer.run import Run

__all__ = ["accumulate_gradients", "named_losses"]


def accumulate_gradients(run: Run) -> Tensor:
    """Run every microbatch of the batch forward and backward; return the loss of the batch, detached.

    The gradient is that of the loss averaged over the whole batch: with n_i what microbatch i averages over (samples,
    or tokens that count), its loss is weighted by n_i / sum_j n_j.

    Args:
        run: The run; ``state.batch`` is the batch, ``state.total_loss_dict`` receives the losses by name.
    """
    state = run.state
    size, batch = state.device_train_microbatch_size, state.batch
    if size is None or size >= run.samples:
        state.total_loss_dict = _run_microbatch(run, None)
        state.batch = batch  # as the optimizer's next evaluation of the closure, if there is one, must find it
        return state.total_loss_dict["loss/train/total"]

    spec: DataSpec = state.train_phase.loader
    microbatches = spec.split_batch(batch, size)
    losses: dict[str, Tensor] = {}
    for microbatch, weight in zip(microbatches, _weights(run, microbatches), strict=True):
        state.batch = microbatch
        for name, loss in _run_microbatch(run, weight).items():
            losses[name] = losses[name] + loss if name in losses else loss
    state.batch = batch
    state.total_loss_dict = losses
    return losses["loss/train/total"]


def named_losses(loss: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss to differentiate, and all losses by the names under which they are logged.

    Args:
        loss: A tensor, whose mean is taken; a sequence, whose means are added; or a mapping, whose entry ``"total"``
            is the loss, or else the sum of its means.

    Raises:
        TypeError: It is none of these.

    >>> total, parts = named_losses({"a": torch.tensor(1.0), "b": torch.tensor([2.0, 4.0])})
    >>> total, sorted(parts)
    (tensor(4.), ['loss/train/a', 'loss/train/b', 'loss/train/total'])
    """
    if isinstance(loss, Tensor):
        total = loss if loss.ndim == 0 else loss.mean()
        return total, {"loss/train/total": total.detach()}
    if isinstance(loss, Mapping):
        named = {str(name): value.mean() for name, value in cast("Mapping[str, Tensor]", loss).items()}
    elif isinstance(loss, Sequence) and loss and not isinstance(loss, str):
        named = {f"loss{i}": value.mean() for i, value in enumerate(cast("Sequence[Tensor]", loss))}
    else:
        raise TypeError(f"The model's loss must be a tensor, or a sequence or mapping of tensors; got {loss!r}.")
    total = named.pop("total") if "total" in named else torch.stack(list(named.values())).sum()
    if len(named) == 1 and isinstance(loss, Sequence):
        named = {}
    parts = {f"loss/train/{name}": value.detach() for name, value in named.items()}
    return total, parts | {"loss/train/total": total.detach()}


def _run_microbatch(run: Run, weight: float | Tensor | None) -> dict[str, Tensor]:
    """Run ``state.batch`` forward and backward; return its losses by name, weighted."""
    state, fire = run.state, run.engine.run_event
    transforms = state.train_phase.loader.microbatch_transforms
    if transforms is not None:
        state.batch = transforms(state.batch)
    # Metrics of training see the batch as it came; algorithms may edit it in place.
    untouched = copy.copy(state.batch) if state.train_metrics else None

    if run.autocast is None:
        _forward_and_loss(run)
    else:
        with run.autocast():
            _forward_and_loss(run)

    total, losses = named_losses(state.loss)
    if weight is not None:
        total = _weighted(total, weight)
        losses = {name: _weighted(loss, weight) for name, loss in losses.items()}
    if state.scaler is not None:
        total = state.scaler.scale(total)
    total.backward(create_graph=run.options.create_graph)
    fire(Event.AFTER_BACKWARD)
    if untouched is not None:
        update_train_metrics(run, untouched)
    return losses


def _weighted(loss: Tensor, weight: float | Tensor) -> Tensor:
    """Weight a loss; a part in which nothing counts adds nothing, though its own mean is 0 / 0."""
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, loss * weight, 0).to(loss.dtype)
    return loss * weight if weight else torch.where(loss.isnan(), 0, loss * weight)


def _forward_and_loss(run: Run) -> None:
    """Compute outputs and loss; as one compiled graph if nobody listens between them."""
    state, engine = run.state, run.engine
    fire = engine.run_event
    model: Any = state.model
    state.outputs = state.loss = None  # or the last ones would lie in memory beside the new ones
    fire(Event.BEFORE_FORWARD)
    if run.forward_and_loss is None or engine.listens(Event.AFTER_FORWARD) or engine.listens(Event.BEFORE_LOSS):
        state.outputs = model(state.batch)
        fire(Event.AFTER_FORWARD)
        fire(Event.BEFORE_LOSS)
        state.loss = model.loss(state.outputs, state.batch)
    else:
        state.outputs, state.loss = run.forward_and_loss(state.batch)
    fire(Event.AFTER_LOSS)
    fire(Event.BEFORE_BACKWARD)


def _weights(run: Run, microbatches: Sequence[Batch]) -> list[float | Tensor]:
    """Return the share of each microbatch in what the loss of the batch averages over."""
    spec: DataSpec = run.state.train_phase.loader
    by_tokens = run.options.weight_by_tokens
    if by_tokens is None:
        by_tokens = _averages_over_tokens(microbatches[0])
    if not by_tokens:
        sizes = [spec.get_num_samples_in_batch(microbatch) for microbatch in microbatches]
        total = sum(sizes)
        return [size / total for size in sizes]
    # Counted on the device, so that nobody waits; a batch without any token that counts has no loss to weight.
    counts = [spec.get_num_tokens_in_batch(microbatch, "loss_generating") for microbatch in microbatches]
    if not any(isinstance(count, Tensor) for count in counts):
        return [count / max(sum(counts), 1) for count in counts]
    device = run.state.device.torch_device
    tensors = torch.stack([torch.as_tensor(count, device=device) for count in counts])
    wide = torch.float32 if device.type == "mps" else torch.float64  # all that MPS has
    return list((tensors.to(wide) / tensors.sum().clamp(min=1)).unbind())


def _averages_over_tokens(batch: Batch) -> bool:
    """Whether the batch has a target for each token, as in language modelling, some of which may not count."""
    labels = cast("Mapping[str, Any]", batch).get("labels") if isinstance(batch, Mapping) else None
    return isinstance(labels, Tensor) and labels.ndim == 2 and not labels.is_floating_point()
