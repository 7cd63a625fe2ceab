"""Schedule-free training: average the weights inside the optimizer instead of lowering the learning rate.

    y = (1 - beta) z + beta x;        z <- z - lr * g(y);        x <- (1 - c) x + c z,  c = 1 / t

Gradients are computed at y, the model weights in training; x, the average of the z, is the result. The package
``schedulefree`` provides the optimizers; this module swaps a model between y and x at the right events. Paper: The Road
Less Scheduled, Defazio et al. 2024, https://arxiv.org/abs/2405.15682
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage] - the base of all of them
from torch.optim import Optimizer

from composer._numbers import whole_number
from composer.algorithms._weight_averaging import Pairs, weights_of
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.event import Event
from composer.core.hooks import listens
from composer.core.traits import Traits
from composer.core.types import Batch
from composer.optim.wrapped_optimizer import unwrapped
from composer.trees import ensure_tuple

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["ScheduleFree", "use_averaged_weights"]


@contextlib.contextmanager
def use_averaged_weights(
    model: nn.Module, optimizers: Optimizer | Sequence[Optimizer], batches: Iterable[Batch] = ()
) -> Generator[None]:
    """Swap the averages of schedule-free optimizers into a model; on exit, restore the trained weights bit for bit.

    Args:
        model: The model.
        optimizers: Its optimizers; those that are not schedule-free are ignored.
        batches: Training batches from which the running statistics of batch normalization are recomputed, since those
            of training belong to other weights. They are restored on exit too.

    Raises:
        ValueError: None of the optimizers is schedule-free.

    >>> from schedulefree import SGDScheduleFree
    >>> model = nn.Linear(1, 1, bias=False)
    >>> optimizer = SGDScheduleFree(model.parameters(), lr=0.1, momentum=0.9)
    >>> optimizer.train()
    >>> for _ in range(3):
    ...     model(torch.ones(1, 1)).sum().backward()
    ...     optimizer.step()
    >>> before = model.weight.item()
    >>> with use_averaged_weights(model, optimizer):
    ...     model.weight.item() > before
    True
    >>> model.weight.item() == before
    True

    Paper: https://arxiv.org/abs/2405.15682 (Defazio et al. 2024)
    """
    found = _schedule_free(ensure_tuple(optimizers))
    training = _load_averages(model, found, batches)
    try:
        yield
    finally:
        _restore_weights(model, found, training)


class ScheduleFree(Algorithm):
    """Swaps in the averaged weights for evaluation, prediction and checkpoints, see :func:`use_averaged_weights`.

    The averages also stay in the model when training ends, so the saved or exported model is the averaged one. A
    checkpoint also contains the trained weights, so that a resumed run, or another ``fit``, continues exactly. The
    optimizer is one of the package ``schedulefree`` (extra ``schedulefree``), or any optimizer whose methods
    ``train()`` and ``eval()`` swap its parameters.

    When to use it:
        If the duration of the run is not known in advance, or if you need good weights at any time: on many tasks it
        matches a cosine schedule tuned for each duration.

    When not to:
        With a schedule that decays the learning rate; with other weight averaging; and with DiLoCo or LocalSGD on
        several ranks, which raises an error: each would end with its own average.

    How to choose:
        Use a learning rate one to ten times as large as with a schedule for AdamW, ten to fifty times for SGD; warm up
        over a few percent of the steps (``warmup_steps`` of the optimizer).

    Cost:
        No more memory than momentum, except for a copy of the weights while the averages are in the model. With batch
        normalization, ``calibration_batches`` forward passes at each evaluation.

    Args:
        calibration_batches: Number of the last (micro)batches from which the running statistics of batch
            normalization are recomputed for the averages. They are kept on the device, but only for models with batch
            normalization. 0 keeps the statistics of training. The batches are not saved: after resuming, fewer are
            used until enough have been processed.

    Attributes:
        is_averaged: Whether the averages are in the model.

    Raises:
        ValueError: ``calibration_batches`` is negative; at initialization, no optimizer is schedule-free.

    >>> ScheduleFree(calibration_batches=20)
    ScheduleFree(calibration_batches=20)

    Paper: https://arxiv.org/abs/2405.15682 (Defazio et al. 2024)
    """

    __traits__ = Traits(
        conflicts_with={
            "EMA": "each evaluates with a different average. Use one of them.",
            "PostHocEMA": "each keeps a different average. Use one of them.",
            "SWA": "each evaluates with a different average. Use one of them.",
        },
        sharding=Sharding.SAFE,
        sharding_reason="Each rank averages its shard of the parameters.",
        engine_conflict="It reads the weights and swaps in their averages.",
        why_not_neutral="the optimizer requires it",
    )

    def __init__(self, calibration_batches: int = 8) -> None:
        self.calibration_batches = whole_number("calibration_batches", calibration_batches)
        # The trained weights, while the averages are in the model.
        self._training: dict[str, Tensor] | None = None
        self._for_this_evaluation = False
        self._batches: deque[Batch] = deque(maxlen=self.calibration_batches)
        self._keeps_batches = False

    @property
    def is_averaged(self) -> bool:
        """Whether the averages are in the model."""
        return self._training is not None

    def init(self, state: State, logger: Logger) -> None:
        """Reject optimizers that do not average."""
        _schedule_free(state.optimizers)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Restore the trained weights."""
        self._keeps_batches = self.calibration_batches > 0 and bool(_norms(state.model))
        if self._training is None:
            for optimizer in _schedule_free(state.optimizers):
                optimizer.train()
        self._swap_out(state)

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Restore the trained weights after a checkpoint."""
        self._swap_out(state)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Restore the trained weights after a checkpoint, or after an evaluation that failed."""
        if self._training is not None:
            self._swap_out(state)

    def before_forward(self, state: State, logger: Logger) -> None:
        """Keep the batch to recompute the statistics of batch normalization."""
        if self._keeps_batches:
            self._batches.append(state.batch)

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Swap in the averages for a checkpoint."""
        self._swap_in_for_saving(state, Event.BATCH_CHECKPOINT)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Restore the trained weights after a checkpoint."""
        self._swap_out(state)

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Swap in the averages for a checkpoint."""
        self._swap_in_for_saving(state, Event.EPOCH_CHECKPOINT)

    def iteration_checkpoint(self, state: State, logger: Logger) -> None:
        """Swap in the averages for a checkpoint."""
        self._swap_in_for_saving(state, Event.ITERATION_CHECKPOINT)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Leave the averages in the model."""
        self._swap_in(state)

    def eval_start(self, state: State, logger: Logger) -> None:
        """Swap in the averages."""
        self._begin_evaluation(state)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Restore the trained weights, unless the averages were in the model before."""
        self._end_evaluation(state)

    def predict_start(self, state: State, logger: Logger) -> None:
        """Swap in the averages."""
        self._begin_evaluation(state)

    def predict_end(self, state: State, logger: Logger) -> None:
        """Restore the trained weights, unless the averages were in the model before."""
        self._end_evaluation(state)

    def state_dict(self) -> dict[str, Any]:
        """Return the trained weights by name if the averages are in the model."""
        return {**super().state_dict(), "training": None if self._training is None else dict(self._training)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the trained weights that a checkpoint contains in addition to the averages.

        Args:
            state: A result of :meth:`state_dict`.
        """
        training: dict[str, Tensor] | None = state["training"]
        self._training = None if training is None else {name: weight.clone() for name, weight in training.items()}

    def _begin_evaluation(self, state: State) -> None:
        self._for_this_evaluation = self._training is None
        self._swap_in(state)

    def _end_evaluation(self, state: State) -> None:
        if self._for_this_evaluation:
            self._swap_out(state)

    def _swap_in_for_saving(self, state: State, event: Event) -> None:
        if self._training is None and any(_saves(callback, state, event) for callback in state.callbacks):
            self._swap_in(state)

    def _swap_in(self, state: State) -> None:
        if self._training is None:
            context = state.precision_context
            self._training = _load_averages(state.model, _schedule_free(state.optimizers), self._batches, context)

    def _swap_out(self, state: State) -> None:
        if self._training is not None:
            _restore_weights(state.model, _schedule_free(state.optimizers), self._training)
            self._training = None


