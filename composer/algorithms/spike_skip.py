"""Spike skipping: skip an update whose loss or gradient norm is an outlier compared to recent steps.

    skip if x > mean + s * std, for x the loss or the gradient norm, over the last w steps; or if x is not finite

From the OLMo 2 report, https://arxiv.org/abs/2501.00656 (section on skipped steps); skipping batches around a spike
goes back to PaLM, https://arxiv.org/abs/2204.02311
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from composer import dist
from composer._numbers import positive, whole_number
from composer._text import one_of
from composer.algorithms._gradients import gradients_of, parameters_of, total_norm
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.dist.dtensor import local_tensors

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SpikeSkip", "is_spike"]

_WATCHED = ("loss", "norm", "both")


def is_spike(value: Tensor, history: Tensor, num_std: float = 6.0) -> Tensor:
    """Return whether a value is far above those before it, without device synchronization.

        x > mean + s * std        or x is not finite

    Args:
        value: The value x, of any shape (...).
        history: Earlier values, (W, ...); non-finite values count as missing. While less than half is present, no
            finite value is a spike.
        num_std: Number s of standard deviations.

    Returns:
        Booleans, (...).

    Raises:
        ValueError: ``num_std`` is not positive.

    >>> history = torch.tensor([1.0, 2.0, 3.0, float("nan")])  # mean 2, deviation 1
    >>> is_spike(torch.tensor(3.9), history, num_std=2.0), is_spike(torch.tensor(4.1), history, num_std=2.0)
    (tensor(False), tensor(True))

    Paper: https://arxiv.org/abs/2501.00656 (OLMo 2, 2025)
    """
    positive("num_std", num_std)
    there = history.isfinite()
    count = there.sum(0)
    mean = torch.where(there, history, 0).sum(0) / count.clamp(min=1)
    square = torch.where(there, history - mean, 0).square().sum(0)
    bound = mean + num_std * (square / (count - 1).clamp(min=1)).sqrt()
    enough = 2 * count >= max(history.shape[0], 4)
    return ~value.isfinite() | (enough & (value > bound))


class SpikeSkip(Algorithm):
    """Skips the update of a batch whose loss or gradient norm is a spike, see :func:`is_spike`.

    The decision is made on the device without synchronization, and is the same on all ranks. With torch's fused
    optimizers (``fused=True``) the entire step is skipped, including moments and step count, at no cost. With other
    optimizers the weights do not change, bit for bit, but the moments are updated with a zero gradient; this takes a
    copy of the weights. The gradient norm is measured before any clipping. Spikes are included in the statistics, so
    that a lasting new level is eventually accepted.

    Logs ``spike_skip/skipped``, 0 or 1, and ``spike_skip/gradient_norm``.

    When to use it:
        For long runs of large models, where one bad batch can cost days; also as a guard against non-finite gradients.

    When not to:
        In short runs, which end before there are enough statistics, and if losses naturally vary between batches.

    How to choose:
        ``num_std=6`` skips almost nothing but spikes; ``window`` long enough for a stable deviation, 128 in the
        report. ``watch="norm"`` if the loss of a batch depends on its data more than on the model.

    Cost:
        A norm of the gradients, and with non-fused optimizers a copy of the weights in each step. No device
        synchronization.

    Args:
        num_std: Number of standard deviations above the mean at which a value is a spike; infinity skips only
            non-finite values.
        window: Number of last steps for mean and deviation; in the first half of the window, only non-finite values
            are skipped.
        watch: What to monitor: ``"loss"``, ``"norm"`` or ``"both"``.

    Raises:
        ValueError: An argument is out of range.

    >>> SpikeSkip()
    SpikeSkip(num_std=6.0, window=128, watch='both')

    Paper: https://arxiv.org/abs/2501.00656 (OLMo 2, 2025)
    """

    # Last in the order, so first after the gradient is computed: before it is clipped.
    __traits__ = Traits(
        slot=Slot.PRECISION,
        sharding=Sharding.SAFE,
        sharding_reason="Loss and norm are reduced over all ranks, which decide alike.",
        engine_conflict="It reads the gradients and skips steps.",
        neutral={"num_std": float("inf")},
    )

    def __init__(self, num_std: float = 6.0, window: int = 128, watch: str = "both") -> None:
        self.num_std = positive("num_std", num_std)
        window = whole_number("window", window, minimum=None)
        if window < 4:
            raise ValueError(f"window must be at least 4 steps, to compute a deviation; got {window!r}.")
        self.window = window
        self.watch = one_of("watch", watch, _WATCHED)
        self._history = torch.full((window, 2), float("nan"))
        self._latest: Tensor | None = None
        self._copies: dict[int, tuple[list[nn.Parameter], list[Tensor]]] = {}
        self._handles: dict[int, RemovableHandle] = {}

    def fit_start(self, state: State, logger: Logger) -> None:
        """Move the history to the device."""
        self._history = self._history.to(state.device.torch_device)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Copy the weights of optimizers that cannot skip a step."""
        for index, optimizer in enumerate(state.optimizers):
            if _can_skip(optimizer, state):
                self._copies.pop(index, None)
                continue
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
            kept = self._copies.get(index)
            if kept is None or len(kept[0]) != len(parameters) or any(map(_differ, kept[0], parameters)):
                kept = self._copies[index] = (parameters, [torch.empty_like(p) for p in parameters])
            with torch.no_grad():
                torch._foreach_copy_(local_tensors(kept[1]), local_tensors(parameters))  # pyright: ignore[reportPrivateImportUsage]

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Decide, and prepare the optimizers for a step that may be skipped."""
        self._latest = self._observe(state)
        spikes = is_spike(self._latest, self._history, self.num_std)
        # A value that is not monitored must still be finite.
        broken = ~self._latest.isfinite()
        watched = {"loss": spikes[0] | broken[1], "norm": spikes[1] | broken[0], "both": spikes.any()}
        skip = watched[self.watch]
        for index, optimizer in enumerate(state.optimizers):
            if _can_skip(optimizer, state):
                optimizer.found_inf = skip.float()  # type: ignore[attr-defined]
                continue
            for gradient in gradients_of(parameters_of([optimizer])):
                gradient.masked_fill_(skip.to(gradient.device), 0)
            self._restore_after_step(optimizer, index, skip)
        logger.enqueue({"spike_skip/skipped": skip.float(), "spike_skip/gradient_norm": self._latest[1]})

    def batch_end(self, state: State, logger: Logger) -> None:
        """Add the batch to the history."""
        for optimizer in state.optimizers:
            vars(optimizer).pop("found_inf", None)
        if self._latest is not None:
            self._history = torch.cat([self._history[1:], self._latest.unsqueeze(0)])
            self._latest = None

    def fit_end(self, state: State, logger: Logger) -> None:
        """Release the weights and their copies."""
        self._copies.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the last losses and gradient norms."""
        return {**super().state_dict(), "history": self._history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the last losses and gradient norms.

        Args:
            state: A result of :meth:`state_dict`.
        """
        history = state["history"][-self.window :].to(self._history.device)
        missing = self._history.new_full((self.window - len(history), 2), float("nan"))
        self._history = torch.cat([missing, history])

    def _observe(self, state: State) -> Tensor:
        """Return loss and gradient norm of the batch, (2,), the same on all ranks."""
        loss = state.total_loss_dict.get("loss/train/total")
        loss = (state.loss.detach() if loss is None else loss).to(self._history)
        if dist.get_world_size() > 1:
            loss = loss / dist.get_world_size()
            dist.all_reduce(loss)
        gradients = gradients_of(parameters_of(state.optimizers))
        norm = total_norm(gradients).to(self._history) if gradients else torch.zeros_like(loss)
        return torch.stack([loss, norm])

    def _restore_after_step(self, optimizer: Optimizer, index: int, skip: Tensor) -> None:
        # An optimizer may evaluate the gradient several times in a step; the last evaluation counts.
        if index in self._handles:
            self._handles[index].remove()
        parameters, copies = self._copies[index]

        def restore(*_: object) -> None:
            self._handles.pop(index).remove()
            _choose(parameters, copies, skip)

        self._handles[index] = optimizer.register_step_post_hook(restore)


def _can_skip(optimizer: Optimizer, state: State) -> bool:
    """Return whether an optimizer can skip a step by a flag, unless the gradient scaler of amp_fp16 uses it."""
    return state.scaler is None and getattr(optimizer, "_step_supports_amp_scaling", False)


def _differ(one: object, other: object) -> bool:
    return one is not other


@torch.no_grad()
def _choose(parameters: Sequence[nn.Parameter], copies: Sequence[Tensor], skip: Tensor) -> None:
    """Copy the copies into the parameters if ``skip`` is true."""
    for parameter, copy in zip(local_tensors(parameters), local_tensors(copies), strict=True):
        torch.where(skip.to(copy.device), copy, parameter.detach(), out=parameter.detach())
