"""MixUp: train on convex combinations of pairs of examples.

    x' = (1 - m) * x_i + m * x_j,    y' = (1 - m) * y_i + m * y_j          m = min(l, 1 - l),  l ~ Beta(a, a)

Paper: mixup: Beyond Empirical Risk Minimization, Zhang et al. 2018, https://arxiv.org/abs/1710.09412
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from composer import trees
from composer._text import in_unit_interval, non_negative
from composer.algorithms._draw import draw_beta
from composer.algorithms._images import select_samples
from composer.algorithms._targets import as_soft_target, edit_targets, logits_of
from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.order import Claim, Slot
from composer.precision import get_precision_context

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["MixUp", "mixup_batch"]

_AROUND_LOSS = frozenset({Event.BEFORE_LOSS, Event.AFTER_LOSS})
_AROUND_BACKWARD = frozenset({Event.BEFORE_BACKWARD, Event.AFTER_BACKWARD})


def mixup_batch(
    input: Any,
    target: Any,
    mixing: float | None = None,
    alpha: float = 0.2,
    indices: Tensor | None = None,
) -> tuple[Any, Any, float]:
    """Mix each example with another one of the batch.

        x' = (1 - m) * x + m * x[indices]

    The targets are to be mixed likewise: ``(1 - m) * loss(outputs, target) + m * loss(outputs, permuted)``, or with
    one-hot targets ``(1 - m) * y + m * y[indices]``.

    Args:
        input: Examples, (B, ...), of a floating dtype; or a collection of such tensors, which are mixed alike.
        target: Targets, (B, ...), or a collection of them.
        mixing: Share m of the other example, from 0 to 1; drawn by default.
        alpha: Parameter of the Beta distribution that m is drawn from, 0 or greater: near 0 most pairs are hardly
            mixed, at 1 m is uniform in [0, 0.5].
        indices: Partner of each example, (B,); a random permutation by default.

    Returns:
        The mixed input; the target of the partners, ``target[indices]``; m.

    Raises:
        TypeError: The input is not of a floating dtype.
        ValueError: ``alpha`` or ``mixing`` is out of its range.

    >>> x, y = torch.tensor([[0.0], [8.0]]), torch.tensor([0, 1])
    >>> mixup_batch(x, y, mixing=0.25, indices=torch.tensor([1, 0]))
    (tensor([[2.],
            [6.]]), tensor([1, 0]), 0.25)

    Paper: https://arxiv.org/abs/1710.09412 (Zhang et al. 2018)
    """
    if mixing is None:
        beta = draw_beta(non_negative("alpha", alpha))
        mixing = min(beta, 1 - beta)
    else:
        mixing = in_unit_interval("mixing", mixing)
    first = next((leaf for leaf in trees.leaves(input) if isinstance(leaf, Tensor)), None)
    if first is None:
        raise TypeError(f"input must be a tensor or a collection of tensors, but got {type(input).__name__}.")
    if indices is None:
        indices = torch.randperm(first.shape[0], device=first.device)

    def partners(tensor: Tensor) -> Tensor:
        return select_samples(tensor, indices)

    def mix(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            raise TypeError(
                f"input must be of a floating dtype to be mixed, but it is {tensor.dtype}. Convert it first, for "
                f"example by input / 255 for images of bytes."
            )
        # In place on the selected copy: one pass and one buffer fewer.
        return partners(tensor).lerp_(tensor, 1 - mixing)

    return trees.map_tensors(mix, input), trees.map_tensors(partners, target), mixing


class MixUp(Algorithm):
    """Applies :func:`mixup_batch` to each microbatch, and mixes its targets or its losses alike.

    Targets may be class indices, masks of them, probabilities, or numbers to regress to. The batch is as it was once
    the loss, or with ``interpolate_loss`` the gradient, is there: metrics see the original data.

    Args:
        alpha: Parameter of the Beta distribution, 0 (off) or greater. 0.2 is usual on ImageNet, 1 on CIFAR.
        interpolate_loss: Whether to mix the losses of both targets rather than the targets, for losses that take
            class indices only. The loss is computed twice.
        input_key: Where the input is in the batch, or a list of such keys; several inputs are mixed alike.
        target_key: Where the target is, or a list of such keys.

    Raises:
        ValueError: ``alpha`` is negative.

    >>> MixUp(alpha=0.2)
    MixUp(alpha=0.2, interpolate_loss=False, input_key=0, target_key=1)

    Paper: https://arxiv.org/abs/1710.09412 (Zhang et al. 2018)
    """

    slot = Slot.AUGMENT

    def __init__(
        self,
        alpha: float = 0.2,
        interpolate_loss: bool = False,
        input_key: trees.BatchKey = 0,
        target_key: trees.BatchKey = 1,
    ) -> None:
        self.alpha = non_negative("alpha", alpha)
        self.interpolate_loss = interpolate_loss
        self.input_key = input_key
        self.target_key = target_key
        self._mixing = 0.0
        self._input: Any = None
        self._target: Any = None
        self._permuted: Any = None

    @property
    def claims(self) -> frozenset[Claim]:
        """The loss, if it is mixed."""
        return frozenset({Claim.LOSS_MIX}) if self.interpolate_loss else frozenset()

    def overrides(self, event: Event) -> bool:
        """Leave out the events of the other kind of mixing: a compiled model stays one graph if nobody cuts in."""
        return super().overrides(event) and event not in (_AROUND_LOSS if self.interpolate_loss else _AROUND_BACKWARD)

    def before_forward(self, state: State, logger: Logger) -> None:
        """Mix the inputs."""
        if self.alpha == 0:
            return
        self._input = state.batch_get_item(self.input_key)
        self._target = state.batch_get_item(self.target_key)
        mixed, self._permuted, self._mixing = mixup_batch(self._input, self._target, alpha=self.alpha)
        state.batch_set_item(self.input_key, mixed)

    def before_loss(self, state: State, logger: Logger) -> None:
        """Mix the targets, which needs the number of classes, known from the outputs."""
        if self.alpha == 0:
            return
        mixed = edit_targets(self._mix_target, state.outputs, self._target, self._permuted)
        state.batch_set_item(self.target_key, mixed)

    def after_loss(self, state: State, logger: Logger) -> None:
        """Put the batch back as it was."""
        if self.alpha == 0:
            return
        state.batch_set_item(self.target_key, self._target)
        self._restore_input(state)

    def before_backward(self, state: State, logger: Logger) -> None:
        """Mix the loss with that of the partners' targets."""
        if self.alpha == 0:
            return
        model: Any = state.model
        if isinstance(model, DistributedDataParallel):
            model = model.module
        state.batch_set_item(self.target_key, self._permuted)
        with get_precision_context(state.precision, state.precision_config, device_type=state.device.torch_device.type):
            loss = model.loss(state.outputs, state.batch)
        state.batch_set_item(self.target_key, self._target)
        state.loss = _mix_losses(state.loss, loss, self._mixing)

    def after_backward(self, state: State, logger: Logger) -> None:
        """Put the inputs back as they were."""
        if self.alpha == 0:
            return
        self._restore_input(state)

    def _mix_target(self, outputs: Any, target: Tensor, permuted: Tensor) -> Tensor:
        """Mix numbers and probabilities as they are, class indices as one-hot vectors."""
        if not target.is_floating_point():
            logits = logits_of(outputs)
            target, permuted = as_soft_target(target, logits), as_soft_target(permuted, logits)
        return torch.lerp(target, permuted, self._mixing)

    def _restore_input(self, state: State) -> None:
        state.batch_set_item(self.input_key, self._input)
        self._input = self._target = self._permuted = None


def _mix_losses(loss: Any, other: Any, mixing: float) -> Any:
    """Mix two losses, or each part of two collections of them."""
    if isinstance(loss, Tensor):
        return torch.lerp(loss, other, mixing)
    if isinstance(loss, Mapping):
        return {key: _mix_losses(part, other[key], mixing) for key, part in cast("Mapping[str, Any]", loss).items()}
    return tuple(_mix_losses(part, other_part, mixing) for part, other_part in zip(loss, other, strict=True))
