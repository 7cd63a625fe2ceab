"""Gradient clipping: bound gradients by norm, by value or adaptively (AGC), also with sharded parameters (FSDP).

    norm:      g <- g * min(1, t / |g|)                              |g| over all parameters
    value:     g <- clip(g, -t, t)                                   each element
    adaptive:  g_i <- g_i * min(1, t * max(|w_i|, 0.001) / |g_i|)    each unit i: a row of a matrix, a filter, a bias

Papers: norm and value, Pascanu et al. 2013, https://arxiv.org/abs/1211.5063; adaptive, Brock et al. 2021,
https://arxiv.org/abs/2102.06171
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from composer._numbers import non_negative
from composer._text import one_of, plural
from composer.algorithms._gradients import gradients_of, parameters_of, scale_gradients, total_norm
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.dist.dtensor import is_dtensor, local_tensors, row_norms

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["GradientClipping", "apply_gradient_clipping"]

_TYPES = ("norm", "value", "adaptive")
# Weights initialized to zero could otherwise never change (the paper's epsilon).
_SMALLEST_WEIGHT_NORM = 1e-3
# Prevents 0 / 0 for a zero gradient.
_SMALLEST_NORM = 1e-6
# Number of elements above which a pass over memory takes longer than a kernel launch.
_LARGE = 16384


def apply_gradient_clipping(
    model: nn.Module | Iterable[Tensor],
    clipping_type: str,
    clipping_threshold: float,
    fsdp_enabled: bool = False,
) -> None:
    """Clip the gradients of a model in place, after the backward pass and before the optimizer step.

    It does not synchronize with the device: no norm is read back.

    Args:
        model: The model, or its parameters.
        clipping_type: ``"norm"`` scales all gradients by one factor so that their total norm is at most the
            threshold. ``"value"`` clamps each element. ``"adaptive"`` scales the gradient of each unit (a row of a
            matrix, a filter of a convolution, an entire bias) to at most the threshold times the norm of its weights.
        clipping_threshold: The bound t, 0 or greater; infinity disables clipping. Usual: 0.1 to 2 for the norm, 0.01
            (batches of some thousands) to 0.16 for adaptive clipping.
        fsdp_enabled: Ignored; sharded gradients are detected.

    Raises:
        ValueError: The type is unknown, or the threshold is negative.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> layer.weight.grad = torch.tensor([[3.0, 4.0]])
    >>> apply_gradient_clipping(layer, "norm", 1.0)
    >>> layer.weight.grad
    tensor([[0.6000, 0.8000]])

    Papers: https://arxiv.org/abs/1211.5063 (Pascanu et al. 2013), https://arxiv.org/abs/2102.06171 (Brock et al. 2021)
    """
    one_of("clipping_type", clipping_type, _TYPES)
    if non_negative("clipping_threshold", clipping_threshold) == float("inf"):
        return
    parameters = model.parameters() if isinstance(model, nn.Module) else model
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    if not parameters:
        return
    if clipping_type == "adaptive":
        _clip_units(parameters, clipping_threshold)
    elif clipping_type == "value":
        _clip_elements(local_tensors(gradients_of(parameters)), clipping_threshold)
    else:
        gradients = gradients_of(parameters)
        factor = clipping_threshold / (total_norm(gradients) + _SMALLEST_NORM)
        scale_gradients(gradients, factor.clamp(max=1.0))


class GradientClipping(Algorithm):
    """Applies :func:`apply_gradient_clipping` to the gradient of each batch, before the optimizer step.

    It clips the parameters of the optimizers; the norm is the total norm over all of them.

    When to use it:
        Against divergence at high learning rates and with long sequences: the norm for transformers and recurrent
        networks, which keeps the direction; adaptive clipping for networks without normalization at large batches.

    When not to:
        If training is stable: a threshold that clips most steps is a lower learning rate in disguise.

    How to choose:
        Log the gradient norm for some hundred steps and set the threshold where it rarely clips; 1.0 is usual for
        language models. Adaptive clipping uses 0.01 (batches of some thousands) to 0.16.

    Cost:
        One pass over the gradients for the norm and one to scale them; no device synchronization.

    Args:
        clipping_type: ``"norm"``, ``"value"`` or ``"adaptive"``; or a sequence with one entry per optimizer, whose
            parameters are then clipped separately, None for no clipping.
        clipping_threshold: The bound, 0 or greater, infinity disables clipping; a sequence if ``clipping_type`` is one
            or if thresholds differ.

    Raises:
        ValueError: A type is unknown, a threshold is negative, or the sequences have different lengths.

    >>> GradientClipping("norm", 1.0)
    GradientClipping(clipping_type='norm', clipping_threshold=1.0)
    >>> GradientClipping(["norm", None], [1.0, None])
    GradientClipping(clipping_type=['norm', None], clipping_threshold=[1.0, None])

    Papers: https://arxiv.org/abs/1211.5063 (Pascanu et al. 2013), https://arxiv.org/abs/2102.06171 (Brock et al. 2021)
    """

    __traits__ = Traits(
        sharding=Sharding.SAFE,
        sharding_reason="The norm is the total norm over all shards.",
        neutral={"_policies": [("norm", float("inf"))], "_each": False},
    )

    def __init__(
        self,
        clipping_type: str | Sequence[str | None],
        clipping_threshold: float | Sequence[float | None],
    ) -> None:
        self.clipping_type = clipping_type
        self.clipping_threshold = clipping_threshold
        self._policies = _policies(clipping_type, clipping_threshold)
        self._each = not isinstance(clipping_type, str) or isinstance(clipping_threshold, Sequence)
        self._by_engine = False
        if len(self._policies) != 1 or self._policies[0][0] != "norm" or not self._policies[0][1]:
            conflict = "It supports only clipping by norm, with one threshold above 0."
            self.__traits__ = replace(self.__traits__, engine_conflict=conflict)

    def leave_to_engine(self) -> float | None:
        """Return the norm bound, or None for infinity, for an engine that clips; this algorithm then stops clipping.

        >>> GradientClipping("norm", 1.0).leave_to_engine()
        1.0
        """
        self._by_engine = True
        bound = self._policies[0][1]
        return None if bound == float("inf") else bound

    def fit_start(self, state: State, logger: Logger) -> None:
        """Check that there is one policy per optimizer."""
        if self._each and len(self._policies) != len(state.optimizers):
            raise ValueError(
                f"clipping_type and clipping_threshold are for {plural(len(self._policies), 'optimizer')}, but the "
                f"run has {len(state.optimizers)}: give one entry per optimizer, None to disable clipping for it."
            )

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Clip the gradients of the batch."""
        if self._by_engine:
            return
        if not self._each:
            apply_gradient_clipping(parameters_of(state.optimizers), *self._policies[0])
            return
        for optimizer, (clipping_type, threshold) in zip(state.optimizers, self._policies, strict=True):
            apply_gradient_clipping(parameters_of([optimizer]), clipping_type, threshold)


