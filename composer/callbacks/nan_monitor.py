"""Stop with an error when the loss is not a number."""

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
    """Raises ``RuntimeError`` when the loss of a microbatch is NaN, and names the batch.

    On the CPU it raises at once, and where there are several processes, in all of them after the step, whichever had
    the batch. On an accelerator the check runs there and its result comes to the host beside the
    work, so that no step waits for it: the error names the batch in which the NaN was, and comes as soon as the device
    has got there, usually a few batches after the host passed it. At the end of an epoch, before an evaluation and at
    the end of the training it waits for the checks under way, so no such checkpoint or score is of a broken model.

    Raises:
        RuntimeError: From :meth:`.Trainer.fit`: a loss is NaN.
        TypeError: From :meth:`.Trainer.fit`: the loss is no tensor, sequence or mapping of tensors.

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
        """Check the loss on its device, and raise for what has become known."""
        if dist.get_world_size() == 1:
            self._check(state.loss, state.timestamp)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Check the mean of the losses of several processes, so that none is left waiting for one that raised."""
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
        """Forget what is under way."""
        self._readback = Readback()

    def _check(self, loss: Any, now: Timestamp) -> None:
        self._readback.put((now.count(TimeUnit.BATCH), now.count(TimeUnit.EPOCH)), _any_nan(loss))
        self._raise_for(self._readback.arrived())

    def _raise_for(self, results: list[tuple[Any, bool | int | float]]) -> None:
        for (batch, epoch), is_nan in results:
            if is_nan:
                self._readback = Readback()  # or a later fit would raise for this one
                raise RuntimeError(
                    f"The loss of batch {batch} (epoch {epoch}) is NaN. Lower the learning rate, warm it up or clip "
                    f"gradients, look for broken values in that batch, or train in fp32 or amp_bf16 if this is "
                    f"amp_fp16; torch.autograd.set_detect_anomaly(True) names the operation."
                )


def _any_nan(loss: Any) -> Tensor:
    """Whether a loss, or any of several, has a NaN; a scalar on its device."""
    if isinstance(loss, Tensor):
        losses: list[Any] = [loss]
    elif isinstance(loss, Mapping):
        losses = list(cast("Mapping[str, Any]", loss).values())
    elif isinstance(loss, Sequence) and not isinstance(loss, str):
        losses = list(cast("Sequence[Any]", loss))
    else:
        losses = []
    if not losses or not all(isinstance(part, Tensor) for part in losses):
        raise TypeError(f"The model's loss must be a tensor, or a sequence or mapping of tensors; got {loss!r}.")
    found = [cast(Tensor, part).detach().isnan().any() for part in losses]
    return found[0] if len(found) == 1 else torch.stack(found).any()
