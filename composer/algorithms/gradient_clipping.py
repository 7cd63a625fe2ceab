"""Gradient clipping: bound the gradient, so that no single batch can throw the weights far.

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

from composer._text import non_negative, one_of, plural
from composer.algorithms._gradients import gradients_of, parameters_of, scale_gradients, total_norm
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.dist.dtensor import is_sharded, local_tensors, row_norms

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["GradientClipping", "apply_gradient_clipping"]

_TYPES = ("norm", "value", "adaptive")
# Weights that begin at zero could otherwise never leave it (the paper's epsilon).
_SMALLEST_WEIGHT_NORM = 1e-3
# Keeps a gradient of zero from becoming 0 / 0.
_SMALLEST_NORM = 1e-6
# Number of elements from which on a pass over memory takes longer than a call.
_LARGE = 16384


def apply_gradient_clipping(
    model: nn.Module | Iterable[Tensor],
    clipping_type: str,
    clipping_threshold: float,
    fsdp_enabled: bool = False,
) -> None:
    """Clip the gradients of a model in place, after the backward pass and before the optimizer's step.

    The device is not waited for: whether a gradient is too large is never read back.

    Args:
        model: The model, or its parameters.
        clipping_type: ``"norm"`` scales all gradients by one factor so that their common norm is at most the
            threshold. ``"value"`` cuts each element. ``"adaptive"`` scales the gradient of each unit (a row of a
            matrix, a filter of a convolution, a whole bias) to at most the threshold times the norm of its weights.
        clipping_threshold: The bound t, 0 or greater; infinity is off. Usual: 0.1 to 2 for the norm, 0.01 (batches of
            some thousands) to 0.16 for the adaptive form.
        fsdp_enabled: Not needed any more, since divided gradients are recognised.

    Raises:
        ValueError: The type is unknown, or the threshold negative.

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
    """Applies :func:`apply_gradient_clipping` to the gradient of each batch, before the step.

    Parameters are those of the optimizers; the norm is over all of them together.

    When to use it:
        Against divergence at high learning rates and long sequences: the norm for transformers and recurrent
        networks, which keeps the direction; the adaptive form for networks without normalisation at large batches.

    When not to:
        Where training is stable: a threshold that bites in most steps is a lower learning rate in disguise.

    How to choose:
        Log the gradient norm for some hundred steps and set the threshold where it seldom bites; 1.0 is usual for
        language models. The adaptive form takes 0.01 (batches of some thousands) to 0.16.

    Cost:
        A pass over the gradients for the norm and one to scale them; nothing is read back from the device.

    Args:
        clipping_type: ``"norm"``, ``"value"`` or ``"adaptive"``; with several optimizers also a sequence with one
            entry each, whose parameters are then clipped by themselves, None for not at all.
        clipping_threshold: The bound, 0 or greater, infinity is off; a sequence where ``clipping_type`` is one or
            where thresholds differ.

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
        sharding_reason="The norm is that of all parts together.",
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
            conflict = "Of all ways to clip it has the norm, with one threshold above 0."
            self.__traits__ = replace(self.__traits__, engine_conflict=conflict)

    def leave_to_engine(self) -> float | None:
        """Return the bound of the norm, or None for infinity, to an engine that clips; this method does not any more.

        >>> GradientClipping("norm", 1.0).leave_to_engine()
        1.0
        """
        self._by_engine = True
        bound = self._policies[0][1]
        return None if bound == float("inf") else bound

    def fit_start(self, state: State, logger: Logger) -> None:
        """Check that there is a policy for each optimizer."""
        if self._each and len(self._policies) != len(state.optimizers):
            raise ValueError(
                f"clipping_type and clipping_threshold are for {plural(len(self._policies), 'optimizer')}, but the "
                f"run has {len(state.optimizers)}: give one entry for each, None for one that is not clipped."
            )

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Clip the gradients of the batch."""
        if self._by_engine:
            return
        if not self._each:
            apply_gradient_clipping(parameters_of(state.optimizers), *self._policies[0])
            return
        for optimizer, (kind, threshold) in zip(state.optimizers, self._policies, strict=True):
            apply_gradient_clipping(parameters_of([optimizer]), kind, threshold)


def _policies(types: str | Sequence[str | None], thresholds: float | Sequence[float | None]) -> list[tuple[str, float]]:
    """Type and threshold for each optimizer, or one pair for all of them; an infinite threshold is off."""
    kinds = [types] if isinstance(types, str) else list(types)
    bounds = list(thresholds) if isinstance(thresholds, Sequence) else [thresholds]
    length = max(len(kinds), len(bounds))
    if {len(kinds), len(bounds)} - {1, length}:
        raise ValueError(
            f"clipping_type has {len(kinds)} and clipping_threshold {len(bounds)} entries: give one of each for "
            f"each optimizer, or one for all."
        )
    kinds = kinds * length if len(kinds) == 1 else kinds
    bounds = bounds * length if len(bounds) == 1 else bounds
    policies: list[tuple[str, float]] = []
    for kind, threshold in zip(kinds, bounds, strict=True):
        if kind is None or threshold is None:
            policies.append(("norm", float("inf")))
            continue
        one_of("clipping_type", kind, _TYPES)
        policies.append((kind, non_negative("clipping_threshold", threshold)))
    return policies


def _are_large(tensors: Sequence[Tensor]) -> bool:
    """Whether passes over memory, and not calls, take the time: on the host, for large tensors."""
    size = sum(tensor.numel() for tensor in tensors) / len(tensors)
    return size > _LARGE and all(tensor.device.type == "cpu" for tensor in tensors)


def _clip_elements(gradients: list[Tensor], threshold: float) -> None:
    if _are_large(gradients):
        for gradient in gradients:  # one pass over memory, where the other form makes two in fewer calls
            gradient.clamp_(-threshold, threshold)
        return
    torch._foreach_clamp_min_(gradients, -threshold)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_clamp_max_(gradients, threshold)  # pyright: ignore[reportPrivateImportUsage]


@torch.no_grad()
def _clip_units(parameters: Sequence[Tensor], threshold: float) -> None:
    small: list[Tensor] = []
    for parameter, gradient in zip(parameters, gradients_of(parameters), strict=True):
        if not is_sharded(parameter) and not _are_large([gradient]):
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