def _policies(types: str | Sequence[str | None], thresholds: float | Sequence[float | None]) -> list[tuple[str, float]]:
    """Return one (type, threshold) per optimizer, or one for all of them; an infinite threshold disables clipping."""
    clipping_types = [types] if isinstance(types, str) else list(types)
    bounds = list(thresholds) if isinstance(thresholds, Sequence) else [thresholds]
    length = max(len(clipping_types), len(bounds))
    if {len(clipping_types), len(bounds)} - {1, length}:
        raise ValueError(
            f"clipping_type has {len(clipping_types)} and clipping_threshold {len(bounds)} entries: give one of each "
            f"per optimizer, or one for all."
        )
    clipping_types = clipping_types * length if len(clipping_types) == 1 else clipping_types
    bounds = bounds * length if len(bounds) == 1 else bounds
    policies: list[tuple[str, float]] = []
    for clipping_type, threshold in zip(clipping_types, bounds, strict=True):
        if clipping_type is None or threshold is None:
            policies.append(("norm", float("inf")))
            continue
        one_of("clipping_type", clipping_type, _TYPES)
        policies.append((clipping_type, non_negative("clipping_threshold", threshold)))
    return policies


def _are_large(tensors: Sequence[Tensor]) -> bool:
    """Return whether memory bandwidth, not kernel launches, dominates: large tensors on the CPU."""
    size = sum(tensor.numel() for tensor in tensors) / len(tensors)
    return size > _LARGE and all(tensor.device.type == "cpu" for tensor in tensors)


def _clip_elements(gradients: list[Tensor], threshold: float) -> None:
    if _are_large(gradients):
        for gradient in gradients:  # one pass over memory; the foreach version takes two passes in fewer calls
            gradient.clamp_(-threshold, threshold)
        return
    torch._foreach_clamp_min_(gradients, -threshold)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_clamp_max_(gradients, threshold)  # pyright: ignore[reportPrivateImportUsage]


@torch.no_grad()
def _clip_units(parameters: Sequence[Tensor], threshold: float) -> None:
    small: list[Tensor] = []
    for parameter, gradient in zip(parameters, gradients_of(parameters), strict=True):
        if not is_dtensor(parameter) and not _are_large([gradient]):
            small.append(parameter)
            continue
        # One by one: a gradient is still in the cache when it is scaled.
        bound = row_norms(parameter).clamp_(min=_SMALLEST_WEIGHT_NORM).mul_(threshold)
        factor = bound.div_(row_norms(gradient).clamp_(min=_SMALLEST_NORM)).clamp_(max=1.0)
        local_tensors([gradient])[0].mul_(factor)
    if small:
        _clip_small_units(small, threshold)


def _clip_small_units(parameters: Sequence[Tensor], threshold: float) -> None:
    gradients = gradients_of(parameters)
    bounds = [row_norms(parameter) for parameter in parameters]
    norms = [row_norms(gradient) for gradient in gradients]
    torch._foreach_clamp_min_(bounds, _SMALLEST_WEIGHT_NORM)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_mul_(bounds, threshold)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_clamp_min_(norms, _SMALLEST_NORM)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_div_(bounds, norms)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_clamp_max_(bounds, 1.0)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_mul_(gradients, bounds)  # pyright: ignore[reportPrivateImportUsage]