def _schedule_free(optimizers: Sequence[Optimizer]) -> list[Any]:
    """Return the optimizers that swap their parameters between training and evaluation."""
    inner = [unwrapped(optimizer) for optimizer in optimizers]
    found = [one for one in inner if callable(getattr(one, "train", None)) and callable(getattr(one, "eval", None))]
    if not found:
        names = ", ".join(type(optimizer).__name__ for optimizer in optimizers) or "none"
        raise ValueError(
            f"optimizers: schedule-free training requires a schedule-free optimizer, but got {names}. Use one such as "
            "schedulefree.AdamWScheduleFree(model.parameters(), lr=0.0025), from "
            "pip install 'composer-torch[schedulefree]'."
        )
    return found


def _saves(callback: Any, state: State, event: Event) -> bool:
    """Return whether a callback is about to read the weights, as far as can be determined here."""
    if not listens(callback, event):
        return False
    # Schedules of CheckpointSaver and of Generate.
    for name in ("save_interval", "check_interval"):
        is_due: Any = getattr(callback, name, None)
        if callable(is_due):
            return bool(is_due(state, event))
    return True


def _load_averages(
    model: nn.Module,
    optimizers: Iterable[Any],
    batches: Iterable[Batch],
    context: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> dict[str, Tensor]:
    """Load the averages into the model; return its previous weights."""
    training = {name: weight.detach().clone() for name, weight in weights_of(model).items()}
    for optimizer in optimizers:
        optimizer.eval()
    _recalibrate(model, list(batches), context)
    return training


def _restore_weights(model: nn.Module, optimizers: Iterable[Any], training: Mapping[str, Tensor]) -> None:
    for optimizer in optimizers:
        optimizer.train()
    # Recomputing the trained weights would change their last bits.
    Pairs(weights_of(model), training).load()


def _norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the layers with running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


@torch.no_grad()
def _recalibrate(
    model: nn.Module, batches: Sequence[Batch], context: Callable[[], AbstractContextManager[Any]]
) -> None:
    """Compute the running statistics as means over some batches, with everything else in evaluation mode."""
    norms = _norms(model)
    if not norms or not batches:
        return
    training = [module for module in model.modules() if module.training]
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    model.eval()
    try:
        for norm in norms:
            norm.num_batches_tracked = None if norm.num_batches_tracked is None else norm.num_batches_tracked.clone()
            norm.reset_running_stats()
            norm.momentum = None  # which makes it a mean over all batches
            norm.train()
        with torch.compiler.set_stance("force_eager"):  # avoids compiling another mode
            for batch in batches:
                with context():
                    model(batch)
    finally:
        for norm, momentum, count in before:
            norm.momentum, norm.num_batches_tracked = momentum, count
        model.eval()
        for module in training:
            module.training = True
