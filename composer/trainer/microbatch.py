"""Forward, loss and backward of the parts of a batch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from composer import dist, trees
from composer.core.data_spec import DataSpec
from composer.core.event import Event
from composer.core.types import Batch
from composer.trainer.microbatch_weights import LossWeights, averages_over_tokens, count, reduce_loss_weights
from composer.trainer.outputs import detach_outputs, free_unread_outputs, own_gradients
from composer.trainer.run import Run
from composer.trainer.train_metrics import update_train_metrics
from composer.trainer.zero_weight import mask_gradients, weighted

__all__ = ["accumulate_gradients", "as_many_as_others", "conclude", "named_losses", "run_microbatches"]


def accumulate_gradients(run: Run) -> Tensor:
    """Run every microbatch of the batch forward and backward; return the loss of the batch, detached.

    The gradient is that of the loss averaged over the whole batch, of all processes together: with n_ri what microbatch
    i of process r averages over (samples, or tokens that count), its loss is weighted by n_ri / sum_sj n_sj.

    Args:
        run: The run; ``state.batch`` is the batch, ``state.total_loss_dict`` receives the losses by name, of this
            process where there are several.
    """
    batch = run.state.batch
    run.strategy.begin_batch()
    losses = run_microbatches(run)
    run.state.batch = batch  # as the optimizer's next evaluation of the closure, if there is one, must find it
    return conclude(run, losses)


def run_microbatches(run: Run, most: int | None = None) -> dict[str, Tensor]:
    """Run every microbatch of the batch forward and backward; return the losses by name, of this process.

    Args:
        run: The run; ``state.batch`` is the batch, and a part of it afterwards.
        most: Leaves the microbatches after so many out.
    """
    state, strategy = run.state, run.strategy
    size, batch = state.microbatch_size, state.batch
    spec: DataSpec = state.train_phase.loader
    run.microbatches_left = None
    # One that keeps step with other processes counts no samples, and has some all the same.
    samples = run.samples or spec.__num_samples__(batch)
    microbatches = spec.__microbatches__(batch, size, samples)[:most]
    # Samples always count; of tokens perhaps none does, and then the loss and its gradients are masked.
    if len(microbatches) == 1 and run.step_sync is None and not averages_over_tokens(run, microbatches[0]):
        state.batch = microbatches[0]
        return _run_microbatch(run, None)

    shares = reduce_loss_weights(run, count(run, microbatches))
    several = cast(int, run.microbatches_left)
    losses: dict[str, Tensor] = {}
    for number in range(several):
        state.batch = microbatches[min(number, len(microbatches) - 1)]  # as others have more, the last one again
        run.microbatches_left = several - number
        with strategy.accumulate(is_last=run.microbatches_left == 1):
            parts = _run_microbatch(run, shares, number)
        for name, loss in parts.items():
            losses[name] = losses[name] + loss if name in losses else loss
    return losses


def conclude(run: Run, losses: dict[str, Tensor]) -> Tensor:
    """Make the gradients the same in all processes, and the losses known; return the loss of the batch.

    Args:
        run: The run, all of whose microbatches have run.
        losses: By name, of this process.
    """
    run.strategy.reduce()
    run.state.total_loss_dict = losses
    if run.step_sync is not None:
        run.step_sync.send_losses(losses)
    return losses["loss/train/total"]


def as_many_as_others(microbatches: Sequence[Batch]) -> list[Batch]:
    """Return the microbatches with repetitions of the last, which are to count nothing, as many as any process has.

    Args:
        microbatches: Those of this process.

    >>> as_many_as_others([1, 2])
    [1, 2]
    """
    return [*microbatches, *[microbatches[-1]] * (dist.largest(len(microbatches)) - len(microbatches))]


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
    try:
        if isinstance(loss, Mapping):
            named = {str(name): value.mean() for name, value in cast("Mapping[str, Tensor]", loss).items()}
        elif isinstance(loss, Sequence) and not isinstance(loss, str):
            named = {f"loss{i}": value.mean() for i, value in enumerate(cast("Sequence[Tensor]", loss))}
        else:
            named = {}
    except (AttributeError, TypeError):
        raise TypeError(_no_loss(loss)) from None
    if not named:
        raise TypeError(_no_loss(loss))
    total = named.pop("total") if "total" in named else torch.stack(list(named.values())).sum()
    if len(named) == 1 and isinstance(loss, Sequence):
        named = {}
    parts = {f"loss/train/{name}": value.detach() for name, value in named.items()}
    return total, parts | {"loss/train/total": total.detach()}


def _no_loss(loss: Any) -> str:
    """What to say of something that is no loss."""
    entries = dict(cast("Mapping[Any, Any]", loss)) if isinstance(loss, Mapping) else {}
    if isinstance(loss, (list, tuple)):
        entries = dict(enumerate(cast("Sequence[Any]", loss)))
    wrong = next(((key, value) for key, value in entries.items() if not isinstance(value, Tensor)), None)
    if loss is None:
        remedy = " Let loss() return it."
    elif isinstance(loss, (int, float)):
        remedy = " Return the tensor itself, without item() or float()."
    elif wrong is not None:
        remedy = f" Its entry {wrong[0]!r} is {wrong[1]!r}: leave out what is not to be minimized, and log it."
    else:
        remedy = ""
    return f"The model's loss must be a tensor, or a sequence or mapping of tensors; got {loss!r}.{remedy}"


def _run_microbatch(run: Run, shares: LossWeights | None, number: int = 0) -> dict[str, Tensor]:
    """Run ``state.batch`` forward and backward; return its losses by name, weighted."""
    state, fire = run.state, run.engine.run_event
    transforms = state.train_phase.loader.microbatch_transforms
    if transforms is not None:
        state.batch = transforms(state.batch)
    # Metrics of training see the batch as it came; algorithms may edit it in place.
    counts = shares is None or shares.has(number)
    measured = bool(state.train_metrics) and (counts or run.strategy.syncs_in_forward)
    untouched = copy.copy(state.batch) if measured else None

    if run.autocast is None:
        _forward_and_loss(run)
    else:
        with run.autocast():
            _forward_and_loss(run)

    total, losses = named_losses(state.loss)
    weight = 1.0 if shares is None else shares.of(number)
    if isinstance(weight, Tensor) or weight != 1.0:
        total = weighted(total, weight)
        losses = {name: weighted(loss, weight) for name, loss in losses.items()}
    if state.scaler is not None:
        total = state.scaler.scale(total)
    with mask_gradients(state, 1 if shares is None else shares.count(number)):
        run.strategy.backward(total, create_graph=run.options.create_graph)
    del total  # which holds the graph
    if _runs_again(run, measured=measured):
        own_gradients(run)
    fire(Event.AFTER_BACKWARD)
    if untouched is not None:
        detach_outputs(run)
        update_train_metrics(run, untouched, counts=counts)
    free_unread_outputs(run)
    return losses


def _runs_again(run: Run, *, measured: bool) -> bool:
    """Whether the compiled model runs, or may run for the metrics, before the gradients have served.

    In the last backward pass ``DistributedDataParallel`` copies gradients to memory of its own.
    """
    return (run.microbatches_left or 1) > 1 or (measured and run.strategy.module is None)


def _forward_and_loss(run: Run) -> None:
    """Compute outputs and loss; as one compiled graph if nobody listens between them."""
    state, engine = run.state, run.engine
    fire = engine.run_event
    model: Any = state.model
    state.outputs = state.loss = None  # or the last ones would lie in memory beside the new ones
    fire(Event.BEFORE_FORWARD)
    if run.forward_and_loss is None or engine.listens(Event.AFTER_FORWARD) or engine.listens(Event.BEFORE_LOSS):
        state.outputs = (run.strategy.module or model)(state.batch)
        fire(Event.AFTER_FORWARD)
        fire(Event.BEFORE_LOSS)
        state.loss = model.loss(state.outputs, state.batch)
    else:
        detached = not (engine.listens(Event.AFTER_LOSS) or engine.listens(Event.BEFORE_BACKWARD))
        state.outputs, state.loss = run.forward_and_loss(state.batch, detached)
    if run.reuses_outputs:
        # It is logged when the next forward pass has written over it.
        state.loss = trees.map_tensors(torch.clone, state.loss)
    fire(Event.AFTER_LOSS)
    fire(Event.BEFORE_BACKWARD)
