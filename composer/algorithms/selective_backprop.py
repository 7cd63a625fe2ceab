"""Selective backprop: train on the examples of each batch with the largest losses, and skip the others.

    P(example of rank r of N) ~ ((r + 1/2) / N) ** (1 / keep - 1)        ranks by loss, the smallest first

The losses are computed by an extra forward pass without gradients, which costs a third of a step; skipped examples save
their forward and backward passes. Paper: Accelerating Deep Learning by Focusing on the Biggest Losers, Jiang et al.
2019, https://arxiv.org/abs/1910.00762
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from composer import dist, trees
from composer._numbers import in_unit_interval, positive, whole_number
from composer.algorithms._images import select_samples
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.data_spec import DataSpec
from composer.core.distributed_support import Sharding
from composer.core.time import Time
from composer.core.traits import Traits
from composer.dist.dtensor import is_dtensor

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SelectiveBackprop", "select_using_loss", "should_selective_backprop"]


def should_selective_backprop(
    current_duration: float | Time,
    batch_idx: int,
    start: float = 0.5,
    end: float = 0.9,
    interrupt: int = 2,
) -> bool:
    """Return whether to prune a batch.

    Args:
        current_duration: Fraction of the run completed, from 0 to 1.
        batch_idx: Index of the batch in the epoch.
        start: Fraction of the run at which pruning starts.
        end: Fraction of the run at which pruning ends.
        interrupt: Every ``interrupt``-th batch is not pruned; 0 for none.

    >>> [should_selective_backprop(0.6, batch_idx, interrupt=3) for batch_idx in range(4)]
    [True, True, False, True]
    """
    batch_idx, interrupt = whole_number("batch_idx", batch_idx, minimum=None), whole_number("interrupt", interrupt)
    return start <= current_duration < end and (not interrupt or (batch_idx + 1) % interrupt != 0)


@torch.no_grad()
def select_using_loss(
    input: Any,
    target: Any,
    model: Callable[[Any], Any],
    loss_fun: Callable[..., Tensor],
    keep: float = 0.5,
    scale_factor: float = 1,
) -> tuple[Any, Any]:
    """Sample the examples of a batch to train on, preferring those with larger losses.

        P(example of rank r of N) ~ ((r + 1/2) / N) ** (1 / keep - 1)

    Exactly ``floor(keep * N)`` examples, at least one, are sampled without replacement and keep their order, without
    device synchronization. A module is called in evaluation mode, so that the running statistics of batch
    normalization do not change; its modes are restored.

    Args:
        input: Examples, (N, ...), or a collection of them.
        target: Targets, (N, ...), or a collection of them.
        model: Maps the input to outputs.
        loss_fun: Called as ``loss_fun(outputs, target, reduction="none")``; returns losses (N, ...), which are
            averaged over further dimensions.
        keep: Fraction of the examples to keep, above 0 up to 1 (off).
        scale_factor: Height and width of the images for which losses are computed, as fractions of the full size,
            above 0 up to 1.

    Returns:
        The input and the target of the kept examples.

    Raises:
        ValueError: ``keep`` or ``scale_factor`` is out of range, the input to be scaled is not a batch of images, or
            the losses do not have one entry per example.
        TypeError: ``loss_fun`` does not accept ``reduction``.

    >>> x = torch.arange(4.0)
    >>> loss = lambda outputs, target, reduction: (outputs - target) ** 2
    >>> kept, _ = select_using_loss(x, torch.zeros(4), nn.Identity(), loss, keep=0.5)
    >>> len(kept)
    2

    Paper: https://arxiv.org/abs/1910.00762 (Jiang et al. 2019)
    """
    _check(keep, scale_factor)
    if keep == 1:
        return input, target
    scaled = trees.map_tensors(lambda tensor: _scaled(tensor, scale_factor), input)
    with _evaluating(model):
        outputs = model(scaled)
    indices = _sample(_losses(loss_fun, outputs, target), keep)

    def select(tensor: Tensor) -> Tensor:
        return select_samples(tensor, indices)

    return trees.map_tensors(select, input), trees.map_tensors(select, target)


class SelectiveBackprop(Algorithm):
    """Prunes batches with :func:`select_using_loss`, from ``start`` to ``end`` of the run.

    Every tensor of the batch with one entry per example is pruned, whatever its key. The extra forward pass runs in
    evaluation mode, in microbatches if training does, and only for batches that are pruned.

    When to use it:
        If forward and backward passes take most of the time, and the data has many examples that the model has
        already learned.

    When not to:
        With noisy labels, whose losses stay large; if the DataLoader is the bottleneck; with batch norm at small
        batches, which get smaller.

    How to choose:
        The defaults prune half of every other batch from 0.5 to 0.9 of the run. ``scale_factor=0.5`` makes the
        selection cheaper on images; the last tenth of the run uses all data.

    Cost:
        An extra forward pass without gradients, a third of a step, in steps that are pruned; skipped examples save
        their forward and backward passes.

    Args:
        start: Fraction of the run at which pruning starts.
        end: Fraction of the run at which pruning ends.
        keep: Fraction of the examples to keep, above 0 up to 1 (off).
        scale_factor: Height and width of the images for which losses are computed, as fractions of the full size.
        interrupt: Every ``interrupt``-th batch of an epoch is not pruned; 0 for none.
        input_key: Key of the input in the batch, or a list of keys.
        target_key: Key of the target, or a list of keys.

    Raises:
        ValueError: An argument is out of range, or ``end`` is before ``start``.
        TypeError: At the start of training, the model's loss does not accept ``reduction``.

    >>> SelectiveBackprop(start=0.5, end=0.9, keep=0.5)
    SelectiveBackprop(start=0.5, end=0.9, keep=0.5, scale_factor=1.0, interrupt=2, input_key=0, target_key=1)

    Paper: https://arxiv.org/abs/1910.00762 (Jiang et al. 2019)
    """

    __traits__ = Traits(
        slot=Slot.SELECT,
        changes_shapes=True,
        dynamic_dims=(0,),
        sharding=Sharding.PER_RANK,
        sharding_reason="Each rank selects examples from its shard of the batch.",
        neutral={"keep": 1.0},
    )

    def __init__(
        self,
        start: float = 0.5,
        end: float = 0.9,
        keep: float = 0.5,
        scale_factor: float = 1.0,
        interrupt: int = 2,
        input_key: trees.BatchKey = 0,
        target_key: trees.BatchKey = 1,
    ) -> None:
        self.start = in_unit_interval("start", start)
        self.end = in_unit_interval("end", end)
        if end < start:
            raise ValueError(f"end must not be before start; got start={start!r} and end={end!r}.")
        _check(keep, scale_factor)
        self.keep = keep
        self.scale_factor = scale_factor
        self.interrupt = whole_number("interrupt", interrupt)
        self.input_key = input_key
        self.target_key = target_key
        self._sharded: bool | None = None

    def fit_start(self, state: State, logger: Logger) -> None:
        """Check that the model's loss can be computed per example."""
        self._sharded = None
        parameters = inspect.signature(_unwrapped(state.model).loss).parameters.values()
        names = [parameter.name for parameter in parameters]
        if self.keep < 1 and "reduction" not in names and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise TypeError(
                f"SelectiveBackprop requires the loss of each example: define {type(_unwrapped(state.model)).__name__}."
                f"loss(self, outputs, batch, reduction='mean') so that reduction='none' returns one loss per example."
            )

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Prune the batch."""
        if self.keep == 1:
            return
        batch_idx = int(state.timestamp.batch_in_epoch.value)
        if should_selective_backprop(state.progress("dur"), batch_idx, self.start, self.end, self.interrupt):
            self._prune(state)

    def _are_sharded(self, model: nn.Module) -> bool:
        """Return whether parameters are sharded, cached for the run."""
        if self._sharded is None:
            self._sharded = any(map(is_dtensor, model.parameters()))
        return self._sharded

    @torch.no_grad()
    def _prune(self, state: State) -> None:
        size, model = _num_samples(state.batch_get_item(self.input_key)), _unwrapped(state.model)
        state.batch_get_item(self.target_key)  # fails early if the key is wrong
        full_batch = state.batch
        losses: list[Tensor] = []
        microbatches = _microbatches(state, size)
        # With sharded parameters, all ranks must run the same number of forward passes (all-gather).
        most = dist.largest(len(microbatches)) if self._are_sharded(state.model) else len(microbatches)
        repeated = [microbatches[-1]] * (most - len(microbatches))
        with _evaluating(state.model), state.precision_context():
            for microbatch in [*microbatches, *repeated]:
                state.batch = microbatch
                if self.scale_factor < 1:
                    inputs = state.batch_get_item(self.input_key)
                    scaled = trees.map_tensors(lambda tensor: _scaled(tensor, self.scale_factor), inputs)
                    state.batch_set_item(self.input_key, scaled)
                losses.append(_losses(model.loss, model(state.batch), state.batch))
        indices = _sample(torch.cat(losses[: len(microbatches)]), self.keep)

        def select(tensor: Tensor) -> Tensor:
            return select_samples(tensor, indices) if tensor.ndim and len(tensor) == size else tensor

        state.batch = trees.map_tensors(select, full_batch)


def _sample(losses: Tensor, keep: float) -> Tensor:
    """Return the indices of the examples to keep, in ascending order."""
    number = losses.shape[0]
    kept = max(int(keep * number + 1e-6), 1)  # 0.29 * 100 is less than 29
    ranks = torch.arange(0.5, number, device=losses.device) / number
    # The largest of p / e, with e exponentially distributed, are a sample without replacement with weights p.
    sampling_keys = ranks.pow(1 / keep - 1) / torch.empty_like(ranks).exponential_()
    return losses.argsort()[sampling_keys.topk(kept).indices].sort().values


def _losses(loss_fun: Callable[..., Any], outputs: Any, target: Any) -> Tensor:
    """Return the loss of each example, (N,)."""
    try:
        losses = loss_fun(outputs, target, reduction="none")
    except TypeError as error:
        if "reduction" not in str(error):
            raise
        raise TypeError(f"loss_fun must take reduction='none' and return the loss of each example: {error}") from error
    if isinstance(losses, Mapping):
        named = dict(cast("Mapping[str, Tensor]", losses))
        losses = sum(loss for name, loss in named.items() if name == "total" or "total" not in named)
    elif isinstance(losses, (tuple, list)):
        losses = sum(cast("list[Tensor]", losses))
    if not isinstance(losses, Tensor) or losses.ndim == 0:
        raise ValueError(
            f"loss_fun must return the loss of each example for reduction='none', of shape (N, ...), but it returned "
            f"{losses!r}."
        )
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


def _scaled(tensor: Tensor, scale_factor: float) -> Tensor:
    if scale_factor == 1:
        return tensor
    if tensor.ndim not in (3, 4) or not tensor.is_floating_point():
        raise ValueError(
            f"scale_factor={scale_factor} requires images (N, C, H, W) or signals (N, C, L) of a floating dtype, but "
            f"the input has the shape {tuple(tensor.shape)} and is {tensor.dtype}. Use scale_factor=1."
        )
    mode = "bilinear" if tensor.ndim == 4 else "linear"
    return nn.functional.interpolate(tensor, scale_factor=scale_factor, mode=mode, align_corners=False)


@contextlib.contextmanager
def _evaluating(model: object) -> Generator[None]:
    """Put a module into evaluation mode, and restore the mode of each of its submodules on exit."""
    training = [module for module in model.modules() if module.training] if isinstance(model, nn.Module) else []
    # Not with eval(), which a model may override.
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _microbatches(state: State, samples: int) -> Sequence[Any]:
    """Split the batch into the microbatches of training."""
    spec: DataSpec = state.train_phase.loader or DataSpec([])
    microbatches = spec.__microbatches__(state.batch, state.microbatch_size, samples)
    transform = spec.microbatch_transforms
    return microbatches if transform is None else [transform(microbatch) for microbatch in microbatches]


def _num_samples(input: Any) -> int:
    tensor = next((leaf for leaf in trees.leaves(input) if isinstance(leaf, Tensor) and leaf.ndim), None)
    if tensor is None:
        raise TypeError(f"The input must be a tensor or a collection of tensors, but it is {type(input).__name__}.")
    return len(tensor)


def _unwrapped(model: nn.Module) -> Any:
    return model.module if isinstance(model, DistributedDataParallel) else model


def _check(keep: float, scale_factor: float) -> None:
    in_unit_interval("keep", positive("keep", keep))
    in_unit_interval("scale_factor", positive("scale_factor", scale_factor))
