"""Base of MixUp and CutMix: mix pairs of examples, then targets or losses, and restore the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from composer import trees
from composer._numbers import non_negative
from composer.algorithms._targets import as_soft_target, edit_targets, logits_of
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Claim, Slot
from composer.core.distributed_support import Sharding
from composer.core.event import Event
from composer.core.traits import Traits

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["PairMixing"]

_AROUND_LOSS = frozenset({Event.BEFORE_LOSS, Event.AFTER_LOSS})
_AROUND_BACKWARD = frozenset({Event.BEFORE_BACKWARD, Event.AFTER_BACKWARD})


class PairMixing(Algorithm):
    """Abstract base: mixes each example with a partner before the forward pass, and targets or losses around the loss.

    Subclasses implement :meth:`mix` for inputs, and may override :meth:`mix_target` for targets.
    """

    __traits__ = Traits(
        slot=Slot.AUGMENT,
        may_claim=frozenset({Claim.LOSS_MIX}),
        sharding=Sharding.PER_RANK,
        sharding_reason="Partners are sampled from the batch shard of a rank.",
        neutral={"alpha": 0.0},
    )

    def __init__(
        self,
        alpha: float,
        interpolate_loss: bool,
        input_key: trees.BatchKey,
        target_key: trees.BatchKey,
        per_sample: bool,
    ) -> None:
        if interpolate_loss and per_sample:
            raise ValueError(
                "interpolate_loss=True mixes two losses, which are means over the batch, with one weight and requires "
                "per_sample=False."
            )
        traits = self.__traits__
        if interpolate_loss:
            self.__traits__ = replace(traits, claims=traits.may_claim)
        else:
            remaining = {name: why for name, why in traits.conflicts_with.items() if name != "LabelSmoothing"}
            self.__traits__ = replace(traits, conflicts_with=remaining)
        self.alpha = non_negative("alpha", alpha)
        self.interpolate_loss = interpolate_loss
        self.input_key = input_key
        self.target_key = target_key
        self.per_sample = per_sample
        self._partner_weight: float | Tensor = 0.0
        self._input: Any = None
        self._target: Any = None
        self._permuted: Any = None

    def mix(self, input: Any, target: Any) -> tuple[Any, Any, float | Tensor]:
        """Return the mixed input, the targets of the partners, and the weight of the partners: a number, or (B,)."""
        raise NotImplementedError

    def mix_target(self, outputs: Any, target: Tensor, permuted: Tensor) -> Tensor:
        """Mix numbers and probabilities directly, class indices as one-hot vectors."""
        if not target.is_floating_point():
            logits = logits_of(outputs)
            target, permuted = as_soft_target(target, logits), as_soft_target(permuted, logits)
        weight = self._partner_weight
        if isinstance(weight, Tensor):
            weight = weight.to(target.dtype).view(-1, *[1] * (target.ndim - 1))
        return torch.lerp(target, permuted, weight)

    def __listens__(self, event: Event) -> bool:
        """Unsubscribe from the events of the other mode, so that a compiled model stays one graph."""
        return super().__listens__(event) and event not in (_AROUND_LOSS if self.interpolate_loss else _AROUND_BACKWARD)

    def before_forward(self, state: State, logger: Logger) -> None:
        """Mix the inputs."""
        if self.alpha == 0:
            return
        self._input = state.batch_get_item(self.input_key)
        self._target = state.batch_get_item(self.target_key)
        mixed, self._permuted, self._partner_weight = self.mix(self._input, self._target)
        state.batch_set_item(self.input_key, mixed)

    def before_loss(self, state: State, logger: Logger) -> None:
        """Mix the targets; this requires the number of classes, which the outputs determine."""
        if self.alpha == 0:
            return
        mixed = edit_targets(self.mix_target, state.outputs, self._target, self._permuted)
        state.batch_set_item(self.target_key, mixed)

    def after_loss(self, state: State, logger: Logger) -> None:
        """Restore the batch."""
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
        with state.precision_context():
            loss = model.loss(state.outputs, state.batch)
        state.batch_set_item(self.target_key, self._target)
        state.loss = _mix_losses(state.loss, loss, cast("float", self._partner_weight))

    def after_backward(self, state: State, logger: Logger) -> None:
        """Restore the inputs."""
        if self.alpha == 0:
            return
        self._restore_input(state)

    def _restore_input(self, state: State) -> None:
        state.batch_set_item(self.input_key, self._input)
        self._input = self._target = self._permuted = None


def _mix_losses(loss: Any, other: Any, weight: float) -> Any:
    """Mix two losses, or two collections of losses element by element."""
    if isinstance(loss, Tensor):
        return torch.lerp(loss, other, weight)
    if isinstance(loss, Mapping):
        return {
            key: _mix_losses(component, other[key], weight)
            for key, component in cast("Mapping[str, Any]", loss).items()
        }
    return tuple(
        _mix_losses(component, other_component, weight) for component, other_component in zip(loss, other, strict=True)
    )
