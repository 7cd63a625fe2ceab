"""Schedule-free training: average the weights inside the optimizer instead of lowering the learning rate.

    y = (1 - beta) z + beta x;        z <- z - lr * g(y);        x <- (1 - c) x + c z,  c = 1 / t

Gradients are taken at y, which is what the model holds in training; x, the average of the z, is the result. The package
``schedulefree`` has the optimizers; here is what moves a model between y and x at the right moments. Paper: The Road
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

from composer._text import non_negative
from composer.algorithms._weight_averaging import Pairs, weights_of
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.event import Event
from composer.core.hooks import listens
from composer.core.traits import Traits
from composer.core.types import Batch
from composer.trees import ensure_tuple

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["ScheduleFree", "use_averaged_weights"]


@contextlib.contextmanager
def use_averaged_weights(
    model: nn.Module, optimizers: Optimizer | Sequence[Optimizer], batches: Iterable[Batch] = ()
) -> Generator[None]:
    """Put the averages of schedule-free optimizers into a model; afterwards the weights of training, bit for bit.

    Args:
        model: The model.
        optimizers: Its optimizers; those that are not schedule-free are passed over.
        batches: Batches of the training data, from which the running statistics of batch normalisation are computed
            anew, since those of training belong to other weights. They, too, come back afterwards.

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
    training = _put_in(model, found, batches)
    try:
        yield
    finally:
        _take_out(model, found, training)


class ScheduleFree(Algorithm):
    """Puts the averaged weights into the model wherever they belong, see :func:`use_averaged_weights`.

    That is for evaluations, for predictions, for checkpoints, and when training ends, where they stay: what is saved or
    exported then is the result. A checkpoint keeps the weights of training beside them, so that a resumed training, or
    another ``fit``, goes on exactly. The optimizer is one of the package ``schedulefree`` (extra ``schedulefree``), or
    any with methods ``train()`` and ``eval()`` that move its parameters.

    When to use it:
        Where the length of the training is not known beforehand, or good weights are wanted along the way: it
        matches a cosine schedule tuned for each length on many tasks.

    When not to:
        With a schedule that lowers the rate, and with other averages of the weights.

    How to choose:
        The rate is one to ten times as large as with a schedule for AdamW, ten to fifty times for SGD; warm up over
        a few per cent of the steps (``warmup_steps`` of the optimizer).

    Cost:
        No more memory than momentum takes, except for a copy of the weights while the averages are in the model. With
        batch normalisation, ``calibration_batches`` forward passes at each evaluation.

    Args:
        calibration_batches: From how many of the last (micro)batches the running statistics of batch normalisation are
            computed for the averages. They are kept on the device, but only for models with batch normalisation. 0
            leaves the statistics of training. They are not saved: after a resume there are fewer until so many have
            been trained on.

    Attributes:
        is_averaged: Whether the averages are in the model.

    Raises:
        ValueError: ``calibration_batches`` is negative, or (when the training is set up) no optimizer is schedule-free.

    >>> ScheduleFree(calibration_batches=20)
    ScheduleFree(calibration_batches=20)

    Paper: https://arxiv.org/abs/2405.15682 (Defazio et al. 2024)
    """

    __traits__ = Traits(
        conflicts_with={
            "EMA": "each evaluates with an average of its own. Take one of them.",
            "PostHocEMA": "each keeps an average of its own. Take one of them.",
            "SWA": "each evaluates with an average of its own. Take one of them.",
        },
        sharding=Sharding.SAFE,
        sharding_reason="Each process averages the weights that it holds.",
        engine_conflict="It reads the weights and puts averages in their place.",
    )

    def __init__(self, calibration_batches: int = 8) -> None:
        self.calibration_batches = non_negative("calibration_batches", calibration_batches)
        # What the model held when the averages were put into it.
        self._training: dict[str, Tensor] | None = None
        self._for_this_evaluation = False
        self._batches: deque[Batch] = deque(maxlen=calibration_batches)
        self._keeps_batches = False

    @property
    def is_averaged(self) -> bool:
        """Whether the averages are in the model."""
        return self._training is not None

    def init(self, state: State, logger: Logger) -> None:
        """Refuse optimizers that do not average."""
        _schedule_free(state.optimizers)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Make sure that training goes on with its own weights."""
        self._keeps_batches = self.calibration_batches > 0 and bool(_norms(state.model))
        if self._training is None:
            for optimizer in _schedule_free(state.optimizers):
                optimizer.train()
        self._go_back(state)

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Go back to the weights of training after a checkpoint."""
        self._go_back(state)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Go back to the weights of training after a checkpoint, or after an evaluation that failed."""
        if self._training is not None:
            self._go_back(state)

    def before_forward(self, state: State, logger: Logger) -> None:
        """Remember the batch for the statistics of batch normalisation."""
        if self._keeps_batches:
            self._batches.append(state.batch)

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Show the averages to a checkpoint."""
        self._show(state, Event.BATCH_CHECKPOINT)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Go back to the weights of training after a checkpoint."""
        self._go_back(state)

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Show the averages to a checkpoint."""
        self._show(state, Event.EPOCH_CHECKPOINT)

    def iteration_checkpoint(self, state: State, logger: Logger) -> None:
        """Show the averages to a checkpoint."""
        self._show(state, Event.ITERATION_CHECKPOINT)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Leave the averages in the model."""
        self._go_in(state)

    def eval_start(self, state: State, logger: Logger) -> None:
        """Evaluate with the averages."""
        self._begin(state)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Go back to the weights of training, unless the averages were in the model before."""
        self._end(state)

    def predict_start(self, state: State, logger: Logger) -> None:
        """Predict with the averages."""
        self._begin(state)

    def predict_end(self, state: State, logger: Logger) -> None:
        """Go back to the weights of training, unless the averages were in the model before."""
        self._end(state)

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of training by name if the averages are in the model in their place."""
        return {**super().state_dict(), "training": None if self._training is None else dict(self._training)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the weights of training that a checkpoint keeps beside the averages.

        Args:
            state: What :meth:`state_dict` returned.
        """
        training: dict[str, Tensor] | None = state["training"]
        self._training = None if training is None else {name: weight.clone() for name, weight in training.items()}

    def _begin(self, state: State) -> None:
        self._for_this_evaluation = self._training is None
        self._go_in(state)

    def _end(self, state: State) -> None:
        if self._for_this_evaluation:
            self._go_back(state)

    def _show(self, state: State, event: Event) -> None:
        if self._training is None and any(_saves(callback, state, event) for callback in state.callbacks):
            self._go_in(state)

    def _go_in(self, state: State) -> None:
        if self._training is None:
            context = state.precision_context
            self._training = _put_in(state.model, _schedule_free(state.optimizers), self._batches, context)

    def _go_back(self, state: State) -> None:
        if self._training is not None:
            _take_out(state.model, _schedule_free(state.optimizers), self._training)
            self._training = None


