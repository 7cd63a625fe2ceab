"""NaNMonitor: raise an error when the training loss is NaN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from composer import dist
from composer.callbacks._async_readback import Readback
from composer.core.callback import Callback
from composer.core.time import TimeUnit

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State
    from composer.core.timestamp import Timestamp

__all__ = ["NaNMonitor"]


class NaNMonitor(Callback):
    """Raises ``RuntimeError`` when a training loss is NaN, and names the batch.

    The loss of each batch is checked; a microbatch without valid targets, whose mean may be 0 / 0, does not count in
    it. On the CPU it raises before the optimizer steps; in distributed training it raises on all ranks after the
    step, whichever rank had the batch. On an accelerator the check runs on the device and its result is copied to the
    host asynchronously, so that no step waits for it: the error names the batch that had the NaN, and is raised as soon
    as the device has reached it, usually a few batches after the host. At the end of an epoch, before an evaluation and
    at the end of training it waits for pending checks, so that no checkpoint or score of these is from a broken model.

    Raises:
        RuntimeError: From :meth:`.Trainer.fit`: a loss is NaN.
        TypeError: From :meth:`.Trainer.fit`: the loss is not a tensor, or a sequence or mapping of tensors.

    >>> from composer import Engine, State
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> engine = Engine(state, callbacks=NaNMonitor())
    >>> state.loss = torch.tensor(float("nan"))
    >>> engine.run_event("after_loss")
    Traceback (most recent call last):
    ...
    RuntimeError: The loss of batch 0 (epoch 0) is NaN. ...
    """

    def __init__(self) -> None:
        self._readback = Readback()

    def after_loss(self, state: State, logger: Logger) -> None:
        """Check the loss on its device in a loop without a trainer, and raise for checks that have finished."""
        if dist.get_world_size() == 1 and not state.train_phase.in_step:
            self._check(state.loss, state.timestamp)

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Check the loss of the batch, in which microbatches have their weights: 0 for those without valid targets."""
        if dist.get_world_size() == 1 and state.train_phase.in_step:
            self._check(state.total_loss_dict, state.timestamp)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Check the mean loss over ranks, so that all ranks raise and none hangs in a collective."""
        if dist.get_world_size() > 1 and state.previous_timestamp is not None:
            self._check(state.total_loss_dict, state.previous_timestamp)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Wait for the checks of the epoch, before its checkpoint."""
        self._raise_for(self._readback.arrived(wait=True))

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """Wait for the checks before the evaluation."""
        self._raise_for(self._readback.arrived(wait=True))

    def fit_end(self, state: State, logger: Logger) -> None:
        """Wait for the last checks."""
        self._raise_for(self._readback.arrived(wait=True))

    def close(self, state: State, logger: Logger) -> None:
        """Discard pending checks."""
        self._readback = Readback()

    def _check(self, loss: Any, now: Timestamp) -> None:
        self._readback.put((now.count(TimeUnit.BATCH), now.count(TimeUnit.EPOCH)), _any_nan(loss))
        self._raise_for(self._readback.arrived())

    def _raise_for(self, results: list[tuple[Any, bool | int | float]]) -> None:
        for (batch, epoch), is_nan in results:
            if is_nan:
                self._readback = Readback()  # otherwise a later fit would raise for this one
                raise RuntimeError(
                    f"The loss of batch {batch} (epoch {epoch}) is NaN. Lower the learning rate, warm it up or clip "
                    f"gradients, check that batch for invalid values, or train in fp32 or amp_bf16 if this is "
                    f"amp_fp16; torch.autograd.set_detect_anomaly(True) names the operation."
                )


def _any_nan(loss: Any) -> Tensor:
    """Return whether a loss, or any of several, contains a NaN, as a scalar on its device."""
    if isinstance(loss, Tensor):
        losses: list[Any] = [loss]
    elif isinstance(loss, Mapping):
        losses = list(cast("Mapping[str, Any]", loss).values())
    elif isinstance(loss, Sequence) and not isinstance(loss, str):
        losses = list(cast("Sequence[Any]", loss))
    else:
        losses = []
    if not losses or not all(isinstance(item, Tensor) for item in losses):
        raise TypeError(f"The model's loss must be a tensor, or a sequence or mapping of tensors; got {loss!r}.")
    found = [cast(Tensor, item).detach().isnan().any() for item in losses]
    return found[0] if len(found) == 1 else torch.stack(found).any()