def _schedule_free(optimizers: Sequence[Optimizer]) -> list[Any]:
    """Those of the optimizers that move their parameters between training and evaluation."""
    # A method that wraps an optimizer, as SAM does, keeps it under this name.
    inner = [getattr(optimizer, "base_optimizer", optimizer) for optimizer in optimizers]
    found = [one for one in inner if callable(getattr(one, "train", None)) and callable(getattr(one, "eval", None))]
    if not found:
        names = ", ".join(type(optimizer).__name__ for optimizer in optimizers) or "none"
        raise ValueError(
            f"optimizers: schedule-free training needs a schedule-free optimizer, but got {names}. Give one such as "
            "schedulefree.AdamWScheduleFree(model.parameters(), lr=0.0025), from "
            "pip install 'composer-torch[schedulefree]'."
        )
    return found


def _saves(callback: Any, state: State, event: Event) -> bool:
    """Whether a callback is about to look at the weights, as far as one can tell from outside."""
    if not listens(callback, event):
        return False
    due: Any = getattr(callback, "save_interval", None)
    return bool(due(state, event)) if callable(due) else True


def _put_in(
    model: nn.Module,
    optimizers: Iterable[Any],
    batches: Iterable[Batch],
    context: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> dict[str, Tensor]:
    """Put the averages into the model; return what it held."""
    training = {name: weight.detach().clone() for name, weight in weights_of(model).items()}
    for optimizer in optimizers:
        optimizer.eval()
    _recalibrate(model, list(batches), context)
    return training


def _take_out(model: nn.Module, optimizers: Iterable[Any], training: Mapping[str, Tensor]) -> None:
    for optimizer in optimizers:
        optimizer.train()
    # Computed back, the weights of training would differ in their last bits.
    Pairs(weights_of(model), training).load()


def _norms(model: nn.Module) -> list[_BatchNorm]:
    """The layers with running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


@torch.no_grad()
def _recalibrate(
    model: nn.Module, batches: Sequence[Batch], context: Callable[[], AbstractContextManager[Any]]
) -> None:
    """Compute the running statistics as means over some batches; everything else is as in an evaluation."""
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
        with torch.compiler.set_stance("force_eager"):  # nothing to compile a mode of its own for
            for batch in batches:
                with context():
                    model(batch)
    finally:
        for norm, momentum, count in before:
            norm.momentum, norm.num_batches_tracked = momentum, count
        model.eval()
        for module in training:
            module.training = True
